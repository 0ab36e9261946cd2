package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
)

// Remote is a segment of a peer that was lent to this side. It is valid until the peer closes the segment or its process ends, also
// across sessions.
type Remote struct {
	peer   *Peer
	proc   *process
	number uint32
	name   string
	access Access
	region ibverbx.RemoteRegion
	// uses counts the transfers that use the segment, and revoked says that no more may begin. peer.link.Mu guards them.
	uses    int
	revoked bool
}

// RemoteRange is where a block begins in a segment of a peer.
type RemoteRange struct {
	remote *Remote
	off    int64
}

// At returns the place at off. Submit checks it.
func (r *Remote) At(off int64) RemoteRange { return RemoteRange{r, off} }

// Name is the name.
func (r *Remote) Name() string { return r.name }

// Len is the number of bytes.
func (r *Remote) Len() int64 { return int64(r.region.Length) }

// Open asks the peer for a segment. Errors wrap ErrNotFound or ErrDenied if this side does not get it.
func (p *Peer) Open(ctx context.Context, name string, want Access) (*Remote, error) {
	if name == "" || len(name) > MaxNameLen {
		return nil, newError("open", p, name, fmt.Errorf("the name has %d bytes, want 1 to %d: %w", len(name), MaxNameLen, ErrTooLong))
	}
	if want == 0 || want&^(Read|Write) != 0 {
		return nil, newError("open", p, name, fmt.Errorf("%w: %v", ErrDenied, want))
	}
	proc, err := p.link.Ready(ctx)
	if err != nil {
		return nil, newError("open", p, name, err)
	}
	m, err := proc.Ask(ctx, p.asks, func(id uint32) []byte { return (&open{id: id, want: want, name: name}).encode() })
	if err != nil {
		return nil, newError("open", p, name, err)
	}
	r, ok := m.(*Remote)
	if !ok || r.access&want != want {
		return nil, newError("open", p, name, fmt.Errorf("%w: the peer's answer", errProtocol))
	}
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	if r.name == "" {
		r.name = name
	}
	return r, nil
}

// granted returns the segment of an answer to Open. It is known before the next message is taken, which may revoke it. It has no name yet.
func (p *Peer) granted(proc *process, m *grant) *Remote {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	r := proc.remotes[m.number]
	if r == nil {
		r = &Remote{peer: p, proc: proc, number: m.number, access: m.access, region: m.region}
		if proc.Waiting(m.id) {
			proc.remotes[m.number] = r
		}
	}
	return r
}

// lending is a segment that a peer was lent.
type lending struct {
	number  uint32
	segment *Segment // nil for the mailbox
	access  Access
	// region is what the peer gets. It is kept because a Node that is being closed closes its registrations.
	region ibverbx.RemoteRegion
	// granting is how many answers with the segment are being sent. The peer is told to stop after them.
	granting int
	// revoking says that the peer must stop, and cut that it did not in time. Peer.link.Mu guards these three.
	revoking, cut bool
	// stopped is closed when the peer has stopped.
	stopped chan struct{}
}

// openTimeout is how long Config.Authorize has.
const openTimeout = 10 * time.Second

// lend answers the request for a segment. It returns nil if it has sent the answer itself.
func (p *Peer) lend(ctx context.Context, s service.Session, proc *process, m *open) []byte {
	l, answer := p.allow(ctx, proc, m)
	if l == nil {
		return answer
	}
	_ = s.Send(ctx, service.TransferID, answer)
	p.link.Mu.Lock()
	l.granting--
	late, again := l.granting == 0 && l.revoking, proc.revoke(l.number)
	p.link.Mu.Unlock()
	if late {
		_ = s.Send(ctx, service.TransferID, again.encode())
	}
	return nil
}

// allow decides on a request for a segment. It returns the answer, and what is lent, if anything is.
func (p *Peer) allow(ctx context.Context, proc *process, m *open) (*lending, []byte) {
	e := p.engine
	refuse := func(c rpc.Code, err error) (*lending, []byte) {
		return nil, (&rpc.Refusal{ID: m.id, Code: c, Text: err.Error()}).Encode()
	}
	e.mu.Lock()
	s := e.segments[m.name]
	e.mu.Unlock()
	if s == nil || s.cfg.Local {
		return refuse(rpc.NotFound, ErrNotFound)
	}
	access, err := s.cfg.DefaultAccess, error(nil)
	if e.cfg.Authorize != nil {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		access, err = e.cfg.Authorize(ctx, p.node, m.name, m.want)
		cancel()
	}
	if s.readOnly {
		access &^= Write
	}
	switch {
	case err != nil || access&(Read|Write) == 0:
		return refuse(rpc.NotFound, ErrNotFound)
	case access&m.want != m.want:
		return refuse(rpc.Denied, fmt.Errorf("%w: only %v is allowed", ErrDenied, access))
	case !s.enter(): // not earlier, because Lend may take its time
		return refuse(rpc.NotFound, ErrNotFound)
	}
	defer s.leave()
	region, err := s.memory.Remote(p.service, m.want.verbs())
	if err != nil {
		e.service.Log().Error("transfer: a segment cannot be lent", "segment", s.name, "peer", p.String(), "error", err)
		return refuse(rpc.Busy, errors.New("the memory cannot be registered with the NICs now"))
	}
	l := p.lendingOf(proc, s, m.want, region)
	p.link.Mu.Lock()
	l.granting++ // nothing is revoked before leave
	p.link.Mu.Unlock()
	return l, (&grant{id: m.id, number: l.number, access: l.access, region: l.region}).encode()
}

