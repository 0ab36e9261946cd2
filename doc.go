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
// # Layers
//
// File names begin with their layer. A VirtualQP is made of parts, each in one layer: sender and passthrough (send), notifier (scheme),
// receiver (recv) and failover. All parts read the setup.
//
//	surface   surface_qp       VirtualQP: construction, posts, close; requests and completions as the program sees them
//	          surface_cq       VirtualCQ: physical CQs, barriers, and the ready list of VirtualQPs to drive
//	          surface_poll     Poll, Arm, Wait, Serve; routes completions to lanes
//	          surface_observe  Stats and events
//	send      send_ring        sender: the ring of requests, completions, reports
//	          send_dispatch    hands requests to lanes: fragments, runs, stripes
//	          send_policy      picker: the lane of the next fragment
//	          send_lane        lane: one QP and the ledger of its requests
//	          send_doorbell    builds and posts chains of physical requests
//	          send_single      passthrough: a single lane without failover
//	scheme    scheme_notifier  the interface of schemes, and Spray
//	          scheme_tally     Tally
//	          scheme_dqplb     DQPLB, compatible with torchcomms
//	recv      recv_receiver    receiver: the user's receives and the engine's
//	          recv_shared      receives in one SRQ per rail
//	failover  failover_lanes   takes lanes out of service and moves their requests
//	          failover_down    agrees with the peer on what has arrived
//	          failover_rebuild the states of a lane, and how it returns to service
//	          failover_control control messages, and the watchdog for deadlines
//	fabric    fabric_rail      rails, regions, NIC events
//	          fabric_card      cards and Connect
//	          fabric_config    Config
//	          fabric_cxxpeer   cards and connections of the C++ implementation
//	          fabric_setup     setup: what Connect has fixed; checks of requests
//
// surface may use every layer. send, scheme and recv use each other only through sender, notifier and receiver. They report lost lanes to
// failover and read its state; failover moves the entries of lanes and uses sender and receiver for that. fabric uses only package verbs,
// apart from Connect and NIC events, which enter through VirtualQP and VirtualCQ.
package ibverbx
