package stream

import (
	"fmt"
	"net"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/internal/service"
)

const (
	lingerTime = 4 * time.Second
	reapTime   = 30 * time.Second
)

// Conn is a stream. It implements net.Conn.
type Conn struct {
	peer    *peer
	session service.Session
	service string
	block   block
	// id is that of this side.
	id     uint16
	dialed bool
	// reading is held by Read and WriteTo, and writing by Write and ReadFrom, also while they wait or call the program's Reader or Writer.
	reading, writing sync.Mutex
	// answered is closed when a stream that was dialed is open or has failed, drained when all bytes that were written have
	// reached the peer or never will.
	answered, drained chan struct{}

	// mu guards everything below.
	mu sync.Mutex
	// open says that the peer's id and ring are known.
	open bool
	far  uint16
	ring ibverbx.RemoteRegion
	// closed says that Close was called, and err why the stream was lost.
	closed bool
	err    error
	// released says that the memory is not the stream's any more.
	released bool
	// reaper ends a stream that does not end by itself after Close. lingered says that it was called once.
	reaper   *time.Timer
	lingered bool
	in       inbound
	out      outbound
}

func newConn(p *peer, s service.Session, service string, b block) *Conn {
	c := &Conn{
		peer: p, session: s, service: service, block: b, answered: make(chan struct{}), drained: make(chan struct{}),
	}
	c.in.init(c)
	c.out.init(c)
	return c
}

// establish notes the peer's side of the stream.
func (c *Conn) establish(far uint16, ring ibverbx.RemoteRegion) {
	c.mu.Lock()
	c.open, c.far, c.ring = true, far, ring
	c.out.bind(c)
	shut(c.answered)
	c.unlock()
}

// shut closes a channel, once.
func shut(c chan struct{}) {
	if !isShut(c) {
		close(c)
	}
}

// isShut reports whether a channel without values is closed.
func isShut(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// signal wakes the goroutine that waits for a token.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// unlock gives mu back. If nobody uses the memory of the stream any more, it gives that back too.
func (c *Conn) unlock() {
	in, out := &c.in, &c.out
	over := c.err != nil || in.ended && out.ended
	busy := out.flight > 0 || out.pushing || out.copying || in.telling || in.copying
	done := c.closed && over && !busy && !c.released
	if done {
		c.released = true
		if c.reaper != nil {
			c.reaper.Stop()
		}
	}
	c.mu.Unlock()
	if done {
		c.peer.remove(c)
	}
}

// lose ends the stream because of an error.
func (c *Conn) lose(err error) {
	c.mu.Lock()
	c.fail(err)
	c.unlock()
}

// fail is lose with mu held.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	if c.err = err; c.open && !c.closed {
		c.peer.traffic.resets.Add(1)
	}
	shut(c.answered)
	shut(c.drained)
	signal(c.in.wake)
	signal(c.out.wake)
}

// await waits for a token. The caller then looks again: a token may be older than its last look.
func (c *Conn) await(p *patience, wake chan struct{}) {
	if len(wake) == 0 {
		c.peer.drive(p, func() bool { return len(wake) > 0 })
	}
	<-wake
}

// Close ends both directions, see the package comment.
func (c *Conn) Close() error { return c.close(false) }

// Reset is Close for a program that gives up: behind those bytes that the peer has room for, it reads syscall.ECONNRESET instead of io.EOF. The rest
// is dropped. A direction that CloseWrite has ended stays ended, unless bytes of it still wait for room.
func (c *Conn) Reset() error { return c.close(true) }

func (c *Conn) close(reset bool) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.in.stopped, c.out.end = true, true
	if reset || c.in.head != c.in.tail {
		c.unwanted()
	}
	c.in.deadline.stop()
	c.out.deadline.stop()
	signal(c.in.wake)
	signal(c.out.wake)
	c.reaper = time.AfterFunc(c.peer.host.linger, c.linger)
	c.unlock()
	c.push()
	c.tell()
	c.peer.drive(nil, func() bool { return isShut(c.drained) })
	<-c.drained
	return nil
}

// unwanted notes that the stream does not end well, for example because Close throws bytes of the peer away. What the peer has no room for is
// dropped: a peer that waits for this side to read would not make room. mu is held.
func (c *Conn) unwanted() {
	if o := &c.out; !o.ending {
		o.cut = true
		o.tail = min(o.tail, o.acked+c.ring.Length)
	}
}

// linger ends what Close has waited for too long.
func (c *Conn) linger() {
	c.mu.Lock()
	if c.released {
		c.mu.Unlock()
		return
	}
	// Without the end of both directions the peer is late. Otherwise a goroutine of this side is in ReadFrom or WriteTo.
	again, late := c.lingered, !c.in.ended || !c.out.ended
	c.lingered = true
	c.cut()
	if !again {
		c.reaper.Reset(c.peer.host.reap)
	}
	c.unlock()
	if c.push(); again && late {
		c.session.End(fmt.Errorf("stream: %w: the peer does not close stream %d", errProtocol, c.id))
	}
}

// CloseRead makes Read return io.EOF. What the peer has written and this side has not read is lost, and the peer's Write fails.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.in.stopped = true
	signal(c.in.wake)
	c.unlock()
	c.tell()
	return nil
}

// CloseWrite makes the peer's Read return io.EOF behind what was written. It does not wait for that.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.out.end = true
	signal(c.out.wake)
	c.unlock()
	c.push()
	return nil
}

// Done returns a channel that is closed when the peer will get nothing more: it has all bytes up to the end of CloseWrite, it does not read any
// more, or the session is lost. A ReadFrom that waits for its Reader does not notice that. Close does not wait afterwards.
func (c *Conn) Done() <-chan struct{} { return c.drained }

// LocalAddr is the address of this side's Node, with the service.
func (c *Conn) LocalAddr() net.Addr { return c.peer.host.addr(c.service) }

// RemoteAddr is the address of the peer's connection, with the service.
func (c *Conn) RemoteAddr() net.Addr { return c.peer.addr(c.service) }

// addr is the address of a service of the peer.
func (p *peer) addr(service string) Addr {
	a := Addr{Service: service}
	if at := p.service.Identity().Addr; at != nil {
		a.Host = at.String()
	}
	return a
}

func (c *Conn) opError(op string, err error) error {
	return c.peer.host.opError(op, c.service, c.RemoteAddr(), err)
}
