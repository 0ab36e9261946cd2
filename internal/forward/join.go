package forward

import (
	"context"
	"io"
	"net"
	"sync"
)

// join copies both ways until both directions have ended, and closes both connections. If one direction fails, or ctx ends, it resets both.
func join(ctx context.Context, a, b net.Conn) {
	defer context.AfterFunc(ctx, func() {
		reset(a)
		reset(b)
	})()
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
	_ = a.Close()
	_ = b.Close()
}

// pass copies one direction and passes its end on.
func pass(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.(interface{ CloseWrite() error }).CloseWrite()
	}
	if err != nil {
		reset(from)
		reset(to)
	}
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
