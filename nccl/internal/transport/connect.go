package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// attempt is a connection that is being established in a goroutine. NCCL polls for its result.
type attempt struct {
	shard  *Shard
	number uint32
	// serial distinguishes attempts with the same number.
	serial uint32
	cancel context.CancelFunc

	mu sync.Mutex
	// comm or err is the result once done is set.
	comm *Comm
	err  error
	done bool
	// over is set once the result was fetched, or will never be. abandon closes the Comm of a later result.
	over bool
	// looked is the time of the last look at the attempt, zero if a Listener has the attempt and ends it.
	looked time.Time
}

// begin starts an attempt, which expires after looked unless that is zero. connect creates the connection.
func (s *Shard) begin(looked time.Time, connect func(ctx context.Context) (*Comm, error)) (*attempt, error) {
	if !s.acquire() {
		return nil, ErrGone
	}
	ctx, cancel := context.WithTimeout(context.Background(), joinTime)
	a := &attempt{shard: s, serial: s.plugin.serials.Add(1), cancel: cancel, looked: looked}
	a.number = s.plugin.attempts.add(a)
	go func() {
		comm, err := connect(ctx)
		cancel()
		a.mu.Lock()
		a.comm, a.err, a.done = comm, err, true
		late := a.over
		a.mu.Unlock()
		if late && comm != nil {
			comm.Close()
		}
		s.release()
	}()
	return a, nil
}

// state identifies the attempt in a handle. It is not 0.
func (a *attempt) state() uint64 { return uint64(a.serial)<<32 | uint64(a.number) }

// result returns the result once; before, the Comm and the error are nil.
func (a *attempt) result() (*Comm, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.looked.IsZero() {
		a.looked = time.Now()
	}
	if !a.done || a.over {
		return nil, nil
	}
	a.over = true
	a.shard.plugin.attempts.remove(a.number)
	return a.comm, a.err
}

// abandon cancels an attempt whose result will not be fetched.
func (a *attempt) abandon() {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	a.over = true
	comm := a.comm
	a.mu.Unlock()
	a.shard.plugin.attempts.remove(a.number)
	a.cancel()
	if comm != nil {
		comm.Close()
	}
}

// expire abandons an attempt without a recent look at it.
func (a *attempt) expire() {
	limit := forgetTime
	if a.shard.finalized() {
		limit = orphanTime // a communicator that shares the Shard may still look
	}
	a.mu.Lock()
	old := !a.looked.IsZero() && time.Since(a.looked) > limit
	a.mu.Unlock()
	if old {
		a.abandon()
	}
}

// Listener waits for one connection.
type Listener struct {
	shard *Shard
	id    connID

	mu      sync.Mutex
	pending *attempt // nil before the peer has dialed
	closed  bool
}

// Listen creates a Listener and returns its number. It writes the handle into b, of HandleSize bytes.
func (s *Shard) Listen(b []byte) (uint32, error) {
	if !s.acquire() {
		return 0, ErrGone
	}
	p := s.plugin
	l := &Listener{shard: s}
	_, _ = rand.Read(l.id[:]) // it never fails
	h := handle{conn: l.id, key: p.key}
	h.addrs, h.port = p.dialed()
	h.encode(b)
	p.mu.Lock()
	p.waiting[l.id] = l
	p.mu.Unlock()
	return p.waiters.add(l), nil
}

// Listener returns the Listener with a number, nil if it is unknown.
func (p *Plugin) Listener(n uint32) *Listener { return p.waiters.get(n) }

// admit establishes a connection with a peer that has dialed. It returns false if the Listener is closed or has a connection.
func (l *Listener) admit(conn *bootstrap.Conn, g *greeting) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.pending != nil {
		return false
	}
	a, err := l.shard.begin(time.Time{}, func(ctx context.Context) (*Comm, error) {
		n, err := l.shard.plugin.chosen(ctx, conn, g)
		if err != nil {
			return nil, errors.Join(err, conn.CloseWith(err.Error()))
		}
		return l.shard.establish(ctx, conn, n, false)
	})
	if err != nil {
		return false
	}
	l.pending = a
	return true
}

// Accept returns the connection, or nil while the peer has not connected. It never blocks.
func (l *Listener) Accept() (*Comm, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == nil {
		return nil, nil
	}
	c, err := l.pending.result()
	if c != nil || err != nil {
		l.pending = nil
	}
	return c, err
}

