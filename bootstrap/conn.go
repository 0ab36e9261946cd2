package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"ibverbx/internal/broadcast"
	"ibverbx/internal/ring"
)

// Flow control of messages, in bytes. A message costs its length plus messageCost, so that
// empty messages are not free. The window bounds the queues of this side in each direction: the
// peer's window may be larger.
const (
	window      = 4 << 20
	minWindow   = MaxMessage + messageCost
	maxWindow   = 1 << 30
	messageCost = 64
)

// readBytes is the read buffer size. Longer messages bypass the buffer.
const readBytes = 8 << 10

// Message is a message from the peer.
type Message struct {
	// Kind is the subject.
	Kind Kind
	// Body is the content, at most MaxMessage bytes. The receiver owns it.
	Body []byte
}

func cost(body []byte) int { return len(body) + messageCost }

// Conn is a connection to an authenticated peer. Its methods are safe for concurrent use.
// It runs two goroutines until it is closed.
type Conn struct {
	peer     Peer
	admitted admission
	secret   func() []byte // see Secret; package fmt prints the bytes of other types
	raw      net.Conn
	stream   net.Conn
	read     *bufio.Reader
	dead     time.Duration // the peer is dead after this much silence
	interval time.Duration // between keepalives of this side

	loops   sync.WaitGroup
	done    chan struct{} // closed when err is set
	wake    chan struct{} // wakes the writer
	onClose func()        // called once, when err is set

	mu          sync.Mutex
	changed     sync.Cond // signals changes of inbox, credit, queued and err
	err         error
	closing     bool
	closeReason string // the reason sent with frameBye

	inbox      []Message
	recvCredit int // bytes the peer may still send
	ungranted  int // bytes freed by Recv and not yet granted to the peer
	sendCredit int // bytes this side may still send
	outbox     [][]byte
	queued     int // cost of the messages in outbox, at most window

	datagrams  struct{ in, out ring.Datagrams }
	onDatagram func()
	stats      ConnStats
}

// ConnStats holds a Conn's counters.
type ConnStats struct {
	// MessagesIn and MessagesOut count received and queued messages.
	MessagesIn, MessagesOut uint64
	// DatagramsIn and DatagramsOut count received and sent datagrams.
	DatagramsIn, DatagramsOut uint64
	// DatagramsLost counts datagrams dropped on this side because a queue was full or the
	// control channel was not in use.
	DatagramsLost uint64
	// KeepalivesIn counts received keepalives.
	KeepalivesIn uint64
}

// newConn returns a Conn for an authenticated connection.
func newConn(s *unauthConn, peer Peer, h hello) *Conn {
	secret := s.secret
	c := &Conn{
		peer: peer, admitted: s.admitted, secret: func() []byte { return slices.Clone(secret) }, raw: s.raw, stream: s.stream, read: bufio.NewReaderSize(s.stream, readBytes),
		dead: s.cfg.DeadAfter, interval: min(s.cfg.DeadAfter, h.deadAfter) / 3,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		recvCredit: window, sendCredit: int(h.window),
	}
	c.changed.L = &c.mu
	return c
}

// start starts the goroutines. ended, if not nil, is called once when the Conn is closed.
func (c *Conn) start(ended func()) {
	c.onClose = ended
	c.loops.Add(2)
	go c.reader()
	go c.writer()
}

// Peer describes the authenticated peer.
func (c *Conn) Peer() Peer { return c.peer }

// LocalAddr returns the local address.
func (c *Conn) LocalAddr() net.Addr {
	if !c.isOpen() {
		return nil
	}
	return c.raw.LocalAddr()
}

// isOpen reports whether the Conn has a connection. A nil or zero Conn counts as closed.
func (c *Conn) isOpen() bool { return c != nil && c.done != nil }

