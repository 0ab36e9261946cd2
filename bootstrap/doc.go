// Package bootstrap connects two processes over TCP and authenticates both before they
// exchange anything of value.
//
// [Dial] and [Listener.Accept] are the only ways to get a [Conn]. Secrets such as QP
// numbers, addresses and rkeys can therefore only be sent to an authenticated peer. A peer
// authenticates with a certificate of a common authority or with a shared token, both over
// TLS 1.3. SECURITY.md describes the protocol and its limits.
//
//	l, err := bootstrap.Listen(ctx, ":18515", bootstrap.Config{TokenFile: "token"})
//	conn, err := l.Accept(ctx)
//
//	conn, err := bootstrap.Dial(ctx, "host:18515", bootstrap.Config{TokenFile: "token"})
//
// # What a Conn carries
//
// A Conn carries messages of several kinds, in order and without loss. A sender waits while
// the receiver has no room for them. It also carries datagrams for the engine's control
// channel ([Conn.Control]). A full queue drops its oldest datagram. Messages and datagrams
// do not delay each other.
//
// # When it ends
//
// Both sides send a keepalive every few seconds. A peer that is silent for Config.DeadAfter
// is dead, and the Conn ends with [ErrSilent]. A restarted peer has another incarnation, and
// both sides get [ErrRestarted].
//
// # The wire
//
// Everything is a frame: an eight-byte header and a payload. The type bounds the payload's
// length.
//
//	0                 4      5      6          8
//	| payload length  | type | kind | 0      0 | payload ...
//
// Numbers are big-endian. The two sides first exchange prefaces with the version, then
// proofs if they use a token, then hellos. After that either side may send at any time.
package bootstrap
