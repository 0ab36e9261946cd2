package transfer

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Grant is the access of one peer process to a segment, granted without Peer.Open. Segment.Close revokes it.
type Grant struct {
	proc    *process
	segment *grantedSegment
}

// Grant grants the peer's current process access to a segment, including a Local one. The caller sends Number and Region to the peer, which
// passes them to OpenGrant. Grant returns ErrDenied for access that is empty or that the segment does not support, ErrClosed for a closed
// segment, and ErrPeerGone if the peer does not have an Engine.
func (p *Peer) Grant(s *Segment, access Access) (*Grant, error) {
	if p.engine == nil || s == nil || s.engine == nil {
		return nil, newError("grant", p, "", fmt.Errorf("%w: the Peer or the Segment", ErrClosed))
	}
	l, err := p.grantTo(s, access)
	if err != nil {
		return nil, newError("grant", p, s.name, err)
	}
	return l, nil
}

func (p *Peer) grantTo(s *Segment, access Access) (*Grant, error) {
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
	return &Grant{proc, p.grantOf(proc, s, access, region)}, nil
}

// Number identifies the grant to the peer. It is unique within the Engine.
func (g *Grant) Number() uint32 {
	if g.segment == nil {
		return 0
	}
	return g.segment.number
}

// Region returns the address and keys that the peer needs.
func (g *Grant) Region() ibverbx.RemoteRegion {
	if g.segment == nil {
		return ibverbx.RemoteRegion{}
	}
	return g.segment.region
}

// Ended reports whether the peer's process is known to have exited.
func (g *Grant) Ended() bool { return g.proc == nil || g.proc.Over() }

// maxRemotes limits the grants accepted from one process, without the segments that the program has opened by name.
const maxRemotes = 4096

// unnamed returns the number of grants accepted by OpenGrant. Peer.link.Mu must be held.
func (proc *process) unnamed() (n int) {
	for _, r := range proc.remotes {
		if r.name == "" {
			n++
		}
	}
	return n
}

// OpenGrant returns the segment covered by a Grant from the peer's current process. The peer's Engine sends revocations on its own, so a
// message handler that receives number and region must call OpenGrant before it returns. An error that does not wrap ErrPeerGone is a
// protocol violation by the peer.
func (p *Peer) OpenGrant(number uint32, region *ibverbx.RemoteRegion, access Access) (*Remote, error) {
	if region == nil {
		return nil, newError("open grant", p, "", verbs.Invalidf("the region is nil"))
	}
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	proc := p.link.Proc
	if proc == nil {
		return nil, newError("open grant", p, "", errNoEngine)
	}
	r := proc.remotes[number]
	switch {
	case number == mailboxGrant:
		return nil, newError("open grant", p, "", fmt.Errorf("%w: the mailbox", errProtocol))
	case r == nil && len(proc.remotes) >= maxRemotes && proc.unnamed() >= maxRemotes:
		return nil, newError("open grant", p, "", fmt.Errorf("%w: more than %d grants", errProtocol, maxRemotes))
	case r == nil:
		r = &Remote{peer: p, proc: proc, number: number, access: access, region: *region}
		proc.remotes[number] = r
	case !sameRegion(&r.region, region) || r.access&access != access:
		return nil, newError("open grant", p, "", fmt.Errorf("%w: grant %d has changed", errProtocol, number))
	}
	return r, nil
}
