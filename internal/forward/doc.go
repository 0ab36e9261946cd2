// Package forward carries TCP connections over streams, like ssh -L. A Client listens on TCP. For
// each connection it opens a stream and names the target. A Server connects to the target, if its
// user has listed it, and copies both ways.
//
//	client:  program -> TCP -> Client -> stream ->  Server -> TCP -> target
//
// To programs, this behaves like TCP. A half-close is passed on, and the other direction continues.
// A connection that is reset, or lost with its session, is reset on the other side. If this process
// is killed, the kernel resets its connections. If the target is unreachable, the connection is
// reset immediately.
//
// A stream starts with the Client's request and the Server's reply, followed by the connection's
// data. The package uses streams only as net.Conn and net.Listener.
//
// The request and the reply (wire.go) are not versioned. Kinds and statuses may be added, but
// existing ones never change; an older peer rejects new ones as a protocol violation.
package forward
