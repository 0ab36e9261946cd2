// Package measure runs scenarios that are measured rather than checked: flows between hosts on virtual
// time, which give goodput and latency. The NICs are those of softnic and the transport is real: RC of
// the NIC or package reliable. Only the time is simulated.
//
//	s, ok := measure.Named("reliable-400g-loss-1")
//	result, err := s.Run(measure.Options{Seed: 1})
//	fmt.Println(result.GoodputRatio, result.Missed())
//
// A [Scenario] builds a world of hosts and flows, runs it and fills a [Result]. The same seed gives the
// same result, digit by digit. A world moves real bytes and compares them: wrong bytes are an error.
//
// # What the world leaves out
//
// Software takes no time: a host polls at the moment at which something arrives. A packet occupies the
// wire for the time of its payload and of softnic.PacketOverhead, also if it is lost.
package measure
