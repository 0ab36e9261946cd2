// Package ibverbx makes many RDMA queue pairs, on several NICs, behave like one.
//
// [Rails] are the NIC ports that are used together, and a [Region] is memory that is registered on all of
// them. A [VirtualQP] is made of lanes: RC queue pairs spread over the rails. It cuts a request into
// fragments, spreads them over its lanes, and reports exactly one completion per request, in posting
// order, through a [VirtualCQ].
//
//	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic0}, ibverbx.RailConfig{Context: nic1})
//	cq, err := rails.NewCQ(ibverbx.CQConfig{})
//	qp, err := cq.NewQP(ibverbx.Config{Lanes: 16})
//	card, err := qp.Card()   // send it to the peer, and receive the peer's
//	err = qp.Connect(peer)
//
// # What is ordered
//
// WRITEs and READs of different requests are not ordered among themselves. A request with verbs.SendFence
// starts when every request before it has ended. When the receiver is notified of a WRITE_WITH_IMM, or
// gets a SEND, the bytes of that request and of all requests before it are in its memory. The [Scheme]
// is how it is notified.
//
// # Concurrency
//
// A VirtualCQ and its VirtualQPs are for one goroutine at a time. Under the race detector, and with the
// build tag ibverbxdebug, concurrent calls panic. They have no goroutine of their own: Poll drives them,
// also on a side that only receives. Wait and Serve poll and sleep.
//
// # Losing lanes
//
// With Config.Control, a channel for small datagrams beside the lanes, losing a lane or a rail only costs
// time: the two ends agree on what has arrived, other lanes carry the rest, and the lane is rebuilt.
// VirtualCQ.Events reports it.
//
// # Parts
//
// A VirtualQP is made of parts, each in its file. The sender takes requests (sender.go), hands them to
// lanes (dispatch.go) and rings doorbells (doorbell.go). Its picker chooses lanes (policy.go). The
// receiver holds the user's receives (receive.go). A notifier is the scheme at work (scheme.go, tally.go,
// dqplb.go). failover owns the state of the VirtualQP and the life of its lanes (failover.go, down.go,
// recovery.go), with a watchdog for deadlines and a silent peer. A single lane has a passthrough
// instead of sender and receiver (direct.go). The setup is what all parts read.
package ibverbx