// Done returns a channel that is closed when the Conn is closed; Err then returns the reason.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns nil while the Conn is open. Afterwards it returns the reason: ErrClosed, ErrPeerClosed, ErrSilent, ErrRestarted, ErrProtocol,
// ErrAuth or a network error.
func (c *Conn) Err() error {
	if !c.isOpen() {
		return ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Stats returns the current counters.
func (c *Conn) Stats() ConnStats {
	if !c.isOpen() {
		return ConnStats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Send queues a message. It blocks until both sides have space for it or ctx is done. The caller may reuse body when Send returns. A nil
// error does not mean that the peer has received the message; Close still sends queued messages. Send returns ErrTooLong if body exceeds
// MaxMessage, ErrConfig for an unknown kind, ErrClosed after Close, and the reason of Err once the Conn is closed.
func (c *Conn) Send(ctx context.Context, kind Kind, body []byte) error {
	if !c.isOpen() {
		return ErrClosed
	}
	if err := checkContext(ctx); err != nil {
		return err
	}
	if kind == 0 || kind >= kindEnd {
		return fmt.Errorf("send to %v: %w: unknown message kind %d", c.peer.Addr, ErrConfig, kind)
	}
	if len(body) > MaxMessage {
		return fmt.Errorf("send to %v: %w: message has %d bytes, at most %d are allowed", c.peer.Addr, ErrTooLong, len(body), MaxMessage)
	}
	frame := appendFrame(make([]byte, 0, headerLen+len(body)), frameMessage, kind, body)
	defer c.watch(ctx)()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.closing && (c.sendCredit < cost(body) || c.queued+cost(body) > window) && ctx.Err() == nil {
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
	c.sendCredit -= cost(body)
	c.queued += cost(body)
	c.outbox = append(c.outbox, frame)
	c.stats.MessagesOut++
	c.wakeWriter()
	return nil
}

// Recv returns the next message, and blocks until one arrives or ctx is done. Messages that arrived before the Conn was closed are still
// returned; then Recv returns the reason of Err.
func (c *Conn) Recv(ctx context.Context) (Message, error) {
	if !c.isOpen() {
		return Message{}, ErrClosed
	}
	if err := checkContext(ctx); err != nil {
		return Message{}, err
	}
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
	if c.ungranted += cost(m.Body); c.ungranted >= window/4 {
		c.wakeWriter()
	}
	return m, nil
}

// watch wakes the waiting goroutines when ctx is done. The returned function stops that.
func (c *Conn) watch(ctx context.Context) func() bool {
	return context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
}

// wakeWriter wakes the writer.
func (c *Conn) wakeWriter() {
	broadcast.Wake(c.wake)
}

// fail closes the Conn with err, unless it is already closed.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.done)
		c.changed.Broadcast()
	}
	datum := c.onDatagram
	c.mu.Unlock()
	if !first {
		return
	}
	// Closing TLS would wait for a peer that does not read, so only the socket is closed.
	_ = c.raw.Close()
	if datum != nil {
		datum()
	}
	if c.onClose != nil {
		c.onClose()
	}
}

// Farewell is the first half of Close: it never blocks. The peer observes Close within a second.
// Call Close as well.
func (c *Conn) Farewell() {
	if c.isOpen() {
		c.startClosing("")
	}
}

// startClosing starts closing the Conn, and returns the timer that bounds it. It returns nil if the
// Conn is closing or closed.
func (c *Conn) startClosing(reason string) *time.Timer {
	c.mu.Lock()
	if c.closing || c.err != nil {
		c.mu.Unlock()
		return nil
	}
	c.closing, c.closeReason = true, clip(reason)
	c.changed.Broadcast()
	c.mu.Unlock()
	c.wakeWriter()
	return time.AfterFunc(lingerTime, func() { c.fail(ErrClosed) })
}

// Close sends the queued messages, notifies the peer and closes the Conn, within a second. It may be called again.
func (c *Conn) Close() error { return c.CloseWith("") }

// CloseWith is Close with a reason, which is part of the peer's ErrPeerClosed. The reason is truncated to 256 bytes.
func (c *Conn) CloseWith(reason string) error {
	if !c.isOpen() {
		return ErrClosed
	}
	deadline := c.startClosing(reason)
	if deadline == nil {
		<-c.done
		c.loops.Wait()
		return nil
	}
	defer deadline.Stop()
	c.loops.Wait()
	c.fail(ErrClosed)
	if err := c.Err(); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPeerClosed) {
		return fmt.Errorf("close connection to %v: %w", c.peer.Addr, err)
	}
	return nil
}
