// Package measure runs scenarios that are measured rather than checked: flows between hosts on
// virtual time, with goodput and latency as the result. The NICs are softnic's and the
// transport is the real one, RC of the NIC or package reliable; only the time is not real.
//
//	s, err := measure.Named("reliable-400g-loss-1")
//	result, err := s.Run(measure.Options{Seed: 1})
//	fmt.Println(result.GoodputRatio, result.Missed())
//
// A [Scenario] is a function that builds a [World] of hosts and flows, lets it run and fills a
// [Result]. The same seed gives the same result, digit by digit. A world moves real bytes, and
// compares them: a run that delivers the wrong ones is an error, however fast it was.
//
// # What the world leaves out
//
// Software takes no time: a host looks at its queues at the very moment at which something
// arrives. A wire takes the time of the payload and of softnic.PacketOverhead for each packet;
// a packet that is lost has taken that time, too.
package measure
