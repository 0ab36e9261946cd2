// Package core is the protocol of package reliable without input and output: both halves of a
// connection over unreliable paths, as a state machine.
//
//	actions := conn.Step(now, &event)
//
// A Conn has no goroutine and no clock, and allocates nothing after [New] and [Conn.Open]. Its owner
// tells it what happened and when, and carries out the actions that it returns. The driver in package
// reliable does so with real QPs, the tests with a model of a network.
//
// # Paths
//
// A path is a pair of UC QPs. It may lose any message, but it neither reorders nor duplicates: of two
// messages on one path, the first arrives first or never. UC works this way unless the network
// reorders packets of one flow. Two things depend on it. Loss detection is exact: a chunk is lost as
// soon as a later one of the same path has arrived. A retransmission on the same path is safe: the
// original cannot arrive after it.
//
// # Flows
//
// A connection carries up to 4,096 flows. Each is a QP to its user, with messages in order, receives
// and completions. Flows share the paths and take turns by chunks. Loss is detected flow by flow; see
// [Conn.Open].
//
// # Rules for the owner
//
// The owner carries out actions in their order, each one completely before the next. This matters for
// ActReset: when it is done, nothing that the peer sent on that path before can land, and no request of
// this end refers to memory. Later completions and acknowledgements depend on it.
//
// # The fence
//
// No byte of a completed message's buffer is ever written again. The first transmission of a piece of a
// WRITE is one-sided: the NIC places it, whenever it arrives. When the piece is retransmitted on another
// path, the original may still be in the network. So a sender moves a piece to another path only after it
// has taken the path of the original out of service, for good, and names that path in the header. A
// receiver that takes such a piece first takes its own QP of that path out of service, then acknowledges.
// The path comes back with new QPs, whose numbers no old packet carries.
package core
