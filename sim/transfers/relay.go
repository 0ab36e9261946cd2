package transfers

import (
	"errors"
	"io"
	"net"
	"sync"
)

// relay is where the others dial a host. It passes connections on to the present process, and can end them all, as a network does.
type relay struct {
	listener net.Listener
	work     sync.WaitGroup

	mu sync.Mutex
	// target is the address of the present process, empty if there is none.
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

// aim makes new connections go to an address.
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

// pass passes a connection on until one of its ends is closed.
func (r *relay) pass(in net.Conn) {
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	out, err := net.Dial("tcp", target)
	if err != nil {
		_ = in.Close() // as if nobody had listened
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

// hold notes connections, unless the relay is closed: then it closes them.
func (r *relay) hold(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.closed {
			_ = c.Close() // nobody uses it yet
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
			_ = c.Close() // it is of no more use
		}
	}
}

// cut ends all connections. It returns how many there were.
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
