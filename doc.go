// Package ibverbx makes many RDMA queue pairs, on several NICs, behave like one.
//
// [Rails] are the NIC ports that are used together, and a [Region] is memory that is
// registered on all of them. A [VirtualQP] is made of lanes, RC queue pairs spread over the
// rails. It cuts a request into fragments, spreads them over its lanes, and reports exactly
// one completion per request, in posting order, through a [VirtualCQ].
//
//	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic0}, ibverbx.RailConfig{Context: nic1})
//	cq, err := rails.NewCQ(ibverbx.CQConfig{})
//	qp, err := cq.NewQP(ibverbx.Config{Lanes: 16})
//	card, err := qp.Card()   // give it to the peer, and take the peer's
//	err = qp.Connect(peer)
//
// # What is ordered
//
// WRITEs and READs of different requests are not ordered among themselves. A request with
// verbs.SendFence begins when every request before it has ended. When the receiver is told
// of a WRITE_WITH_IMM, or gets a SEND, the bytes of that request and of all before it are
// in its memory. How it is told is the [Scheme].
//
// # Concurrency
//
// A VirtualCQ and its VirtualQPs are for one goroutine at a time; under the race detector,
// and with the build tag ibverbxdebug, a call that meets another panics. They have no goroutine of
// their own: Poll drives them, also on a side that only receives; Wait and Serve poll and
// sleep.
//
// # Losing lanes
//
// With Config.Control, a channel for small datagrams beside the lanes, the loss of a lane or
// of a rail costs nothing but time: the two ends agree on what has arrived, other lanes carry
// the rest, and the lane comes back when it can. VirtualCQ.Events tells of it.
package ibverbx
