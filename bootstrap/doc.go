// Package bootstrap connects two processes over TCP and authenticates both before they exchange anything of value.
//
// [Dial] and [Listener.Accept] are the only ways to get a [Conn]. Secrets such as QP numbers, addresses and rkeys can therefore only be
// sent to an authenticated peer. A peer authenticates with a certificate from a common authority or with a shared token, both over TLS 1.3.
// SECURITY.md describes the protocol and its limits.
//
//	l, err := bootstrap.Listen(ctx, ":18515", bootstrap.Config{TokenFile: "token"})
//	conn, err := l.Accept(ctx)
//
//	conn, err := bootstrap.Dial(ctx, "host:18515", bootstrap.Config{TokenFile: "token"})
//
// # Messages and datagrams
//
// A Conn carries messages of several kinds, reliably and in order. [Conn.Send] queues a message for the writer goroutine (writer.go) and
// blocks while the receiver's window is full. The reader goroutine (reader.go) queues messages for [Conn.Recv]. [Conn.Control] carries
// datagrams for the engine's control channel. A full queue drops its oldest datagram. Messages and datagrams do not delay each other.
//
// # Failure detection
//
// Both sides send keepalives, three per Config.DeadAfter. A Conn whose peer is silent for Config.DeadAfter fails with [ErrSilent]. When a
// named peer reconnects after a restart, its earlier Conns at the listener fail with [ErrRestarted].
//
// # Wire format
//
// Everything is a frame: an eight-byte header and a payload. The type bounds the payload's length.
//
//	0                 4      5      6          8
//	| payload length  | type | kind | 0      0 | payload ...
//
// Numbers are big-endian. The two sides first exchange prefaces with the version, then proofs if they use a token, then hellos. After that,
// either side may send at any time.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. A change to frames, prefaces, proofs or hellos needs a
// new Version, and an update of SECURITY.md. Only optional fields may be added to a hello without one.
package bootstrap
