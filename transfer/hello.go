package transfer

import (
	"context"
	"fmt"
	"slices"

	"ibverbx"
	"ibverbx/internal/service"
)

// Both sides begin a session with a hello. It has the id of the sender, and that of the peer as far as the sender knows it. A side that gets
// the hello of a peer whose id it has not named yet says hello again. So each side gets one that names it, and says what has
// become of its notifications. A peer whose id is another one than before has forgotten everything: both sides begin from zero.

// greet sends a hello. If it cannot be sent, the session has ended.
func (p *Peer) greet(s service.Session) {
	p.mu.Lock()
	m := hello{lowest: version, highest: version, id: p.id, mailbox: p.mailbox.remote()}
	if proc := p.proc; proc != nil {
		m.seen, m.arrived, m.taken = proc.id, proc.in.arrived, proc.in.taken
		proc.in.owed = 0
	}
	p.told = m.seen
	ctx := p.ctx
	p.mu.Unlock()
	_ = s.Send(ctx, service.TransferID, m.encode())
}

// hello takes the peer's greeting. There are at most two in a session.
func (p *Peer) hello(s service.Session, m *hello) error {
	p.mu.Lock()
	if m.lowest > version {
		p.err = fmt.Errorf("%w: the peer speaks %d to %d, this side %d", ErrMismatch, m.lowest, m.highest, version)
		p.change()
		p.mu.Unlock()
		return nil
	}
	old, proc := p.proc, p.proc
	same := proc != nil && proc.id == m.id
	if p.greeted || p.met && !same || same && !sameRegion(&proc.mailbox, &m.mailbox) {
		p.mu.Unlock()
		return fmt.Errorf("%w: a hello of another peer, or one too many", errProtocol)
	}
	if same {
		old = nil
	} else {
		proc = p.newProcess(s.Incarnation(), m)
	}
	p.proc, p.met, p.greeted, p.err = proc, true, m.seen == p.id, nil
	var notes *note
	var done []*Transfer
	var err error
	var c *credit
	var revokes []*revoke
	if p.greeted {
		if notes, done, err = proc.out.resume(m.arrived, m.taken); err == nil {
			c, revokes = proc.credit(), proc.revokes()
		}
	}
	again := p.told != m.id
	p.change()
	p.mu.Unlock()
	old.end(ErrRestarted)
	if again {
		p.greet(s)
	}
	for _, t := range done {
		t.finish(nil)
	}
	p.submitNotes(notes)
	if c != nil {
		p.service.Submit(&c.op)
	}
	for _, m := range revokes {
		_ = s.Send(context.Background(), service.TransferID, m.encode())
	}
	return err
}

func (p *Peer) newProcess(incarnation uint64, m *hello) *process {
	proc := &process{
		peer: p, incarnation: incarnation, id: m.id, mailbox: m.mailbox, ended: make(chan struct{}),
		remotes: map[uint32]*Remote{}, lent: map[uint32]*lending{},
	}
	proc.out.proc = proc
	proc.lent[mailboxGrant] = &lending{number: mailboxGrant, stopped: make(chan struct{})}
	return proc
}

// revokes returns what the peer has to give back and may not know. mu must be held.
func (proc *process) revokes() (list []*revoke) {
	for _, l := range proc.lent {
		if l.revoking {
			list = append(list, proc.revoke(l.number))
		}
	}
	return list
}

func sameRegion(a, b *ibverbx.RemoteRegion) bool {
	return a.Addr == b.Addr && a.Length == b.Length && slices.Equal(a.RKeys, b.RKeys)
}
