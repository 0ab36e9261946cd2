// Package core is the transport of package reliable without input and output: the two
// halves of a connection over unreliable paths, as a state machine.
//
//	actions := conn.Step(now, &event)
//
// It has no goroutine, no clock and no memory of its own after [New]: whoever owns it
// tells it what happened and when, and carries out what it answers. The driver of package
// reliable does so with real QPs, the tests with a model of a network.
//
// # What a path is
//
// A path is a pair of UC QPs. It loses whatever it likes, but it neither reorders nor
// duplicates: of two messages on one path, the one sent first arrives first or never. That
// is how UC works unless the network reorders packets of one flow. It is what makes loss
// exact (a chunk is lost as soon as a later one of the same path has arrived) and what makes
// a repetition on the same path safe (the original cannot come after it).
//
// # Flows
//
// A connection carries up to 4,096 flows, each of which is a QP to its user: messages in order,
// receives, completions. They share the paths, and take turns by chunks. What is lost is
// known flow by flow; see [Conn.Open].
//
// # Rules for the owner
//
// Actions are carried out in their order, each one whole before the next. That matters for
// ActReset: when it is done nothing that the peer sent on that path before can land, and no
// request of this end refers to memory. Completions and acknowledgements that rest on
// it come behind it.
//
// # The fence
//
// No byte of a completed message's buffer is ever written again. The first transmission of
// a piece of a WRITE is one-sided: the NIC places it, whenever it comes. If it is repeated on
// another path, the original may still be under way. So a sender moves a piece to another path
// only after it has given up the path of the original, for good, and says so in the header; and
// a receiver that takes such a piece takes its own QP of that path out of service first, then
// acknowledges. The path comes back with new QPs, whose numbers nothing old bears.
package core
