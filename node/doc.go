// Package node manages the connections of one process to many peers.
//
//	n, err := node.New(ctx, node.Config{Auth: auth, Listen: ":18510"})
//	p, err := n.Peer(ctx, "node7:18510")
//
// A [Node] owns the NICs, the listening port and its peers. A [Peer] is another process that runs a Node, identified by its certificate or
// token and its name. All goroutines share one session per peer. The Node re-establishes lost sessions; outstanding operations resume if
// the peer is still the same process. This package maintains connections and reports their state; use package transfer to move data.
//
// # Realms
//
// A realm isolates a group of peers. Each realm has separate protection domains, so even a guessed key cannot reach another realm's memory.
// Memory is registered once per realm. Peers share the default realm unless Config.Authorize assigns another.
//
// # Idle peers
//
// A session that is idle on both sides for Config.IdleAfter is parked: its queue pairs are closed, its connection stays open. The next
// operation on either side reopens it.
//
// All methods are safe for concurrent use.
//
// # Operations
//
// Services (package internal/service) submit operations with service.Peer.Submit. The peer's shard posts them to the peer's VirtualQP
// (queue.post), polls, and reports each result to Op.Sink.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. The hello (hello.go) carries the version of all
// messages (wire.go). A change needs a new version, except that trailing fields may be added.
package node
