package stream

import (
	"fmt"
	"net"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/internal/broadcast"
	"ibverbx/internal/service"
)

const (
	lingerTime = 4 * time.Second
	reapTime   = 30 * time.Second
)

// Conn is a stream. It implements net.Conn, io.ReaderFrom and io.WriterTo. All methods are safe for concurrent use; concurrent Reads, and
// concurrent Writes, are serialized.
type Conn struct {
	peer    *peer
	session service.Session
	service string
	block   block
	// id is the local stream id.
	id     uint16
	dialed bool
	// reading is held by Read and WriteTo, writing by Write and ReadFrom, even while they block or call the program's Reader or Writer.
	reading, writing sync.Mutex
	// responded is closed when a dialed stream is open or has failed, drained when all written bytes have been delivered or dropped.
	responded, drained chan struct{}

	// mu guards everything below.
	mu sync.Mutex
	// open is set when the peer's id and ring are known.
	open     bool
	remoteID uint16
	ring     ibverbx.RemoteRegion
	// closed is set by Close; err is the reason for the loss of the stream.
	closed bool
	err    error
	// released is set when the memory has returned to the pool.
	released bool
	// reaper enforces the timeouts after Close. lingered is set after its first call.
	reaper   *time.Timer
	lingered bool
	in       inbound
	out      outbound
}

func newConn(p *peer, s service.Session, service string, b block) *Conn {
	c := &Conn{
		peer: p, session: s, service: service, block: b, responded: make(chan struct{}), drained: make(chan struct{}),
	}
	c.in.init(c)
	c.out.init(c)
	return c
}

// establish records the peer's side of the stream.
func (c *Conn) establish(far uint16, ring ibverbx.RemoteRegion) {
	c.mu.Lock()
	c.open, c.remoteID, c.ring = true, far, ring
	c.out.bind(c)
	closeOnce(c.responded)
	c.unlock()
}

// closeOnce closes a channel, once.
func closeOnce(c chan struct{}) {
	if !broadcast.Closed(c) {
		close(c)
	}
}

// unlock releases mu, and the stream's memory if it is unused.
func (c *Conn) unlock() {
	in, out := &c.in, &c.out
	over := c.err != nil || in.ended && out.ended
	busy := out.flight > 0 || out.pushing || out.copying || in.updating || in.copying
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

// lose fails the stream.
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
	closeOnce(c.responded)
	closeOnce(c.drained)
	broadcast.Wake(c.in.wake)
	broadcast.Wake(c.out.wake)
}

// await waits for a token. The caller must recheck its condition, because the token may be stale.
func (c *Conn) await(p *spinPolicy, wake chan struct{}) {
	if len(wake) == 0 {
		c.peer.drive(p, func() bool { return len(wake) > 0 })
	}
	<-wake
}

// isClosed reports whether the program has closed the stream. The zero value counts as closed. mu is held.
func (c *Conn) isClosed() bool { return c.closed || c.peer == nil }

// Close closes both directions and waits up to 4 seconds for delivery, see the package comment. A second Close returns net.ErrClosed.
func (c *Conn) Close() error { return c.close(false) }

// Reset aborts the stream. The peer reads the data that fits its ring, then gets syscall.ECONNRESET instead of io.EOF; the rest is dropped.
// After CloseWrite the peer still gets io.EOF, unless some of the data does not fit. Reset waits like Close.
func (c *Conn) Reset() error { return c.close(true) }

func (c *Conn) close(reset bool) error {
	c.mu.Lock()
	if c.isClosed() {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.in.stopped, c.out.end = true, true
	if reset || c.in.head != c.in.tail {
		c.abort()
	}
	c.in.deadline.stop()
	c.out.deadline.stop()
	broadcast.Wake(c.in.wake)
	broadcast.Wake(c.out.wake)
	c.reaper = time.AfterFunc(c.peer.owner.linger, c.linger)
	c.unlock()
	c.push()
	c.returnCredit()
	c.peer.drive(nil, func() bool { return broadcast.Closed(c.drained) })
	<-c.drained
	return nil
}

// abort marks the stream as aborted, for example because Close discards unread data. Data beyond the peer's credit is dropped: a peer
// waiting for this side to read would not return credit. If no data is dropped after CloseWrite, the peer still gets io.EOF. mu is held.
func (c *Conn) abort() {
	if o := &c.out; !o.ending {
		tail := min(o.tail, o.acked+c.ring.Length)
		o.truncated = o.truncated || !o.finished || tail < o.tail
		o.tail = tail
	}
}

// linger enforces the timeouts after Close.
func (c *Conn) linger() {
	c.mu.Lock()
	if c.released {
		c.mu.Unlock()
		return
	}
	// If a direction is open, the peer is late. Otherwise a local goroutine is in ReadFrom or WriteTo.
	again, late := c.lingered, !c.in.ended || !c.out.ended
	c.lingered = true
	c.dropUnposted()
	if !again {
		c.reaper.Reset(c.peer.owner.reap)
	}
	c.unlock()
	if c.push(); again && late {
		c.session.End(fmt.Errorf("stream: %w: the peer does not close stream %d", errProtocol, c.id))
	}
}

// CloseRead makes Read return io.EOF. Unread data is dropped, and the peer's Write fails with syscall.EPIPE. After Close it returns
// net.ErrClosed.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	if c.isClosed() {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.in.stopped = true
	broadcast.Wake(c.in.wake)
	c.unlock()
	c.returnCredit()
	return nil
}

// CloseWrite makes the peer's Read return io.EOF after the data written so far. It does not wait for delivery, see Done. After Close it
// returns net.ErrClosed.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	if c.isClosed() {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.out.end, c.out.finished = true, true
	broadcast.Wake(c.out.wake)
	c.unlock()
	c.push()
	return nil
}

// Done returns a channel that is closed when sending is over: the peer has all data up to CloseWrite or Close, it has stopped reading, or
// the session is lost. A ReadFrom blocked in its Reader does not notice that. Close returns immediately afterwards.
func (c *Conn) Done() <-chan struct{} { return c.drained }

// LocalAddr returns the local Node's address with the service, as an Addr.
func (c *Conn) LocalAddr() net.Addr {
	if c.peer == nil {
		return Addr{}
	}
	return c.peer.owner.addr(c.service)
}

// RemoteAddr returns the peer's address with the service, as an Addr.
func (c *Conn) RemoteAddr() net.Addr {
	if c.peer == nil {
		return Addr{}
	}
	return c.peer.addr(c.service)
}

// addr returns the peer's address with the service.
func (p *peer) addr(service string) Addr {
	a := Addr{Service: service}
	if at := p.service.Identity().Addr; at != nil {
		a.Host = at.String()
	}
	return a
}

func (c *Conn) opError(op string, err error) error {
	if c.peer == nil {
		return &net.OpError{Op: op, Net: Addr{}.Network(), Err: err}
	}
	return c.peer.owner.opError(op, c.service, c.RemoteAddr(), err)
}
