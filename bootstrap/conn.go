package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Room for messages. A message costs its length and messageCost, so that empty ones are
// not free.
const (
	window      = 4 << 20
	minWindow   = MaxMessage + messageCost
	maxWindow   = 1 << 30
	messageCost = 64
)

// Message is what a peer has sent.
type Message struct {
	Kind Kind
	Body []byte
}

func cost(body []byte) int { return len(body) + messageCost }

// Conn is a connection to a peer that has proved who it is. Its methods may be called by
// several goroutines at a time. It has two goroutines of its own, which end with it.
type Conn struct {
	peer     Peer
	raw      net.Conn
	stream   net.Conn
	read     *bufio.Reader
	dead     time.Duration // silence that means death
	interval time.Duration // of this side's keepalives

	loops sync.WaitGroup
	done  chan struct{} // closed when err is set
	wake  chan struct{} // one token: there is something to write
	ended func()        // called once, when err is set

	mu      sync.Mutex
	changed sync.Cond // the inbox, the credit or err
	err     error
	closing bool
	parting string // what the peer is told in the end

	inbox  []Message
	open   int // bytes that the peer may still send
	owed   int // bytes that were taken and not granted again
	credit int // bytes that this side may still send
	outbox [][]byte

	datagrams struct{ in, out datagrams }
	onDatum   func()
	stats     ConnStats
}

// ConnStats counts what a Conn did.
type ConnStats struct {
	MessagesIn, MessagesOut   uint64
	DatagramsIn, DatagramsOut uint64
	// DatagramsLost counts those that a full queue of this side, or a control channel that
	// nobody uses, has dropped.
	DatagramsLost uint64
	KeepalivesIn  uint64
}

// newConn makes a Conn of a stranger that has proved itself.
func newConn(s *stranger, peer Peer, h hello) *Conn {
	c := &Conn{
		peer: peer, raw: s.raw, stream: s.stream, read: bufio.NewReaderSize(s.stream, 64<<10),
		dead: s.cfg.DeadAfter, interval: min(s.cfg.DeadAfter, h.deadAfter) / 3,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		open: window, credit: int(h.window),
	}
	c.changed.L = &c.mu
	return c
}

// start lets the goroutines run. ended, if not nil, is called once when the Conn has ended.
func (c *Conn) start(ended func()) {
	c.ended = ended
	c.loops.Add(2)
	go c.reader()
	go c.writer()
}

// Peer says who is at the other end.
func (c *Conn) Peer() Peer { return c.peer }

// LocalAddr is the address of this side.
func (c *Conn) LocalAddr() net.Addr { return c.raw.LocalAddr() }

// Done is closed when the Conn has ended; Err says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil as long as the Conn lives, and then says what ended it.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Stats returns the counters.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Send queues a message. It waits while the peer has no room for it, until ctx ends. The
// body may be used again when it returns. That it returns nil does not mean that the peer
// has it; Close sends what is queued.
func (c *Conn) Send(ctx context.Context, kind Kind, body []byte) error {
	if kind == 0 || kind >= kindEnd {
		return fmt.Errorf("send to %v: %w: there is no message of kind %d", c.peer.Addr, ErrConfig, kind)
	}
	if len(body) > MaxMessage {
		return fmt.Errorf("send to %v: %w: a message of %d bytes, at most %d fit", c.peer.Addr, ErrTooLong, len(body), MaxMessage)
	}
	frame := appendFrame(make([]byte, 0, headerLen+len(body)), frameMessage, kind, body)
	defer c.watch(ctx)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.closing && c.credit < cost(body) && ctx.Err() == nil {
		c.changed.Wait()
	}
	switch {
	case c.err != nil:
		return fmt.Errorf("send to %v: %w", c.peer.Addr, c.err)
	case c.closing:
		return fmt.Errorf("send to %v: %w", c.peer.Addr, ErrClosed)
	case ctx.Err() != nil:
		return fmt.Errorf("send to %v: %w", c.peer.Addr, ctx.Err())
	}
	c.credit -= cost(body)
	c.outbox = append(c.outbox, frame)
	c.stats.MessagesOut++
	c.nudge()
	return nil
}

// Recv takes the next message, waiting for one until ctx ends. What came before the Conn
// ended can still be taken.
func (c *Conn) Recv(ctx context.Context) (Message, error) {
	defer c.watch(ctx)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.inbox) == 0 && c.err == nil && ctx.Err() == nil {
		c.changed.Wait()
	}
	switch {
	case len(c.inbox) > 0:
	case c.err != nil:
		return Message{}, fmt.Errorf("receive from %v: %w", c.peer.Addr, c.err)
	default:
		return Message{}, fmt.Errorf("receive from %v: %w", c.peer.Addr, ctx.Err())
	}
	m := c.inbox[0]
	c.inbox[0] = Message{}
	c.inbox = c.inbox[1:]
	if c.owed += cost(m.Body); c.owed >= window/4 {
		c.nudge()
	}
	return m, nil
}

// watch wakes those who wait when ctx ends. The function that it returns ends that.
func (c *Conn) watch(ctx context.Context) func() bool {
	return context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
}

// nudge tells the writer that there is something to write.
func (c *Conn) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// fail ends the Conn, if nothing has before.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.done)
		c.changed.Broadcast()
	}
	datum := c.onDatum
	c.mu.Unlock()
	if !first {
		return
	}
	// TLS would wait for a peer that does not read; what is to be said was said before.
	_ = c.raw.Close()
	if datum != nil {
		datum()
	}
	if c.ended != nil {
		c.ended()
	}
}

// Close sends what is queued, tells the peer and ends the Conn, within a second. It may be
// called again.
func (c *Conn) Close() error { return c.CloseWith("") }

// CloseWith is Close with a reason, which the peer finds in its ErrPeerClosed; 256 bytes of
// it count.
func (c *Conn) CloseWith(reason string) error {
	c.mu.Lock()
	if c.closing || c.err != nil {
		c.mu.Unlock()
		<-c.done
		c.loops.Wait()
		return nil
	}
	c.closing, c.parting = true, clip(reason)
	c.changed.Broadcast()
	c.mu.Unlock()
	deadline := time.AfterFunc(lingerTime, func() { c.fail(ErrClosed) })
	defer deadline.Stop()
	c.nudge()
	c.loops.Wait()
	c.fail(ErrClosed)
	if err := c.Err(); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerClosed) {
		return fmt.Errorf("close connection to %v: %w", c.peer.Addr, err)
	}
	return nil
}
