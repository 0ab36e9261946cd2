// Package node is one process on the fabric, with many peers.
//
//	n, err := node.New(ctx, node.Config{Auth: auth, Listen: ":18510"})
//	p, err := n.Peer(ctx, "node7:18510")
//
// A [Node] owns the NICs, the port that it listens on, and its peers. A [Peer] is another process with a Node, named by its
// identity: its certificate or token, and its name. All goroutines share one session with it. A session that is lost is made
// again, and what packages on top of a Node were doing goes on if the peer is still the same process.
//
// Programs use package transfer to move bytes. This package makes and keeps connections, and says how they are.
//
// # Realms
//
// All peers are in one realm, unless Config.Authorize names others. A realm has protection domains of its own, so a
// peer reaches no memory that is lent to a peer of another realm, whatever keys it guesses. Memory is registered once for all
// peers of a realm.
//
// # Idle peers
//
// A peer that neither side has used for Config.IdleAfter is parked: its queue pairs are closed, its connection stays. The next
// use brings it back.
//
// All methods may be called from any goroutine.
package node
