package transfer

import (
	"context"
	"fmt"
	"slices"

	"ibverbx"
	"ibverbx/internal/service"
)

// Both sides start a session with a hello. It contains the sender's id, the peer's id if known, and
// the number of notifications received from that peer. Each id identifies the sender's complete
// state about the peer. A hello with an unknown id thus indicates that the sender has lost its
// state. A hello without the receiver's id indicates that the sender starts from zero once it gets
// the receiver's hello.

// hello starts a session. It returns the hello, or nil if the Engine is closed.
func (p *Peer) hello(s service.Session) (*hello, error) {
	if err := p.mailbox.make(p); err != nil {
		return nil, err
	}
	p.setName()
	p.link.Mu.Lock()
	old, queued := p.link.Expect(s), p.queued
	m := &hello{id: p.link.ID, mailbox: p.mailbox.remote()}
	if proc := p.link.Proc; proc != nil && old == nil {
		m.seen, m.arrived, m.read = proc.ID, proc.in.arrived, proc.in.read
		proc.in.unreported = 0
	}
	p.link.Mu.Unlock()
	old.end(ErrRestarted)
	switch {
	case p.engine.isClosed():
		return nil, nil
	case queued > maxQueued:
		return nil, fmt.Errorf("%w: the program does not read its notifications", ErrBusy)
	}
	return m, nil
}

// up processes the peer's hello.
func (p *Peer) up(s service.Session, m *hello) error {
	p.link.Mu.Lock()
	if p.engine.isClosed() {
		p.link.Mu.Unlock()
		return ErrClosed
	}
	proc := p.link.Known(m.id)
	if proc == nil {
		proc = p.newProcess(s.Incarnation(), m)
	}
	if !sameRegion(&proc.mailbox, &m.mailbox) {
		p.link.Mu.Unlock()
		return fmt.Errorf("%w: the mailbox has changed", errProtocol)
	}
	var arrived, read uint64
	if m.seen == p.link.ID {
		arrived, read = m.arrived, m.read
	}
	p.number = s.Number()
	old := p.link.Begin(context.Background(), s, proc)
	var c *credit
	var revokes []*revoke
	notes, done, err := proc.out.resume(arrived, read)
	if err == nil {
		c, revokes = proc.credit(), proc.revokes()
	}
	p.link.Mu.Unlock()
	old.end(ErrRestarted)
	for _, t := range done {
		t.finish(nil)
	}
	p.submitNotifications(notes)
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
		Process: p.link.NewProcess(m.id, incarnation), peer: p, mailbox: m.mailbox,
		remotes: map[uint32]*Remote{}, granted: map[uint32]*grantedSegment{},
	}
	proc.out.proc = proc
	proc.granted[mailboxGrant] = &grantedSegment{number: mailboxGrant, stopped: make(chan struct{})}
	return proc
}

// revokes returns the revocations that the peer may have missed. mu must be held.
func (proc *process) revokes() (list []*revoke) {
	for _, l := range proc.granted {
		if l.revoking {
			list = append(list, proc.revoke(l.number))
		}
	}
	return list
}

// sameRegion reports whether two descriptions are of the same memory. A key may be 0 in one of them, because a device had failed.
func sameRegion(a, b *ibverbx.RemoteRegion) bool {
	same := func(x, y uint32) bool { return x == y || x == 0 || y == 0 }
	return a.Addr == b.Addr && a.Length == b.Length && slices.EqualFunc(a.RKeys, b.RKeys, same)
}
