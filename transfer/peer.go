package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx"
	"ibverbx/internal/seat"
	"ibverbx/node"
)

// Peer is another process with an Engine. It outlives its sessions and its processes.
type Peer struct {
	engine *Engine
	seat   seat.Peer
	node   *node.Peer
	realm  string
	// name describes the peer as it authenticated last.
	name atomic.Pointer[string]
	// room has a token if a goroutine that waits for room should look again.
	room chan struct{}
	// asks bounds how many requests of this side wait for an answer.
	asks chan struct{}

	mu sync.Mutex
	// session is the present session, nil if there is none. ctx ends with it. There have been so many sessions.
	session  seat.Session
	ctx      context.Context
	cancel   context.CancelFunc
	sessions uint64
	// greeted says that the peer's hello of this session has come.
	greeted bool
	// proc is the peer's process, nil if none is known.
	proc *process
	// err says why there is no process, or why it is of no use.
	err error
	// changed is closed and replaced when one of the fields above changes.
	changed chan struct{}
	// mailbox is where the peer's notifications go.
	mailbox mailbox
	// running are the transfers that have not ended, of which there are count.
	running transferList
	count   int
	// queued is how many bytes of notifications the program has not taken, of all processes of the peer.
	queued int
	// serving is how many requests of the peer have no answer yet.
	serving int
}

// process is what is known of one Engine of a peer. The Peer's mu guards its fields, apart from those that do not change.
type process struct {
	peer        *Peer
	incarnation uint64
	// engine is the id of the Engine, 0 until its hello has come. It does not change then, and mailbox neither.
	engine  uint64
	mailbox ibverbx.RemoteRegion
	// dead says why the process is of no more use. ended is closed then.
	dead  error
	ended chan struct{}

	remotes map[uint32]*Remote  // what the peer has lent, by number
	lent    map[uint32]*lending // what the peer was lent, by number
	calls   map[uint32]chan any // requests that wait for an answer, by id
	lastID  uint32
	out     *outbox // nil until the first notification
	in      arrivals
	// busy counts transfers, and operations with notifications only, that have not ended. leaving says that the peer waits
	// until there are none.
	busy    int
	leaving bool
}

// maxAsks and maxServing bound the requests without an answer, on the side that asks and on the other.
const (
	maxAsks    = 32
	maxServing = 64
)

func newPeer(e *Engine, s seat.Peer) *Peer {
	p := &Peer{
		engine: e, seat: s, node: e.node(s),
		room: make(chan struct{}, 1), asks: make(chan struct{}, maxAsks), changed: make(chan struct{}),
	}
	if p.node != nil {
		p.realm = p.node.Realm()
	}
	p.setName()
	return p
}

// Node returns the peer as package node knows it.
func (p *Peer) Node() *node.Peer { return p.node }

// String names the peer: its name if it has one, and its address.
func (p *Peer) String() string { return *p.name.Load() }

func (p *Peer) setName() {
	id := p.seat.Identity()
	name := id.Name
	switch {
	case name != "" && id.Addr != nil:
		name = fmt.Sprintf("%s (%v)", name, id.Addr)
	case id.Addr != nil:
		name = id.Addr.String()
	}
	p.name.Store(&name)
}

func (p *Peer) newProcess(incarnation uint64) *process {
	proc := &process{
		peer: p, incarnation: incarnation, ended: make(chan struct{}),
		remotes: map[uint32]*Remote{}, lent: map[uint32]*lending{}, calls: map[uint32]chan any{},
	}
	proc.lent[mailboxGrant] = &lending{number: mailboxGrant, stopped: make(chan struct{})}
	return proc
}

// change wakes those who wait for another state. mu must be held.
func (p *Peer) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// ready waits until the peer's process is known and connected.
func (p *Peer) ready(ctx context.Context) (*process, seat.Session, error) {
	for {
		p.mu.Lock()
		proc, session, err, changed := p.proc, p.session, p.err, p.changed
		if session == nil || !p.greeted {
			proc = nil
		}
		p.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		if proc != nil {
			return proc, session, nil
		}
		select {
		case <-changed:
		case <-p.engine.done:
			return nil, nil, ErrClosed
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the peer is not connected or has no transfer engine: %w", context.Cause(ctx))
		}
	}
}

// up begins a session.
func (p *Peer) up(s seat.Session) error {
	if err := p.mailbox.make(p); err != nil {
		return err
	}
	p.setName()
	p.mu.Lock()
	if p.engine.isClosed() && (p.proc == nil || p.proc.incarnation != s.Incarnation()) {
		p.mu.Unlock()
		return nil // the mailbox would be gone soon
	}
	if p.queued > maxQueued {
		p.mu.Unlock()
		return fmt.Errorf("%w: the program takes no notifications", ErrBusy)
	}
	old := p.proc
	if old == nil || old.incarnation != s.Incarnation() {
		p.proc = p.newProcess(s.Incarnation())
	} else {
		old = nil
	}
	p.session, p.greeted, p.err = s, false, nil
	p.sessions++
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.change()
	p.mu.Unlock()
	old.end(ErrRestarted)
	p.greet(s)
	return nil
}

