// Package peer makes a connected VirtualQP between two processes of one call on each side.
//
//	s, err := peer.Accept(ctx, ":18515", cfg)     // on one host
//	s, err := peer.Dial(ctx, "host:18515", cfg)   // on the other
//
// The call opens NICs or takes open ones, meets the peer through package bootstrap, agrees
// with it on what both can do, makes a VirtualQP and registers memory, exchanges cards and
// regions, connects, and waits until the peer is ready too: what is posted then finds
// somebody. The [Session] that it returns has all that: the VirtualQP with its control
// channel, so that lanes that are lost come back; the memory of both sides; and the
// connection, for words of the program's own.
//
// What is agreed on ([Negotiate]) is a function of what the two sides offer, so both come
// to the same result, or to the same [MismatchError], which says what does not fit and
// where.
package peer
