package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// grace is how long a program may go on with a connection of which the other end takes nothing any more, and has sent its end. It may still
// have to read that. Then the connection is reset.
const grace = time.Second

// duplex is a stream, as package stream has them.
type duplex interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	Done() <-chan struct{}
}

// join copies both ways until both directions have ended, and closes the stream s and the connection c. If one does not end well, or ctx ends,
// it resets both.
func join(ctx context.Context, s, c net.Conn) {
	j := &joint{stream: s.(duplex), conn: c, sent: make(chan struct{})}
	defer context.AfterFunc(ctx, j.reset)()
	var both sync.WaitGroup
	both.Go(func() { j.send(ctx) })
	both.Go(j.receive)
	both.Wait()
	_ = c.Close()
	_ = s.Close()
}

// joint is a stream and a connection that belong together.
type joint struct {
	stream duplex
	conn   net.Conn
	// sent is closed when send has returned.
	sent chan struct{}
}

// reset resets both. The stream may have to wait for its peer, so it comes last.
func (j *joint) reset() {
	reset(j.conn)
	reset(j.stream)
}

// send copies from the connection to the stream, and waits until the end is there. The reader may take any time.
func (j *joint) send(ctx context.Context) {
	defer close(j.sent)
	_, err := io.Copy(j.stream, j.conn)
	if err == nil {
		err = j.stream.CloseWrite()
	}
	switch {
	case err == nil:
		select {
		case <-j.stream.Done():
		case <-ctx.Done():
		}
	case ofRead(err):
		j.reset()
	default:
		// Nobody wants the rest. What comes the other way may be an answer, for which the program must not be stuck in a write.
		_, _ = io.Copy(io.Discard, j.conn)
	}
}

// receive copies from the stream to the connection.
func (j *joint) receive() {
	_, err := io.Copy(j.conn, j.stream)
	if err == nil {
		err = j.conn.(interface{ CloseWrite() error }).CloseWrite()
	}
	switch {
	case err == nil:
	case ofRead(err):
		j.reset()
		return
	default:
		_ = j.stream.CloseRead() // what the connection has still to say is sent
	}
	// A send that waits for the connection does not notice that the stream has ended, and nobody reads the stream any more.
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

// ofRead reports whether an error of io.Copy is one of reading.
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

// reset closes a connection so that the other end does not take it for the end of what it reads. It may be called again.
func reset(c net.Conn) {
	switch c := c.(type) {
	case interface{ Reset() error }: // a stream
		_ = c.Reset()
	case *net.TCPConn:
		_ = c.SetLinger(0)
		_ = c.Close()
	default:
		_ = c.Close()
	}
}
