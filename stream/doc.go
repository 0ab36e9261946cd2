// Package stream provides net.Conn and net.Listener over all NICs of a node.Node.
//
//	l, err := stream.Listen(n, "grpc")         // a net.Listener: http.Serve(l, h), grpc.Server.Serve(l)
//	c, err := stream.Dial(ctx, peer, "grpc")   // a net.Conn
//	t := &http.Transport{DialContext: stream.Dialer(n)}
//	o := grpc.WithContextDialer(stream.ContextDialer(n))
//
// All streams to a peer share the queue pairs of its session. Data is striped across all rails, so a stream survives the loss of a NIC. If
// the session is lost, Read and Write return syscall.ECONNRESET and the program must redial.
//
// # Security
//
// Peers are always authenticated. Service names and keys travel over an encrypted connection. Data is encrypted between software NICs
// unless node.Config.Unsealed is set (see [Info.Sealed]). RDMA hardware does not encrypt: use crypto/tls on top.
//
// # Flow control
//
// Each direction has a ring on each side. Write copies into the send ring and returns. RDMA WRITEs fill the peer's receive ring; an
// immediate carries the byte count. Read drains the ring and returns credit. An unread stream blocks only its own sender. Short writes are
// coalesced while another is in flight, without a timer. Conn.push (send.go) posts the data in the send ring. Conn.arrived (receive.go)
// handles the immediates that announce received data.
//
// # Closing
//
// CloseWrite half-closes: the peer reads the remaining data, then io.EOF. Close closes both directions and waits up to 4 seconds for
// delivery; on timeout, or if unread data is discarded, the peer gets syscall.ECONNRESET. Write returns syscall.EPIPE if the peer has
// stopped reading. Reset aborts: the peer gets syscall.ECONNRESET. If CloseWrite was called before and all data fits the peer's ring, the
// peer still gets io.EOF.
//
// Errors are of type *net.OpError, except io.EOF and the errors of the Reader or Writer passed to ReadFrom and WriteTo. All functions and
// methods are safe for concurrent use.
//
// # Changes
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. A change to the messages or immediates (wire.go) needs
// a new version.
package stream
