// Package transfer moves memory between many peers: named segments, batches of reads and writes with a single completion, and notifications
// that follow the data.
//
//	e, err := transfer.New(transfer.Config{Node: n})
//	kv, err := e.Alloc("kv", 64<<30, transfer.SegmentConfig{DefaultAccess: transfer.Write})
//	p, err := e.Peer(ctx, "node7:18510")
//	remote, err := p.Open(ctx, "kv", transfer.Write)
//	b := p.Batch()
//	for _, block := range blocks {
//		b.Put(remote.At(block.There), kv.Slice(block.Here, size))
//	}
//	err = b.Notify([]byte("request 4711")).Do(ctx)
//
// The peer's program receives the notification from [Engine.Recv] once all blocks are in its memory.
//
// # Guarantees
//
// A transfer completes only after the local NICs have finished all its requests, so its memory can then be reused, even after an error or
// [Transfer.Cancel]. A nil error means that all data is in place on both sides. Neither transfers nor the blocks of a batch are ordered.
//
// Losing a queue pair or a NIC only adds latency. A lost session is re-established: its transfers resume if the peer is still the same
// process and fail with [ErrRestarted] otherwise. Resuming may repeat a block, so concurrent transfers must not write the same bytes.
//
// Notifications from one process arrive exactly once, in Submit order, after every block of their batch has completed; no block is moved
// afterwards. A failed batch does not notify; a batch canceled or lost at the last moment may already have done so.
//
// # Access control
//
// Config.Authorize grants a peer access to a segment, until [Segment.Close]. A denied name and an unknown name return the same error,
// [ErrNotFound].
//
// # Building on this package
//
// Package files uses a few low-level calls, also available to other packages. [Engine.Adopt] registers a buffer. [Peer.Grant] grants a
// peer's process access to it, and [Peer.OpenGrant] turns the grant's number and region into a [Remote] on the other side. [Engine.Of] maps
// a node.Peer to a Peer. [Peer.Rails] and [Progress] report the progress of a transfer.
//
// All types are safe for concurrent use, except [Batch].
//
// # Implementation
//
// [Batch.Submit] passes the blocks to package node as one service.Op. sink.End (transfer.go) receives the result. The Transfer then verifies
// the blocks and posts the notification, if requested, and completes.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. A change to the messages (wire.go) needs a new version.
package transfer
