// Package measure runs scenarios that are measured rather than checked: flows between hosts on virtual
// time, which yield goodput and latency. The NICs and the transport are real: softnic, with RC or
// package reliable. Only time is simulated.
//
//	s, ok := measure.Builtin("reliable-400g-loss-1")
//	result, err := s.Run(measure.Options{Seed: 1})
//	fmt.Println(result.GoodputRatio, result.Missed())
//
// A [Scenario] builds a world of hosts and flows, runs it and fills in a [Result]. The same seed gives
// the same result, digit by digit. A world moves real bytes and compares them: wrong bytes are an error.
//
// # Simplifications
//
// Software takes no time: a host polls at the instant of an arrival. A packet occupies the wire for its
// payload and softnic.PacketOverhead, even if it is lost.
//
// # Changes
//
// Scenarios may be added freely. A changed scenario or target (Scenario.Aims) needs new results in
// docs/reliable.md.
package measure
