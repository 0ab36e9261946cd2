package transfer

import (
	"fmt"

	"ibverbx"
)

// Loan is a segment that a peer's process may use without having opened it. Segment.Close revokes it.
type Loan struct {
	proc *process
	lent *lending
}

// Lend grants the peer's present process access to a segment, even to a Local one. The program sends Number and Region to the peer, which
// passes them to Borrow. A package on top of this one lends memory in its own requests this way: see package files.
func (p *Peer) Lend(s *Segment, access Access) (*Loan, error) {
	l, err := p.lendTo(s, access)
	if err != nil {
		return nil, newError("lend", p, s.name, err)
	}
	return l, nil
}

func (p *Peer) lendTo(s *Segment, access Access) (*Loan, error) {
	if access == 0 || access&^(Read|Write) != 0 || s.readOnly && access&Write != 0 {
		return nil, fmt.Errorf("%w: %v", ErrDenied, access)
	}
	if !s.enter() {
		return nil, ErrClosed
	}
	defer s.leave()
	p.link.Mu.Lock()
	proc, err := p.link.Proc, p.link.Err
	p.link.Mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case proc == nil:
		return nil, errNoEngine
	}
	region, err := s.memory.Remote(p.service, access.verbs())
	if err != nil {
		return nil, err
	}
	return &Loan{proc, p.lendingOf(proc, s, access, region)}, nil
}

// Number identifies the loan to the peer.
func (l *Loan) Number() uint32 { return l.lent.number }

// Region describes the memory to the peer.
func (l *Loan) Region() ibverbx.RemoteRegion { return l.lent.region }

// Ended reports whether the borrowing process is known to have ended.
func (l *Loan) Ended() bool { return l.proc.Over() }

// maxRemotes bounds the loans of a process to this side.
const maxRemotes = 4096

// Borrow returns the segment that the peer's present process has lent to this side (Lend). The peer revokes it by a message of its own, so a
// caller that gets number and region in a message calls Borrow before it returns from the handler of that message. An error is a
// protocol violation of the peer, unless it wraps ErrPeerGone.
func (p *Peer) Borrow(number uint32, region *ibverbx.RemoteRegion, access Access) (*Remote, error) {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	proc := p.link.Proc
	if proc == nil {
		return nil, newError("borrow", p, "", errNoEngine)
	}
	r := proc.remotes[number]
	switch {
	case number == mailboxGrant:
		return nil, newError("borrow", p, "", fmt.Errorf("%w: the mailbox", errProtocol))
	case r == nil && len(proc.remotes) >= maxRemotes:
		return nil, newError("borrow", p, "", fmt.Errorf("%w: %d segments were lent", errProtocol, maxRemotes))
	case r == nil:
		r = &Remote{peer: p, proc: proc, number: number, access: access, region: *region}
		proc.remotes[number] = r
	case !sameRegion(&r.region, region) || r.access&access != access:
		return nil, newError("borrow", p, "", fmt.Errorf("%w: loan %d has changed", errProtocol, number))
	}
	return r, nil
}
