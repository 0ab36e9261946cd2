// Package stream gives programs a net.Conn and a net.Listener over the NICs of a node.Node. Streams are encrypted and authenticated
// if the packets of the session are: between software NICs they are, unless node.Config.Unsealed is set. Packets of hardware are
// neither (see [Info.Sealed]). The peer itself is always authenticated, and the names of services and all keys go over an
// encrypted connection. Use crypto/tls on top of a stream over hardware.
//
//	l, err := stream.Listen(n, "grpc")         // a net.Listener: http.Serve(l, h), grpc.Server.Serve(l)
//	c, err := stream.Dial(ctx, peer, "grpc")   // a net.Conn
//	t := &http.Transport{DialContext: stream.Dialer(n)}
//
// All streams with a peer share the queue pairs of its session. A stream is cut into messages that all rails carry, so it uses all
// NICs, and losing one of them only costs time. If the session is lost, its streams end: Read and Write return
// syscall.ECONNRESET, and the program dials again.
//
// # How it works
//
// Each side of a stream has a ring for each direction. Write copies into the send ring and returns. The bytes are written into the
// peer's receive ring with RDMA, and an immediate says how many there are. Read copies out of the receive ring and tells
// the peer now and then how much room there is. A stream that nobody reads stops its own sender and no other.
//
// A short Write leaves at once. While it is under way, further short ones are collected and leave together when it has arrived. There is
// no timer.
//
// # Ends
//
// CloseWrite ends one direction: the peer reads what was written before, then io.EOF. Close ends both. It returns when the peer's
// NIC has all bytes, after at most 4 seconds: then the peer reads what has arrived and gets syscall.ECONNRESET. That
// also happens if Close throws away bytes that were not read, as with TCP. A Write to a peer that does not read any more returns
// syscall.EPIPE. Reset is a Close that the peer cannot take for a proper end.
//
// Errors are of type *net.OpError, apart from io.EOF. All functions and methods may be called from any goroutine.
package stream
