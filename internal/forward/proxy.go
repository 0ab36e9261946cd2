package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// grace is the time until a connection is reset after the peer has closed its direction and stopped
// reading. The program may still have to read data.
const grace = time.Second

// duplex is a stream of package stream.
type duplex interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	Done() <-chan struct{}
}

// join copies both ways until both directions are closed, then closes the stream s and the
// connection c. If a direction fails or ctx is done, it resets both. It returns the number of bytes copied, and the error of a direction.
func join(ctx context.Context, s, c net.Conn) (moved, error) {
	j := &proxiedConn{stream: s.(duplex), conn: c, sent: make(chan struct{})}
	defer context.AfterFunc(ctx, j.reset)()
	var both sync.WaitGroup
	both.Go(func() { j.send(ctx) })
	both.Go(j.receive)
	both.Wait()
	setLinger(c, -1) // the kernel delivers data still in its buffers
	_ = c.Close()
	_ = s.Close()
	return j.moved, errors.Join(j.sendErr, j.receiveErr)
}

// moved counts the bytes copied from the stream and to it.
type moved struct{ received, sent int64 }

// proxiedConn is a stream and its connection.
type proxiedConn struct {
	stream duplex
	conn   net.Conn
	// sent is closed when send has returned.
	sent chan struct{}
	// moved and the errors of both directions are valid once both have ended.
	moved               moved
	sendErr, receiveErr error
}

// reset resets both. Resetting the stream may wait for its peer, so it is done last.
func (j *proxiedConn) reset() {
	reset(j.conn)
	reset(j.stream)
}

// send copies from the connection to the stream, and waits until the peer has received everything.
// The reader may take any time.
func (j *proxiedConn) send(ctx context.Context) {
	defer close(j.sent)
	n, err := io.Copy(j.stream, j.conn)
	if err == nil {
		err = j.stream.CloseWrite()
	}
	j.moved.sent, j.sendErr = n, err
	switch {
	case err == nil:
		select {
		case <-j.stream.Done():
		case <-ctx.Done():
		}
	case ofRead(err):
		j.reset()
	default:
		// The peer discards the rest. Keep reading, so that the program is not stuck in a write and
		// can read a response.
		_, _ = io.Copy(io.Discard, j.conn)
	}
}

// receive copies from the stream to the connection.
func (j *proxiedConn) receive() {
	n, err := io.Copy(j.conn, j.stream)
	if err == nil {
		err = j.conn.(interface{ CloseWrite() error }).CloseWrite()
	}
	j.moved.received, j.receiveErr = n, err
	switch {
	case err == nil:
	case ofRead(err):
		j.reset()
		return
	default:
		_ = j.stream.CloseRead() // data from the connection is still sent
	}
	// A send blocked in reading the connection does not notice that the peer has stopped reading.
	select {
	case <-j.sent:
		return
	case <-j.stream.Done():
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case <-j.sent:
	case <-wait.C:
		j.reset()
	}
}

// ofRead reports whether an error of io.Copy is a read error.
func ofRead(err error) bool {
	var op *net.OpError
	for errors.As(err, &op) {
		if op.Op == "read" {
			return true
		}
		err = op.Err
	}
	return false
}

// setLinger makes Close reset a TCP connection (0), or deliver buffered data first (-1, the default). Connections have 0
// from the start until join has moved all data, so that the kernel resets them if this process is killed.
func setLinger(c net.Conn, seconds int) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(seconds)
	}
}

// reset closes a connection abortively, so that the other end does not see a regular end of data.
// It may be called again.
func reset(c net.Conn) {
	if s, ok := c.(interface{ Reset() error }); ok { // a stream
		_ = s.Reset()
		return
	}
	setLinger(c, 0)
	_ = c.Close()
}