// CloseListener closes the Listener with the given number, and its connection unless Accept has returned it.
func (p *Plugin) CloseListener(n uint32) {
	l := p.waiters.remove(n)
	if l == nil {
		return
	}
	p.mu.Lock()
	delete(p.waiting, l.id)
	p.mu.Unlock()
	l.mu.Lock()
	a := l.pending
	l.pending, l.closed = nil, true
	l.mu.Unlock()
	if a != nil {
		a.abandon()
	}
	l.shard.release()
}

// Connect returns a connection to the listener with a handle, or nil while it is being established. The handle must be the same memory in
// each call. Connect never blocks.
func (s *Shard) Connect(b []byte) (*Comm, error) {
	state := b[handleState:]
	if n := binary.LittleEndian.Uint64(state); n != 0 {
		a := s.plugin.attempts.get(uint32(n))
		if a == nil || a.shard != s || a.state() != n {
			return nil, verbs.Invalidf("the connection was given up")
		}
		c, err := a.result()
		if c != nil || err != nil {
			clear(state)
		}
		return c, err
	}
	h, err := decodeHandle(b)
	if err != nil {
		return nil, err
	}
	a, err := s.begin(time.Now(), func(ctx context.Context) (*Comm, error) {
		conn, err := s.plugin.dial(ctx, &h)
		if err != nil {
			return nil, err
		}
		n, err := s.plugin.localPeerOf(ctx, &h, conn)
		if err == nil {
			err = conn.Send(ctx, bootstrap.KindApplication, n.greeting(h.conn).encode())
		}
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return s.establish(ctx, conn, n, true)
	})
	if err == nil {
		binary.LittleEndian.PutUint64(state, a.state())
	}
	return nil, err
}

// dial tries the addresses of a listener in order.
func (p *Plugin) dial(ctx context.Context, h *handle) (*bootstrap.Conn, error) {
	auth := p.auth(h.key)
	var failed []error
	for i, a := range h.addrs {
		limit := joinTime / time.Duration(len(h.addrs)-i+1)
		conn, err := func() (*bootstrap.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return bootstrap.Dial(ctx, net.JoinHostPort(a.String(), strconv.Itoa(int(h.port))), auth)
		}()
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// everywhere allows a peer to have NICs on any network: it has proved that it belongs to the job.
func everywhere() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// laneDepth is the number of outstanding physical requests and of notifications per lane. NCCL has up to 8 requests outstanding; each is a
// fragment and a record on a lane.
const laneDepth = 32

// establish creates the VirtualQP of a connection, over n or, if that is nil, over the NICs. The side that dials sends. On error it closes conn.
func (s *Shard) establish(ctx context.Context, conn *bootstrap.Conn, n *localPeer, dialer bool) (_ *Comm, err error) {
	p := s.plugin
	g, err := s.join(n)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	lanes := 1 // memory has only one path
	if n == nil {
		lanes = max(2, g.rails.Len())
	}
	notify := laneDepth
	if dialer {
		notify = 1 // it gets grants only, which are SENDs
	}
	session, err := peer.Connect(ctx, conn, dialer, peer.Config{
		SharedCQ: g.on, Fabric: peer.Fabric{Link: peer.LinkUDP, PeerNetworks: everywhere()}, Timeout: joinTime,
		QP: ibverbx.Config{
			Lanes: lanes, SendDepth: Depth, RecvDepth: Depth, LaneDepth: laneDepth, NotifyDepth: notify, MaxInline: grantSize, Deadline: p.opts.Deadline,
		},
	})
	if err != nil {
		s.leave(g)
		return nil, err
	}
	c := &Comm{shard: s, part: g.part, group: g, session: session, conn: conn, sends: dialer}
	if err := c.prepare(); err != nil {
		if c.remove != nil {
			c.remove()
		}
		err = errors.Join(err, session.Close(), conn.Close(), c.free())
		s.leave(g)
		return nil, err
	}
	p.log.Info("connected", slog.String("peer", conn.Peer().Addr.String()), slog.String("link", string(session.Link)),
		slog.Int("lanes", session.Agreed.Lanes), slog.Bool("sealed", session.Agreed.Sealed))
	return c, nil
}
