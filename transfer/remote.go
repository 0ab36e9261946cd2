package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Remote is an open segment of a peer. It stays valid across sessions until the peer closes the segment (ErrRevoked) or its process exits
// (ErrRestarted or ErrPeerGone).
type Remote struct {
	peer   *Peer
	proc   *process
	number uint32
	name   string
	access Access
	region ibverbx.RemoteRegion
	// uses counts the transfers using the segment; revoked blocks new ones. peer.link.Mu guards them.
	uses    int
	revoked bool
}

// RemoteRange is a position in a peer's segment. The LocalRange of a block determines its length.
type RemoteRange struct {
	remote *Remote
	off    int64
}

// At returns the position off bytes into the segment. Batch.Put and Batch.Get check it.
func (r *Remote) At(off int64) RemoteRange { return RemoteRange{r, off} }

// Name returns the segment's name, which is empty for a segment from OpenGrant.
func (r *Remote) Name() string { return r.name }

// Len returns the segment's size in bytes.
func (r *Remote) Len() int64 { return int64(r.region.Length) }

// Open requests access to a peer's segment, and waits for a session if necessary. It returns ErrNotFound if the segment does not exist or
// access is denied, ErrDenied if only other access is granted, and ErrBusy if the peer cannot register the memory now. It returns
// verbs.ErrInvalid for an empty name, and ErrTooLong for a name that exceeds MaxNameLen.
func (p *Peer) Open(ctx context.Context, name string, want Access) (*Remote, error) {
	if p.engine == nil {
		return nil, newError("open", p, name, ErrClosed)
	}
	if err := checkContext(ctx); err != nil {
		return nil, newError("open", p, name, err)
	}
	if name == "" {
		return nil, newError("open", p, name, verbs.Invalidf("the name is empty"))
	}
	if len(name) > MaxNameLen {
		return nil, newError("open", p, name, fmt.Errorf("the name has %d bytes, at most %d: %w", len(name), MaxNameLen, ErrTooLong))
	}
	if want == 0 || want&^(Read|Write) != 0 {
		return nil, newError("open", p, name, fmt.Errorf("%w: %v", ErrDenied, want))
	}
	proc, err := p.link.Ready(ctx)
	if err != nil {
		return nil, newError("open", p, name, err)
	}
	m, err := proc.Ask(ctx, p.requests, func(id uint32) []byte { return (&open{id: id, want: want, name: name}).encode() })
	if err != nil {
		return nil, newError("open", p, name, err)
	}
	r, ok := m.(*Remote)
	if !ok || r.access&want != want {
		return nil, newError("open", p, name, fmt.Errorf("%w: the peer's response", errProtocol))
	}
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	if r.name == "" {
		r.name = name
	}
	return r, nil
}

// recordRemote returns the still unnamed segment in a response to Open. It is recorded before the next message, which may revoke it, is handled.
func (p *Peer) recordRemote(proc *process, m *grant) *Remote {
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

// grantedSegment is a peer's access to a segment.
type grantedSegment struct {
	number  uint32
	segment *Segment // nil for the mailbox
	access  Access
	// region is sent to the peer. It is stored because Node.Close closes the registrations.
	region ibverbx.RemoteRegion
	// granting is the number of responses with the segment being sent. A revocation must follow them.
	granting int
	// revoking is set when the peer must stop, timedOut when it did not stop in time. Peer.link.Mu guards these three.
	revoking, timedOut bool
	// stopped is closed when the peer has stopped using the segment.
	stopped chan struct{}
}

// openTimeout is the timeout for Config.Authorize.
const openTimeout = 10 * time.Second

// answerOpen returns the response to an open request, or nil if it has sent the response itself.
func (p *Peer) answerOpen(ctx context.Context, s service.Session, proc *process, m *open) []byte {
	l, answer := p.decideOpen(ctx, proc, m)
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

// decideOpen decides on an open request. It returns the response, and the granted segment if access is granted.
func (p *Peer) decideOpen(ctx context.Context, proc *process, m *open) (*grantedSegment, []byte) {
	e := p.engine
	refuse := func(c rpc.Code, err error) (*grantedSegment, []byte) {
		return nil, (&rpc.Refusal{ID: m.id, Code: c, Text: err.Error()}).Encode()
	}
	e.mu.Lock()
	s := e.segments[m.name]
	e.mu.Unlock()
	if s == nil || s.cfg.Local {
		return refuse(rpc.NotFound, ErrNotFound)
	}
	access, err := p.authorize(ctx, s, m.want)
	switch {
	case err != nil || access == 0:
		return refuse(rpc.NotFound, ErrNotFound)
	case access&m.want != m.want:
		return refuse(rpc.Denied, fmt.Errorf("%w: only %v is allowed", ErrDenied, access))
	case !s.enter(): // not earlier, because Authorize may take long
		return refuse(rpc.NotFound, ErrNotFound)
	}
	defer s.leave()
	region, err := s.memory.Remote(p.service, m.want.verbs())
	if err != nil {
		e.service.Log().Error("transfer: cannot grant a segment", "segment", s.name, "peer", p.String(), "error", err)
		return refuse(rpc.Busy, errors.New("the memory cannot be registered with the NICs now"))
	}
	l := p.grantOf(proc, s, m.want, region)
	p.link.Mu.Lock()
	l.granting++ // revocation waits for leave
	p.link.Mu.Unlock()
	return l, (&grant{id: m.id, number: l.number, access: l.access, region: l.region}).encode()
}

// grantOf returns a process's grant of a segment. Each kind of access has one number, even if requested repeatedly.
func (p *Peer) grantOf(proc *process, s *Segment, access Access, region ibverbx.RemoteRegion) *grantedSegment {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	for _, l := range proc.granted {
		if l.segment == s && l.access == access {
			return l
		}
	}
	p.engine.mu.Lock()
	p.engine.grants++
	number := p.engine.grants
	p.engine.mu.Unlock()
	l := &grantedSegment{number: number, segment: s, access: access, region: region, stopped: make(chan struct{})}
	proc.granted[number] = l
	return l
}