// down ends a session.
func (p *Peer) down(s seat.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == s {
		p.session, p.greeted = nil, false
		p.cancel()
		p.change()
	}
}

// gone ends what waits for a peer that will not return soon. The Engine forgets it if the Node has.
func (p *Peer) gone(err error) {
	p.end(err)
	e := p.engine
	forget := p.node.State() == node.StateClosed
	e.mu.Lock()
	if forget = forget && !e.closed && e.peers[p.seat] == p; forget { // otherwise Close frees it
		delete(e.peers, p.seat)
	}
	e.mu.Unlock()
	if forget {
		if err := p.free(); err != nil {
			e.seat.Log().Error("transfer: a mailbox cannot be freed", "peer", p.String(), "error", err)
		}
	}
}

// end ends all that waits for the peer.
func (p *Peer) end(err error) {
	p.mu.Lock()
	proc := p.proc
	p.proc, p.err = nil, err
	p.change()
	p.mu.Unlock()
	proc.end(err)
}

// end ends all that waits for the process. Operations that are under way are ended by the Node.
func (proc *process) end(err error) {
	if proc == nil {
		return
	}
	p := proc.peer
	p.mu.Lock()
	if proc.dead != nil {
		p.mu.Unlock()
		return
	}
	proc.dead = err
	close(proc.ended)
	for _, l := range proc.lent {
		l.stop()
	}
	var waiting []*Transfer
	if proc.out != nil {
		waiting = proc.out.abandon()
	}
	p.mu.Unlock()
	for _, t := range waiting {
		t.finish(err)
	}
	proc.freeOutbox()
}

// greet sends a hello. If it cannot be sent, the session has ended.
func (p *Peer) greet(s seat.Session) {
	p.mu.Lock()
	proc := p.proc
	m := hello{lowest: version, highest: version, engine: p.engine.id, mailbox: *p.mailbox.region.Remote()}
	if proc != nil {
		m.seen, m.arrived, m.taken = proc.engine, proc.in.arrived, proc.in.taken
	}
	p.mu.Unlock()
	_ = s.Send(context.Background(), seat.TransferID, m.encode())
}

// message handles a message of a session. An error ends the session.
func (p *Peer) message(s seat.Session, m any) error {
	p.mu.Lock()
	proc := p.proc
	stale := p.session != s || proc == nil
	p.mu.Unlock()
	if stale {
		return nil
	}
	switch m := m.(type) {
	case *hello:
		return p.hello(s, m)
	case *open:
		return p.serve(s, func(ctx context.Context) []byte { return p.lend(ctx, proc, m) })
	case *digest:
		return p.serve(s, func(context.Context) []byte { return p.sum(proc, m) })
	case *unknown:
		text := fmt.Sprintf("this side speaks version %d", version)
		return p.serve(s, func(context.Context) []byte { return (&refusal{m.id, codeUnknown, text}).encode() })
	case *grant:
		proc.answer(m.id, p.granted(proc, m))
	case *digests:
		proc.answer(m.id, m)
	case *refusal:
		proc.answer(m.id, m)
	case *revoke:
		p.revoked(s, proc, m.grant)
	case *revoked:
		p.forget(m.grant)
	}
	return nil
}

// stop says that the peer does not use the segment any more. Peer.mu must be held.
func (l *lending) stop() {
	select {
	case <-l.stopped:
	default:
		close(l.stopped)
	}
}

// hello takes the peer's greeting: which Engine it is, and what has become of the notifications.
func (p *Peer) hello(s seat.Session, m *hello) error {
	p.mu.Lock()
	if m.lowest > version {
		p.err = fmt.Errorf("%w: the peer speaks %d to %d, this side %d", ErrMismatch, m.lowest, m.highest, version)
		p.change()
		p.mu.Unlock()
		return nil
	}
	old, proc := p.proc, p.proc
	switch {
	case proc.engine == 0:
		old = nil
	case proc.engine != m.engine:
		proc = p.newProcess(s.Incarnation())
	case !sameRegion(&proc.mailbox, &m.mailbox):
		p.mu.Unlock()
		return fmt.Errorf("%w: the mailbox has changed", errProtocol)
	default:
		old = nil
	}
	if proc.engine == 0 {
		proc.engine, proc.mailbox = m.engine, m.mailbox
	}
	p.proc, p.greeted, p.err = proc, true, nil
	var notes *note
	var err error
	if proc.out != nil && m.seen == p.engine.id {
		notes, err = proc.out.resume(m.arrived, m.taken)
	}
	var revokes []uint32
	for _, l := range proc.lent {
		if l.revoking {
			revokes = append(revokes, l.number)
		}
	}
	p.change()
	p.mu.Unlock()
	old.end(ErrRestarted)
	if m.seen != p.engine.id {
		p.greet(s)
	}
	p.submitNotes(notes)
	for _, number := range revokes {
		_ = s.Send(context.Background(), seat.TransferID, (&revoke{number}).encode())
	}
	return err
}

