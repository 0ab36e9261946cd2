// Package transfer moves memory between processes: many peers, named segments, one completion for many blocks, and notifications
// that come after the data.
//
//	e, err := transfer.New(transfer.Config{Node: n})
//	kv, err := e.Alloc("kv", 64<<30, transfer.SegmentConfig{})
//	p, err := e.Peer(ctx, "node7:18510")
//	remote, err := p.Open(ctx, "kv", transfer.Write)
//	b := p.Batch()
//	for _, block := range blocks {
//		b.Put(remote.At(block.There), kv.Slice(block.Here, size))
//	}
//	err = b.Notify([]byte("request 4711")).Do(ctx)
//
// The peer's program gets the notification from [Engine.Recv] when all blocks are in its memory.
//
// # Promises
//
// A transfer ends when the NICs of this side have completed all its requests, and never before. Its memory may then be
// used again, also after an error or a Cancel. Without an error all bytes are in place on both sides. There is no
// order among transfers, and none among the blocks of one.
//
// Lost queue pairs and NICs cost time only. A lost session is made again. Transfers then go on if the peer is still the same
// process, and end in ErrRestarted otherwise. Blocks may be written or read twice on the way, so no two transfers that are under
// way may write the same bytes.
//
// Notifications of one process arrive once and in the order of Submit. Each leaves when all blocks of its batch have ended: those
// of a Put are in the peer's memory and those of a Get in this side's, and no block is moved again. A batch that fails sends none, but a
// batch that is canceled or lost at the last moment may have sent it.
//
// # Memory that others may use
//
// A peer reaches the segments that were lent to it, and keeps that access until Segment.Close. Config.Authorize decides for each peer and
// name. A peer that may not have a name gets the same answer as if it did not exist.
//
// # Packages on top
//
// Package files moves files with this package. It speaks with peers under its own service id and needs few calls: it adopts
// memory for chunks ([Engine.Adopt]), grants a peer's process access to it under a number ([Peer.Grant]), and at the other side
// turns number and region into a [Remote] to write to ([Peer.OpenGrant]). [Engine.Of] finds the Peer, [Peer.Rails] and [Progress]
// report how far a transfer is.
//
// All methods but those of Batch may be called from any goroutine. A Batch belongs to one goroutine at a time.
package transfer
