// Package peer connects two processes: one call on each side returns a ready VirtualQP.
//
//	s, err := peer.Accept(ctx, ":18515", cfg)     // on one host
//	s, err := peer.Dial(ctx, "host:18515", cfg)   // on the other
//
// The call opens NICs or uses open ones, authenticates the peer with package bootstrap, and
// negotiates what both sides support. It then creates a VirtualQP, registers memory,
// exchanges cards and regions, connects, and waits until the peer is ready too. The
// [Session] that it returns holds the VirtualQP with failover, the memory of both sides, and
// the connection for the application's own messages.
//
// Processes of one user on one host are joined by shared memory, unless the Config gives NICs or forbids it
// ([Config].Link).
//
// The result of the negotiation depends only on the two offers. Both sides therefore get the
// same result, or the same [MismatchError], which names the value and both sides' limits.
//
// A process with many peers can put all Sessions on one VirtualCQ, which it polls itself:
// see Config.SharedCQ.
package peer
