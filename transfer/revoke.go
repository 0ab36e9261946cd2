package transfer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"ibverbx/internal/service"
)

// revoke revokes the selected grants and returns when the peers have stopped using them. A peer that does not stop in time loses its
// session. A disconnected peer is notified in its next session.
func (e *Engine) revoke(ctx context.Context, peers []*Peer, which func(*grantedSegment) bool) {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range peers {
		if r := p.markRevoking(which); r.session != nil && len(r.list) > 0 {
			wg.Go(func() { p.awaitRevoked(ctx, r) })
		}
	}
	wg.Wait()
}

// revocation holds the grants to revoke at one peer. messages are to be sent in the session; without a session, the next hello carries
// them.
type revocation struct {
	session  service.Session
	live     context.Context
	list     []*grantedSegment
	messages []*revoke
}

// markRevoking marks a peer's selected grants as revoking.
func (p *Peer) markRevoking(which func(*grantedSegment) bool) revocation {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	r := revocation{session: p.link.Session, live: p.link.Live}
	if p.link.Proc == nil {
		return r
	}
	for _, l := range p.link.Proc.granted {
		if l.timedOut || !which(l) {
			continue
		}
		if r.list = append(r.list, l); !l.revoking && l.granting == 0 {
			r.messages = append(r.messages, p.link.Proc.revoke(l.number))
		}
		l.revoking = true
	}
	return r
}

// awaitRevoked sends the revocations and waits until the peer has stopped.
func (p *Peer) awaitRevoked(ctx context.Context, r revocation) {
	for _, m := range r.messages {
		_ = r.session.Send(ctx, service.TransferID, m.encode()) // if it fails, the peer does not respond
	}
	for _, l := range r.list {
		select {
		case <-l.stopped:
		case <-r.live.Done():
			return // the next hello repeats it
		case <-ctx.Done():
			if p.markCut(r.list) {
				r.session.End(fmt.Errorf("%w: the peer did not stop using a closed segment", ErrRevoked))
			}
			return
		}
	}
}

// revoke returns the message that revokes a grant. Peer.link.Mu must be held.
func (proc *process) revoke(number uint32) *revoke {
	return &revoke{number, proc.in.arrived, proc.out.unplaced}
}

// markCut marks the grants that the peer still uses. It reports whether any exist.
func (p *Peer) markCut(list []*grantedSegment) (any bool) {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	for _, l := range list {
		if p.link.Proc != nil && p.link.Proc.granted[l.number] == l {
			l.timedOut, any = true, true
		}
	}
	return any
}

// revokeDone removes a revoked grant.
func (p *Peer) revokeDone(number uint32) {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	if p.link.Proc == nil {
		return
	}
	if l := p.link.Proc.granted[number]; l != nil && l.revoking {
		l.stop()
		delete(p.link.Proc.granted, number)
	}
}

// stop records that the peer no longer uses the segment. Peer.link.Mu must be held.
func (l *grantedSegment) stop() {
	select {
	case <-l.stopped:
	default:
		close(l.stopped)
	}
}

// revoked cancels the users of a segment that its owner revokes, and notifies the owner once it is unused. A response that is possible
// immediately is sent before the next message is handled, so a peer that does not read responses blocks itself.
func (p *Peer) revoked(s service.Session, proc *process, m *revoke) error {
	number := m.grant
	if number == mailboxGrant {
		return p.engineClosed(s, proc, m)
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
	p.cancelUsers(func(part endpoints) bool { return part.remote == r }, ErrRevoked)
	return nil
}

// farewellTimeout bounds the wait for the last notifications of a closing Engine.
const farewellTimeout = 100 * time.Millisecond

// arrived returns the number of notifications that have arrived from a process.
func (p *Peer) arrived(proc *process) uint64 {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	return proc.in.arrived
}

// engineClosed drops a process whose Engine is closing. That Engine has already revoked its segments and closes the session next.
// Notifications it reports as arrived count as sent, even if their requests never complete. Its last notifications are polled first.
func (p *Peer) engineClosed(s service.Session, proc *process, m *revoke) error {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
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

// sendRevoked notifies the peer that a grant is unused. It may be called with the shard's lock held.
func (p *Peer) sendRevoked(number uint32) {
	p.link.Mu.Lock()
	s, ctx := p.link.Session, p.link.Live
	p.link.Mu.Unlock()
	if s != nil {
		go func() { _ = s.Send(ctx, service.TransferID, (&revoked{number}).encode()) }()
	}
}
