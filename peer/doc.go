// Package peer connects two processes: one call on each side returns a ready VirtualQP.
//
//	s, err := peer.Accept(ctx, ":18515", cfg)     // on one host
//	s, err := peer.Dial(ctx, "host:18515", cfg)   // on the other
//
// The call opens NICs or uses open ones, authenticates the peer with package bootstrap, and negotiates the parameters. It then creates a
// VirtualQP, registers memory, exchanges cards and regions, connects, and waits until the peer is ready too. Session.establish (connect.go)
// runs these steps. The returned [Session] holds the VirtualQP with failover, the memory of both sides, and the connection for application
// messages.
//
// Two processes of one user on one host use shared memory, unless the Config sets NICs or disables it ([Config].Link).
//
// The result of the negotiation depends only on the two offers. Both sides therefore get the same result, or the same [MismatchError],
// which names the value and both sides' limits.
//
// A process with many peers can share one VirtualCQ between Sessions and poll it itself, see Config.SharedCQ.
//
// Functions and Listeners are safe for concurrent use. A Session's VirtualQP and VirtualCQ are not.
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. Offers (offer.go), regions (regions.go) and cards are
// exchanged with peers of other versions: a change of meaning needs a new [OfferVersion], or a new ibverbx.CardVersion for cards.
package peer
