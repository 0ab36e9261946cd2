// Package core implements the protocol of package reliable without I/O: both halves of a connection over
// unreliable paths, as a state machine.
//
//	actions := conn.Step(now, &event)
//
// A Conn has neither goroutine nor clock. After [New] and [Conn.Open] it allocates only while its tables grow with the
// traffic. Its owner passes in timestamped events and executes the returned actions. The driver in package reliable does so
// with real QPs, the tests with a network model.
//
// Everything behind [Conn.Step] may change while the tests, including the exploration (TestExplore), and make mutate pass.
// The rules and the fence below must hold: the owner and the peer depend on them.
//
// # Paths
//
// A path is a pair of UC QPs. It may lose any message, but it neither reorders nor duplicates: of two
// messages on one path, the first arrives first or never. UC works this way unless the network reorders
// packets of one flow. Two properties depend on it. Loss detection is exact: a chunk is lost as soon as
// a later one on the same path has arrived. A retransmission on the same path is safe: the original
// cannot arrive after it.
//
// UD paths, and UC in a network that reorders, are [Carrier.Unordered]. Their bytes are placed by software
// ([Carrier.Software]), which drops late transmissions by their numbers, so they need neither property. Everything
// else is the same.
//
// # Flows
//
// A connection carries up to 4,096 flows. Each is a QP to its user, with ordered messages, receives and
// completions. Flows share the paths, round-robin by chunk. Loss is detected per flow; see [Conn.Open].
//
// # Rules for the owner
//
// The owner executes actions in order, each one completely before the next. This matters for ActReset:
// when it is done, data that the peer sent earlier on that path can no longer land, and no local request
// refers to memory. Later completions and acknowledgements depend on it.
//
// # The fence
//
// No byte of a completed message's buffer is ever written again. The first transmission of a WRITE
// fragment is one-sided: the NIC places it, whenever it arrives. When the fragment is retransmitted on
// another path, the original may still be in the network. So a sender moves a fragment to another path
// only after permanently removing the original's path from service, and names that path in the header. A
// receiver of such a fragment first removes its own QP of that path from service, then acknowledges. The
// path is rebuilt with new QPs, whose numbers no old packet carries.
package core
