// Package ibverbx bundles RDMA queue pairs on several NICs into one. It stripes requests across all of
// them and, with failover enabled, survives the loss of any NIC.
//
// A rail is a NIC port used together with others, and a [Region] is memory registered on all rails. A lane
// is one RC queue pair on a rail. A [VirtualQP] splits requests into fragments and stripes them across its
// lanes. A request enters through VirtualQP.PostSend or PostRecv, and completes exactly once, in posting
// order, through [VirtualCQ.Poll].
//
//	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic0}, ibverbx.RailConfig{Context: nic1})
//	cq, err := rails.NewCQ(ibverbx.CQConfig{})
//	qp, err := cq.NewQP(ibverbx.Config{Lanes: 16})
//	card, err := qp.Card()   // send it to the peer, and receive the peer's
//	err = qp.Connect(peer)
//
// Package peer exchanges the cards and sets up failover between two processes; most programs start
// there, or with packages node and transfer.
//
// # Ordering
//
// WRITEs and READs of different requests are unordered. A request with verbs.SendFence starts after all
// earlier requests have completed. When the receiver is notified of a WRITE_WITH_IMM or receives a SEND,
// the data of that request and of all earlier requests is in its memory. The [Scheme] selects the
// notification mechanism.
//
// # Concurrency
//
// Only one goroutine at a time may use a VirtualCQ and its VirtualQPs. Under the race detector, and with
// the build tag ibverbxdebug, concurrent calls panic. The package starts no goroutines: Poll drives
// everything, even on a side that only receives. Wait and Serve poll and sleep. Rails and Region are
// safe for concurrent use.
//
// # Errors
//
// Invalid arguments return verbs.ErrInvalid, a full queue verbs.ErrQueueFull, and closed objects
// verbs.ErrClosed. A failed VirtualQP reports its cause in VirtualQP.Err: ErrDeadline, ErrPeerGone,
// ErrAtomicInDoubt or a NIC's error. Its outstanding requests are flushed, and WC.Err shows the cause.
//
// # Failover
//
// Config.Control is a channel for small datagrams besides the lanes. With it, losing a lane or a rail
// only adds latency: the two sides agree on the received data, other lanes carry the rest, and the lane
// is rebuilt. VirtualCQ.Events reports each step. Without it, a lost lane fails the VirtualQP.
//
// # Layers
//
// For contributors: file names start with their layer. A VirtualQP consists of components, each in one
// layer: sender and passthrough (send), notifier (scheme), receiver (recv) and failover. All components
// read the setup.
//
//	surface   surface_qp           VirtualQP: construction, posts, close; the user's requests and completions
//	          surface_cq           VirtualCQ: physical CQs, barriers, and the ready list of VirtualQPs to drive
//	          surface_poll         Poll, Arm, Wait, Serve; routes completions to lanes
//	          surface_observe      Stats, events, and log records of lanes and rails
//	send      send_ring            sender: the ring of requests, their completions and reports
//	          send_dispatch        dispatches requests to lanes: fragments, runs, stripes
//	          send_policy          picker: chooses the lane of the next fragment
//	          send_lane            lane: one QP and the ledger of its requests
//	          send_doorbell        builds and posts chains of physical requests
//	          send_passthrough     passthrough: a single lane without failover
//	scheme    scheme_notifier      the scheme interface, and Spray
//	          scheme_tally         Tally
//	          scheme_dqplb         DQPLB, compatible with torchcomms
//	recv      recv_receiver        receiver: the receives of the user and of the engine
//	          recv_shared          one SRQ per rail for all VirtualQPs: engine receives, and data receives
//	failover  failover_lanes       removes lanes from service and moves their requests
//	          failover_agree       agrees with the peer on received data and rails
//	          failover_rebuild     lane states and the return to service
//	          failover_control     control messages, and the watchdog for deadlines
//	fabric    fabric_rail          rails, regions, NIC events
//	          fabric_failed_device rails whose device has failed, and their return
//	          fabric_card          cards and Connect
//	          fabric_config        Config
//	          fabric_cxxpeer       cards and connections for C++ peers
//	          fabric_setup         setup: parameters fixed by Connect; request checks
//
// surface may use every layer. send, scheme and recv use each other only through sender, notifier and
// receiver. They report lost lanes to failover and read its state; failover moves lane entries and uses
// sender and receiver for that. fabric uses only package verbs, apart from Connect and NIC events, which
// enter through VirtualQP and VirtualCQ.
//
// Unexported code may change freely as long as the tests in test/engine and sim pass and the path from
// PostSend to Poll does not allocate. docs/api.md lists the lasting API. Four formats are fixed, because
// peers run other versions or torchcomms: the [Card], the [CxxCard], the control messages
// (failover_control) and the messages of the schemes.
package ibverbx
