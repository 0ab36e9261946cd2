package bootstrap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ibverbx/internal/printable"
)

// Listener accepts authenticated peers. Its methods are safe for concurrent use.
type Listener struct {
	*credentialWatcher
	socket     net.Listener
	ctx        context.Context // canceled by Close
	cancel     context.CancelFunc
	goroutines sync.WaitGroup
	backlog    chan *Conn

	// The credentialWatcher's lock guards everything below.

	// pending holds the connections in the handshake, oldest first.
	pending        []*pendingHandshake
	stats          ListenerStats
	failureLimiter failureLimiter
}

// pendingHandshake is a connection in the handshake.
type pendingHandshake struct {
	raw      net.Conn
	from     netip.Prefix
	replaced bool // replaced by a newer connection
}

// origin returns a prefix that all connections from one host share: the IPv4 address, or the
// 64-bit network of an IPv6 address.
func origin(addr net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{}
	}
	a, bits := ap.Addr().Unmap(), 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.WithZone("").Prefix(bits) // bits is in range, so it cannot fail
	return p
}

// oldestOfBusiest returns the half-open connection to replace: the oldest one of the origin with the
// most connections.
func oldestOfBusiest(half []*pendingHandshake) (index int) {
	count := map[netip.Prefix]int{}
	most := 0
	for _, v := range half {
		count[v.from]++
		most = max(most, count[v.from])
	}
	return slices.IndexFunc(half, func(v *pendingHandshake) bool { return count[v.from] == most })
}

// ListenerStats holds a Listener's counters.
type ListenerStats struct {
	// Admitted counts authenticated peers, Rejected all others.
	Admitted, Rejected uint64
	// HalfOpen is the number of connections in the handshake.
	HalfOpen int
}

// Listen opens a port for peers. addr is "host:port"; an empty host means all addresses. ctx only bounds the call, not the lifetime of the
// Listener. Listen returns ErrConfig for an invalid Config, ErrInsecure for plain text on a non-loopback address, or a network error.
func Listen(ctx context.Context, addr string, cfg Config) (*Listener, error) {
	cfg = cfg.withDefaults()
	if err := cmp.Or(checkContext(ctx), cfg.validate()); err != nil {
		return nil, printable.Error(fmt.Errorf("listen on %s: %w", addr, err))
	}
	w, err := newCredentialWatcher(cfg, false)
	if err != nil {
		return nil, printable.Error(fmt.Errorf("listen on %s: %w", addr, err))
	}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, printable.Error(err)
	}
	if err := w.cred.allows(socket.Addr()); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", addr, err), socket.Close())
	}
	l := &Listener{credentialWatcher: w, socket: socket, backlog: make(chan *Conn, cfg.Backlog)}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.goroutines.Add(1)
	go l.accept()
	l.start()
	return l, nil
}

// isOpen reports whether Listen returned the Listener. A nil or zero Listener counts as closed.
func (l *Listener) isOpen() bool { return l != nil && l.credentialWatcher != nil }

// Addr returns the listening address.
func (l *Listener) Addr() net.Addr {
	if !l.isOpen() {
		return nil
	}
	return l.socket.Addr()
}

// Stats returns the current counters.
func (l *Listener) Stats() ListenerStats {
	if !l.isOpen() {
		return ListenerStats{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.HalfOpen = len(l.pending)
	return s
}

// Accept returns the next authenticated peer that is still connected. It skips rejected peers; see
// Config.Rejected. It fails only if ctx is done, or with ErrClosed after Close.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	if !l.isOpen() {
		return nil, ErrClosed
	}
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	for {
		select {
		case c := <-l.backlog:
			if c.Err() == nil {
				return c, nil
			}
			_ = c.Close()
		case <-ctx.Done():
			return nil, fmt.Errorf("accept on %v: %w", l.Addr(), ctx.Err())
		case <-l.ctx.Done():
			return nil, fmt.Errorf("accept on %v: %w", l.Addr(), ErrClosed)
		}
	}
}

// accept accepts connections from the socket until it is closed.
func (l *Listener) accept() {
	defer l.goroutines.Done()
	for {
		raw, err := l.socket.Accept()
		if err != nil {
			if l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// For example out of file descriptors; a later attempt may succeed.
			select {
			case <-time.After(10 * time.Millisecond):
			case <-l.ctx.Done():
			}
			continue
		}
		l.admitPending(raw)
	}
}

