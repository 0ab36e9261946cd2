// Package files transfers files and directories between processes.
//
//	e, err := transfer.New(transfer.Config{Node: n})
//	f, err := files.New(files.Config{Transfer: e, Exports: []files.ExportConfig{{Name: "models", Path: "/models", DefaultAccess: files.Read}}})
//
// and on another host
//
//	p, err := f.Peer(ctx, "host1:18510")
//	err = p.Get("models/v7", "/data/v7", files.TransferConfig{}).Wait(ctx)
//
// [Engine.Serve] shares a file or directory; [Peer.Get] downloads it, [Peer.Put] uploads one, and [Peer.FS] reads single files as an
// fs.FS. Every chunk has a digest. An interrupted transfer resumes from the chunks already stored, even after either process was killed.
//
// # Access control
//
// Config.Authorize grants a peer access to an Export. A denied name and an unknown name return the same error, [ErrNotFound].
//
// # Implementation
//
// The receiver requests each chunk and passes memory for it in the request. The sender writes the chunk there and responds. This uses four
// building blocks:
//
//   - Requests: package internal/rpc, under this package's service id. A request whose session is lost is repeated in the next session,
//     unless the peer's process has changed.
//   - Grants: [transfer.Peer.Grant] grants the peer's process access to a chunk's memory. Segment.Close revokes it.
//   - Remotes: [transfer.Peer.OpenGrant] turns a request's grant into a Remote, the destination of the chunk.
//   - Chunks: package internal/chunk reads, compares and stores chunks, independently of peers.
//
// A Peer holds the state of one peer: its session, its process and its quotas. A random id in each session's hello identifies the process.
// When it changes, requests to the old process fail with ErrRestarted, and transfers reopen their files.
//
// [Peer.Get] starts a download (transfer.go, download.go). The peer serves its requests in process.request (serve_requests.go).
//
// All methods are safe for concurrent use.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. The messages (wire*.go), the chunk digests and the
// filter rules are part of the protocol: a change needs a new version (wire.go).
package files
