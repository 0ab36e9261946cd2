// Package forward carries connections of programs over streams, as ssh -L does. A Client listens on TCP. For each connection it
// opens a stream and names the target. A Server connects to that target, if its user has named it, and copies both ways.
//
//	client:  program -> TCP -> Client -> stream ->  Server -> TCP -> target
//
// Programs notice no difference to TCP. A direction that ends is ended on the other side, and the other direction goes on. A connection that
// is reset, or lost with its session, is reset on the other side. A target that cannot be reached is a connection that is reset at once.
//
// A stream begins with a request of the Client and a reply of the Server, then it has the bytes of the connection. The package knows
// streams as net.Conn and net.Listener only.
package forward
