package transfer

import (
	"context"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/internal/seat"
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
	// uses counts the transfers that use the segment, and revoked says that no more may begin. peer.mu guards them.
	uses    int
	revoked bool
}

// Place is where a block begins in a segment of a peer.
type Place struct {
	remote *Remote
	off    int64
}

// At returns the place at off. Submit checks it.
func (r *Remote) At(off int64) Place { return Place{r, off} }

// Name is the name.
func (r *Remote) Name() string { return r.name }

// Len is the number of bytes.
func (r *Remote) Len() int64 { return int64(r.region.Length) }

// Peer is the owner.
func (r *Remote) Peer() *Peer { return r.peer }

// Access is what this side may do. It may be more than was asked for.
func (r *Remote) Access() Access { return r.access }

// Open asks the peer for a segment. Errors wrap ErrNotFound or ErrDenied if this side does not get it.
func (p *Peer) Open(ctx context.Context, name string, want Access) (*Remote, error) {
	if name == "" || len(name) > MaxName {
		return nil, newError("open", p, name, fmt.Errorf("the name has %d bytes, want 1 to %d: %w", len(name), MaxName, ErrTooLong))
	}
	if want == 0 || want&^(Read|Write) != 0 {
		return nil, newError("open", p, name, fmt.Errorf("%w: %v", ErrDenied, want))
	}
	proc, _, err := p.ready(ctx)
	if err != nil {
		return nil, newError("open", p, name, err)
	}
	m, err := p.ask(ctx, proc, func(id uint32) []byte { return (&open{id: id, want: want, name: name}).encode() })
	if err != nil {
		return nil, newError("open", p, name, err)
	}
	r, ok := m.(*Remote)
	if !ok || r.access&want != want {
		return nil, newError("open", p, name, fmt.Errorf("%w: the peer's answer", errProtocol))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.name == "" {
		r.name = name
	}
	return r, nil
}

// granted returns the segment of an answer to Open. It is known before the next message is taken, which may revoke it. It has no name yet.
func (p *Peer) granted(proc *process, m *grant) *Remote {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := proc.remotes[m.number]
	if r == nil {
		r = &Remote{peer: p, proc: proc, number: m.number, access: m.access, region: m.region}
		if proc.calls[m.id] != nil {
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
	region  *ibverbx.Region
	// revoking says that the peer was told to stop, and stopped is closed when it has. Peer.mu guards revoking.
	revoking bool
	stopped  chan struct{}
}

// openTimeout is how long Config.Lend has.
const openTimeout = 10 * time.Second

// lend answers the request for a segment.
func (p *Peer) lend(ctx context.Context, proc *process, m *open) []byte {
	e := p.engine
	refuse := func(c code, err error) []byte { return (&refusal{id: m.id, code: c, text: err.Error()}).encode() }
	e.mu.Lock()
	s := e.segments[m.name]
	e.mu.Unlock()
	if s == nil || s.cfg.Local || !s.enter() {
		return refuse(codeNotFound, ErrNotFound)
	}
	defer s.leave()
	access, err := s.cfg.Public, error(nil)
	if e.cfg.Lend != nil {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		access, err = e.cfg.Lend(ctx, p.node, m.name, m.want)
		cancel()
	}
	if s.readOnly {
		access &^= Write
	}
	switch {
	case err != nil || access&(Read|Write) == 0:
		return refuse(codeNotFound, ErrNotFound)
	case access&m.want != m.want:
		return refuse(codeDenied, fmt.Errorf("%w: only %v is allowed", ErrDenied, access))
	}
	region, err := s.memory.Region(p.seat, m.want.verbs())
	if err != nil {
		e.seat.Log().Error("transfer: a segment cannot be lent", "segment", s.name, "peer", p.String(), "error", err)
		return refuse(codeBusy, ErrBusy)
	}
	l := p.lendingOf(proc, s, m.want, region)
	return (&grant{id: m.id, number: l.number, access: l.access, region: *l.region.Remote()}).encode()
}

// lendingOf returns what a process has of a segment. It has one number for each kind of access, however often it asks.
func (p *Peer) lendingOf(proc *process, s *Segment, access Access, region *ibverbx.Region) *lending {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// revoke takes back what peers were lent, and returns when they cannot use it any more.
func (e *Engine) revoke(ctx context.Context, peers []*Peer, which func(*lending) bool) {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	type holder struct {
		peer    *Peer
		lending *lending
	}
	var holders []holder
	for _, p := range peers {
		session, list := p.revokeLent(which)
		for _, l := range list {
			if session != nil { // otherwise the next one says it
				holders = append(holders, holder{p, l})
				_ = session.Send(ctx, seat.TransferID, (&revoke{l.number}).encode())
			}
		}
	}
	cut := map[*Peer]bool{}
	for _, h := range holders {
		select {
		case <-h.lending.stopped:
			continue
		case <-e.seat.Done():
			return // no peer reaches anything any more
		case <-ctx.Done():
		}
		if !cut[h.peer] {
			cut[h.peer] = true
			h.peer.cutOff(fmt.Errorf("%w: the peer did not stop using a segment that is closed", ErrRevoked))
		}
		h.peer.forget(h.lending.number)
	}
}

// revokeLent marks what a peer was lent.
func (p *Peer) revokeLent(which func(*lending) bool) (s seat.Session, list []*lending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil || p.proc.engine == 0 {
		return nil, nil
	}
	for _, l := range p.proc.lent {
		if which(l) {
			l.revoking = true
			list = append(list, l)
		}
	}
	return p.session, list
}

// forget ends a lending.
func (p *Peer) forget(number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return
	}
	if l := p.proc.lent[number]; l != nil && l.revoking {
		l.stop()
		delete(p.proc.lent, number)
	}
}

// cutOff ends the session and returns when no request of the peer reaches memory of this side any more.
func (p *Peer) cutOff(cause error) {
	p.mu.Lock()
	s, ctx := p.session, p.ctx
	p.mu.Unlock()
	if s == nil {
		return
	}
	s.End(cause)
	select {
	case <-ctx.Done():
	case <-p.engine.seat.Done():
	}
}
