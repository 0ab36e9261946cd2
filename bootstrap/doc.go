// Package bootstrap is how two processes meet: a TCP connection on which each side has
// proved who it is before either says anything of use.
//
// [Dial] and [Listener.Accept] return a [Conn], and there is no other way to get one. So
// what must not reach a stranger (QP numbers, addresses, rkeys) can only be sent to a
// peer that has been authenticated. A peer proves itself by a certificate of a common
// authority, or by knowing a token; either way over TLS 1.3. SECURITY.md says how, and
// what that is worth.
//
//	l, err := bootstrap.Listen(ctx, ":18515", bootstrap.Config{TokenFile: "token"})
//	conn, err := l.Accept(ctx)
//
//	conn, err := bootstrap.Dial(ctx, "host:18515", bootstrap.Config{TokenFile: "token"})
//
// # What a Conn carries
//
// Messages of several kinds, in order and without loss: a sender waits while the receiver
// has as many as it granted room for. And datagrams for the engine's control channel
// ([Conn.Control]), for which nobody waits: when a queue is full the oldest is lost. The
// two do not hold each other up.
//
// # When it ends
//
// Both sides speak every few seconds, so silence means something: after Config.DeadAfter
// of it the peer is dead and the Conn ends in [ErrSilent]. A peer that was started anew
// has another incarnation; [ErrRestarted] says so on both sides.
//
// # The wire
//
// Everything is a frame: eight bytes of header and a payload whose length is bounded by
// the type.
//
//	0                 4      5      6          8
//	| payload length  | type | kind | 0      0 | payload ...
//
// Numbers are big-endian. The two sides first exchange prefaces, which tell the version;
// with a token then proofs; then hellos. After that either may send what it likes.
package bootstrap
