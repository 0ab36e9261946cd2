package transfers

import (
	"errors"
	"io"
	"net"
	"sync"
)

// relay is the address at which other hosts dial a host. It forwards connections to the current process, and can close them all, like a
// network failure.
type relay struct {
	listener net.Listener
	work     sync.WaitGroup

	mu sync.Mutex
	// target is the address of the current process, or empty.
	target string
	closed bool
	conns  map[net.Conn]bool
}

func newRelay() (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: l, conns: map[net.Conn]bool{}}
	r.work.Go(r.accept)
	return r, nil
}

func (r *relay) addr() string { return r.listener.Addr().String() }

// aim sets the target of new connections.
func (r *relay) aim(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

func (r *relay) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() { r.pass(in) })
	}
}

// pass forwards a connection until one of its ends is closed.
func (r *relay) pass(in net.Conn) {
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	out, err := net.Dial("tcp", target)
	if err != nil {
		_ = in.Close() // like a refused connection
		return
	}
	if !r.hold(in, out) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(out, in); r.drop(in, out) }) // an end of either is the end of both
	both.Go(func() { _, _ = io.Copy(in, out); r.drop(in, out) })
	both.Wait()
}

// hold records connections. If the relay is closed, it closes them.
func (r *relay) hold(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.closed {
			_ = c.Close() // still unused
			continue
		}
		r.conns[c] = true
	}
	return !r.closed
}

func (r *relay) drop(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.conns[c] {
			delete(r.conns, c)
			_ = c.Close() // unused
		}
	}
}

// cut closes all connections and returns their number.
func (r *relay) cut() int {
	r.mu.Lock()
	var all []net.Conn
	for c := range r.conns {
		all = append(all, c)
	}
	r.mu.Unlock()
	r.drop(all...)
	return len(all)
}

func (r *relay) close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	err := r.listener.Close()
	r.cut()
	r.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