// admitPending adds a half-open connection, and replaces one if the limit is reached. An honest
// peer needs only a few round trips, so the oldest of many is suspect. A host with many connections
// replaces only its own.
func (l *Listener) admitPending(raw net.Conn) {
	v := &pendingHandshake{raw: raw, from: origin(raw.RemoteAddr())}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		_ = raw.Close()
		return
	}
	if len(l.pending) >= l.cfg.MaxHandshakes {
		i := oldestOfBusiest(l.pending)
		oldest := l.pending[i]
		oldest.replaced = true
		l.pending = slices.Delete(l.pending, i, i+1)
		_ = oldest.raw.Close()
	}
	l.pending = append(l.pending, v)
	l.goroutines.Add(1)
	l.mu.Unlock()
	go l.handshake(v)
}

// handshake runs the handshake of a connection.
func (l *Listener) handshake(v *pendingHandshake) {
	defer l.goroutines.Done()
	s := &unauthConn{raw: v.raw, cfg: &l.cfg, cred: l.credentials(), gate: l.gate, failureLimiter: &l.failureLimiter, from: v.from}
	c, err := s.admit(l.ctx)
	if l.removePending(v) {
		_ = v.raw.Close() // it may have been admitted just now
		err = fmt.Errorf("%w: replaced by newer connections during a slow handshake", ErrBusy)
	}
	if err == nil {
		err = l.enqueue(c)
	}
	if err == nil {
		return
	}
	l.mu.Lock()
	l.stats.Rejected++
	l.mu.Unlock()
	if l.cfg.Rejected != nil && l.ctx.Err() == nil && l.shouldReport(v, err) {
		l.cfg.Rejected(v.raw.RemoteAddr(), err)
	}
}

// shouldReport reports whether to call Config.Rejected for an error. Failed authentications are reported once per burst.
func (l *Listener) shouldReport(v *pendingHandshake, err error) bool {
	if errors.Is(err, ErrAuth) || errors.Is(err, errTooManyWrong) {
		return l.failureLimiter.report(v.from, time.Now())
	}
	return true
}

// gate returns ErrBusy if the backlog is full.
func (l *Listener) gate(*Peer) error {
	if len(l.backlog) == cap(l.backlog) {
		return l.busy()
	}
	return nil
}

func (l *Listener) busy() error {
	return fmt.Errorf("%w: %d already wait for Accept", ErrBusy, l.cfg.Backlog)
}

// removePending removes a connection from the half-open ones and reports whether it had been replaced.
func (l *Listener) removePending(v *pendingHandshake) (replaced bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = slices.DeleteFunc(l.pending, func(other *pendingHandshake) bool { return other == v })
	return v.replaced
}

// enqueue queues an admitted peer for Accept, and closes the Conns of its earlier incarnations.
func (l *Listener) enqueue(c *Conn) error {
	id := c.peer.identity()
	c.start(func() { l.forget(c) })
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errors.Join(ErrClosed, c.Close())
	}
	var gone []*Conn
	for other := range l.conns {
		if id != "" && other.peer.identity() == id && other.peer.Incarnation != c.peer.Incarnation {
			gone = append(gone, other)
		}
	}
	l.conns[c] = struct{}{}
	queued := false
	select {
	case l.backlog <- c:
		queued = true
		l.stats.Admitted++
	default:
	}
	l.mu.Unlock()
	for _, other := range gone {
		other.fail(fmt.Errorf("%w: %q is now incarnation %d, and was %d", ErrRestarted, c.peer.Name, c.peer.Incarnation, other.peer.Incarnation))
	}
	if c.Err() != nil {
		l.forget(c) // it was closed before it was added
	}
	if !queued {
		return errors.Join(l.busy(), c.CloseWith("too many peers are waiting: try again later"))
	}
	return nil
}

// Close closes the port and every Conn not yet returned by Accept. Accepted Conns stay open. It may be called again.
func (l *Listener) Close() error {
	if !l.isOpen() {
		return ErrClosed
	}
	var err error
	if l.close() {
		l.cancel()
		err = l.socket.Close()
	}
	l.goroutines.Wait()
	for {
		select {
		case c := <-l.backlog:
			_ = c.Close()
		default:
			return err
		}
	}
}
