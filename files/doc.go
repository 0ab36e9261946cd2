// Package files moves files and directories between processes. Every byte is verified, and an interrupted transfer continues.
//
//	e, err := transfer.New(transfer.Config{Node: n})
//	f, err := files.New(files.Config{Transfer: e, Exports: []files.ExportConfig{{Name: "models", Path: "/models", Public: files.Read}}})
//
// and at another host
//
//	p, err := f.Peer(ctx, "host1:18510")
//	err = p.GetFile("models/v7", "/data/v7", files.TransferConfig{}).Wait(ctx)
//
// [Engine.Export] lets peers read a file or a directory, and [Peer.GetFile] gets it. [Peer.PutFile] gives one to a peer. Every chunk has a
// digest. A transfer that was interrupted, even by a kill of either process, continues with the chunks that are already stored.
//
// # Access control
//
// Config.Authorize grants a peer access to an Export. A denied name and an unknown name return the same error.
//
// # How it is built
//
// The receiving side requests each chunk and names memory for it in the request. The other side writes the chunk there and responds.
// Four things carry this:
//
//   - Ask and answer: package internal/rpc, under the service id of this package. A request that has lost its session is sent again in the
//     next one, until the peer is another process.
//   - Lend: [transfer.Peer.Grant] grants the peer's process access to the memory of a chunk under a number. Segment.Close revokes it.
//   - Stage: [transfer.Peer.OpenGrant] turns number and region of a request into a Remote, to which the chunk is written.
//   - Chunks: package internal/chunk reads, compares and stores them, without knowing of peers.
//
// A Peer holds the state of one peer: its session, its process and the limits on what it may use. A process is identified by a random
// id in the hello of each session. When another one appears, requests to the old one fail with ErrRestarted, and transfers open their files again.
//
// All methods may be called from any goroutine.
package files