// lendingOf returns what a process has of a segment. It has one number for each kind of access, however often it asks.
func (p *Peer) lendingOf(proc *process, s *Segment, access Access, region ibverbx.RemoteRegion) *lending {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	for _, l := range proc.lent {
		if l.segment == s && l.access == access {
			return l
		}
	}
	p.engine.mu.Lock()
	p.engine.grants++
	number := p.engine.grants
	p.engine.mu.Unlock()
	l := &lending{number: number, segment: s, access: access, region: region, stopped: make(chan struct{})}
	proc.lent[number] = l
	return l
}

// revoke takes back what peers were lent, and returns when they have stopped using it. Those that do not stop in time lose their session. A peer
// that is not connected, or has lost its session, is told in the next one.
func (e *Engine) revoke(ctx context.Context, peers []*Peer, which func(*lending) bool) {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range peers {
		if r := p.recall(which); r.session != nil && len(r.list) > 0 {
			wg.Go(func() { p.takeBack(ctx, r) })
		}
	}
	wg.Wait()
}

// recall is what a peer has to give back: list, of which it is told now by messages of a session. Without a session the next hello says it.
type recall struct {
	session service.Session
	live    context.Context
	list    []*lending
	told    []*revoke
}

// recall marks what a peer has to give back.
func (p *Peer) recall(which func(*lending) bool) recall {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	r := recall{session: p.link.Session, live: p.link.Live}
	if p.link.Proc == nil {
		return r
	}
	for _, l := range p.link.Proc.lent {
		if l.cut || !which(l) {
			continue
		}
		if r.list = append(r.list, l); !l.revoking && l.granting == 0 {
			r.told = append(r.told, p.link.Proc.revoke(l.number))
		}
		l.revoking = true
	}
	return r
}

// takeBack waits until a peer has given back what it has to.
func (p *Peer) takeBack(ctx context.Context, r recall) {
	for _, m := range r.told {
		_ = r.session.Send(ctx, service.TransferID, m.encode()) // if it fails, the answer does not come
	}
	for _, l := range r.list {
		select {
		case <-l.stopped:
		case <-r.live.Done():
			return // the next hello says it
		case <-ctx.Done():
			if p.cutOff(r.list) {
				r.session.End(fmt.Errorf("%w: the peer did not stop using a segment that is closed", ErrRevoked))
			}
			return
		}
	}
}

// revoke is the message that takes a grant back. Peer.link.Mu must be held.
func (proc *process) revoke(number uint32) *revoke {
	return &revoke{number, proc.in.arrived, proc.out.unplaced}
}

// cutOff notes what a peer has not given back. It reports whether there is any.
func (p *Peer) cutOff(list []*lending) (any bool) {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	for _, l := range list {
		if p.link.Proc != nil && p.link.Proc.lent[l.number] == l {
			l.cut, any = true, true
		}
	}
	return any
}

// forget ends a lending.
func (p *Peer) forget(number uint32) {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	if p.link.Proc == nil {
		return
	}
	if l := p.link.Proc.lent[number]; l != nil && l.revoking {
		l.stop()
		delete(p.link.Proc.lent, number)
	}
}

// stop says that the peer does not use the segment any more. Peer.link.Mu must be held.
func (l *lending) stop() {
	select {
	case <-l.stopped:
	default:
		close(l.stopped)
	}
}

// revoked stops the use of a segment that its owner takes back, and tells the owner when nothing uses it any more. An answer that can be given
// at once is sent before the next message is taken, so a peer that does not take answers waits.
func (p *Peer) revoked(s service.Session, proc *process, m *revoke) error {
	number := m.grant
	if number == mailboxGrant {
		return p.left(s, proc, m)
	}
	p.link.Mu.Lock()
	r := proc.remotes[number]
	done := r == nil || r.uses == 0
	if r != nil {
		r.revoked = true
	}
	if done {
		delete(proc.remotes, number)
	}
	p.link.Mu.Unlock()
	if done {
		_ = s.Send(context.Background(), service.TransferID, (&revoked{number}).encode())
		return nil
	}
	p.cancelUsers(func(part part) bool { return part.remote == r }, ErrRevoked)
	return nil
}

// lastWords bounds the wait for notifications of a process that leaves.
const lastWords = 100 * time.Millisecond

// arrived is how many notifications of a process have arrived.
func (p *Peer) arrived(proc *process) uint64 {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	return proc.in.arrived
}

// left ends a process whose Engine is being closed. It has taken back its segments before, and ends the session next. Notifications that have
// arrived there have been sent, though their requests may not end any more. Those that it has sent are taken from the completion queues first.
func (p *Peer) left(s service.Session, proc *process, m *revoke) error {
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	_ = service.Await(ctx, p.service, func() bool { return p.arrived(proc) >= m.sent }) // others are lost
	p.link.Mu.Lock()
	done, protocolErr := proc.out.arrived(m.arrived)
	if protocolErr != nil {
		p.link.Mu.Unlock()
		return protocolErr
	}
	p.link.Proc = nil
	p.link.Changed.Raise()
	p.link.Mu.Unlock()
	for _, t := range done {
		t.finish(nil)
	}
	err := fmt.Errorf("%w: it has closed its engine", ErrPeerGone)
	proc.end(err)
	p.cancelRunning(func(t *Transfer) bool { return t.proc == proc }, err)
	_ = s.Send(context.Background(), service.TransferID, (&revoked{mailboxGrant}).encode())
	return nil
}

// tell sends the peer that a grant is not used any more. It may be called with the shard's lock.
func (p *Peer) tell(number uint32) {
	p.link.Mu.Lock()
	s, ctx := p.link.Session, p.link.Live
	p.link.Mu.Unlock()
	if s != nil {
		go func() { _ = s.Send(ctx, service.TransferID, (&revoked{number}).encode()) }()
	}
}