func sameRegion(a, b *ibverbx.RemoteRegion) bool {
	return a.Addr == b.Addr && a.Length == b.Length && slices.Equal(a.RKeys, b.RKeys)
}

// serve answers a request in a goroutine of its own.
func (p *Peer) serve(s seat.Session, f func(context.Context) []byte) error {
	p.mu.Lock()
	ctx, ok := p.ctx, p.serving < maxServing
	if ok {
		p.serving++
	}
	p.mu.Unlock()
	if !ok {
		return fmt.Errorf("%w: %d requests without an answer", errProtocol, maxServing)
	}
	go func() {
		_ = s.Send(ctx, seat.TransferID, f(ctx)) // without the session the peer asks again
		p.mu.Lock()
		p.serving--
		p.mu.Unlock()
	}()
	return nil
}

// answer hands an answer to the request that waits for it. Others are ignored: their callers have gone.
func (proc *process) answer(id uint32, m any) {
	proc.peer.mu.Lock()
	defer proc.peer.mu.Unlock()
	if call := proc.calls[id]; call != nil {
		delete(proc.calls, id)
		call <- m
	}
}

// ask sends a request and returns the answer. If the session ends meanwhile it asks again in the next one.
func (p *Peer) ask(ctx context.Context, proc *process, request func(id uint32) []byte) (any, error) {
	select {
	case p.asks <- struct{}{}:
		defer func() { <-p.asks }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for {
		now, s, err := p.ready(ctx)
		switch {
		case err != nil:
			return nil, err
		case now != proc:
			return nil, ErrRestarted
		}
		call := make(chan any, 1)
		p.mu.Lock()
		proc.lastID++
		id, down := proc.lastID, p.ctx.Done()
		proc.calls[id] = call
		p.mu.Unlock()
		_ = s.Send(ctx, seat.TransferID, request(id)) // if it fails, the session or ctx has ended
		var m any
		select {
		case m = <-call:
		case <-down:
		case <-proc.ended:
		case <-ctx.Done():
		}
		p.mu.Lock()
		delete(proc.calls, id)
		dead := proc.dead
		p.mu.Unlock()
		switch m := m.(type) {
		case *refusal:
			return nil, fmt.Errorf("%w (the peer says: %s)", m.code.err(), m.text)
		case nil:
			if err := errors.Join(dead, context.Cause(ctx)); err != nil {
				return nil, err
			}
		default:
			return m, nil
		}
	}
}

// revoked stops the use of a segment that its owner takes back, and tells the owner when nothing uses it any more. An answer that can be given
// at once is sent before the next message is taken, so a peer that does not take answers waits.
func (p *Peer) revoked(s seat.Session, proc *process, number uint32) {
	if number == mailboxGrant {
		p.left(s, proc)
		return
	}
	p.mu.Lock()
	r := proc.remotes[number]
	done := r == nil || r.uses == 0
	if r != nil {
		r.revoked = true
	}
	if done {
		delete(proc.remotes, number)
	}
	p.mu.Unlock()
	if done {
		_ = s.Send(context.Background(), seat.TransferID, (&revoked{number}).encode())
		return
	}
	p.cancelUsers(func(part part) bool { return part.remote == r }, ErrRevoked)
}

// left ends a process whose Engine is being closed, and tells it when no request of this side is under way to it.
func (p *Peer) left(s seat.Session, proc *process) {
	p.mu.Lock()
	if p.proc != proc {
		p.mu.Unlock()
		return
	}
	p.proc, p.greeted = p.newProcess(proc.incarnation), false
	p.change()
	p.mu.Unlock()
	proc.end(fmt.Errorf("%w: it has closed its engine", ErrPeerGone))
	p.cancelRunning(func(t *Transfer) bool { return t.proc == proc }, ErrPeerGone)
	p.mu.Lock()
	proc.leaving = true
	done := proc.busy == 0
	p.mu.Unlock()
	if done {
		_ = s.Send(context.Background(), seat.TransferID, (&revoked{mailboxGrant}).encode())
	}
}

// idle counts one operation less that may reach the process. It reports whether the process waits for that. mu must be held.
func (proc *process) idle() bool {
	proc.busy--
	return proc.busy == 0 && proc.leaving
}

// tell sends the peer that a grant is not used any more. It may be called with the shard's lock.
func (p *Peer) tell(number uint32) {
	p.mu.Lock()
	s, ctx := p.session, p.ctx
	p.mu.Unlock()
	if s != nil {
		go func() { _ = s.Send(ctx, seat.TransferID, (&revoked{number}).encode()) }()
	}
}
