package transfer

import (
	"context"
	"fmt"
	"slices"

	"ibverbx"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
)

// Both sides of a session introduce themselves with a hello. It has the id of the sender, that of the peer as far as the sender knows it, and how
// many of that peer's notifications have arrived. An id stands for all that a side knows of the other. So a hello with an unknown id is from a
// side that has forgotten everything, and one that does not name this side's id is from a side that will begin from zero when it gets this side's hello.

// hello begins a session. It returns the hello, nil if this side takes no part in the session.
func (p *Peer) hello(s service.Session) (*hello, error) {
	if err := p.mailbox.make(p); err != nil {
		return nil, err
	}
	p.setName()
	p.mu.Lock()
	var old *process // stays until up, so that what is submitted meanwhile ends in ErrRestarted too
	queued := p.queued
	m := &hello{id: p.id, mailbox: p.mailbox.remote()}
	switch proc := p.proc; {
	case proc == nil:
	case proc.incarnation != s.Incarnation():
		old = proc
	default:
		m.seen, m.arrived, m.taken = proc.id, proc.in.arrived, proc.in.taken
		proc.in.owed = 0
	}
	p.err = nil
	p.changed.Raise()
	p.mu.Unlock()
	old.end(ErrRestarted)
	switch {
	case p.engine.isClosed():
		return nil, nil
	case queued > maxQueued:
		return nil, fmt.Errorf("%w: the program takes no notifications", ErrBusy)
	}
	return m, nil
}

// up takes the peer's hello.
func (p *Peer) up(s service.Session, m *hello) error {
	p.mu.Lock()
	if p.engine.isClosed() {
		p.mu.Unlock()
		return ErrClosed
	}
	old, proc := p.proc, p.proc
	if proc != nil && proc.id == m.id && proc.dead == nil {
		old = nil
	} else {
		proc = p.newProcess(s.Incarnation(), m)
	}
	if !sameRegion(&proc.mailbox, &m.mailbox) {
		p.mu.Unlock()
		return fmt.Errorf("%w: another mailbox than before", errProtocol)
	}
	var arrived, taken uint64
	if m.seen == p.id {
		arrived, taken = m.arrived, m.taken
	}
	p.session, p.number, p.proc, p.err = s, s.Number(), proc, nil
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.serving = make(rpc.Limit, maxServing)
	var c *credit
	var revokes []*revoke
	notes, done, err := proc.out.resume(arrived, taken)
	if err == nil {
		c, revokes = proc.credit(), proc.revokes()
	}
	p.changed.Raise()
	p.mu.Unlock()
	old.end(ErrRestarted)
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

// connected reports whether there is a session with a process that is known. mu must be held.
func (p *Peer) connected() bool { return p.session != nil && p.proc != nil }

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
