package transfer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"ibverbx/internal/rpc"
)

// SegmentInfo describes a segment offered by a peer.
type SegmentInfo struct {
	// Name is the segment's name, as passed to Peer.Open. It is not escaped.
	Name string
	// Size is the size in bytes.
	Size int64
	// Access is the access that the peer grants to this side.
	Access Access
	// Generation is a number that grows with each named segment of the peer's Engine, so a segment that replaces another one has a higher
	// Generation.
	Generation uint64
}

// maxListed limits the segments in one response.
const maxListed = 256

// maxSegments limits the list of Segments.
const maxSegments = 1 << 20

// Segments returns the segments of the peer that this side may open, sorted by name. It fails with ErrMismatch if the peer's version of this
// package cannot list them, with ErrTooLong for more than a million segments, and otherwise as Open.
func (p *Peer) Segments(ctx context.Context) ([]SegmentInfo, error) {
	if p.engine == nil {
		return nil, newError("list", nil, "", ErrClosed)
	}
	if err := checkContext(ctx); err != nil {
		return nil, newError("list", p, "", err)
	}
	all := []SegmentInfo{}
	for after := ""; ; after = all[len(all)-1].Name {
		proc, err := p.link.Ready(ctx)
		if err != nil {
			return nil, newError("list", p, "", err)
		}
		m, err := rpc.As[*listed](proc.Ask(ctx, p.requests, func(id uint32) []byte { return (&list{id, after}).encode() }))
		if err != nil {
			return nil, newError("list", p, "", err)
		}
		for i := range m.segments {
			if name := m.segments[i].Name; name <= after {
				return nil, newError("list", p, "", fmt.Errorf("%w: segments are not in order", errProtocol))
			}
			after = m.segments[i].Name
		}
		if all = append(all, m.segments...); !m.more {
			return all, nil
		}
		if len(all) >= maxSegments {
			return nil, newError("list", p, "", fmt.Errorf("%w: the peer offers more than %d segments", ErrTooLong, maxSegments))
		}
	}
}

// answerList returns the response to a list request: the segments that the peer may open. Config.Authorize is called for each.
func (p *Peer) answerList(ctx context.Context, m *list) []byte {
	e := p.engine
	e.mu.Lock()
	var segments []*Segment
	for name, s := range e.segments {
		if name > m.after && !s.cfg.Local {
			segments = append(segments, s)
		}
	}
	e.mu.Unlock()
	slices.SortFunc(segments, func(a, b *Segment) int { return strings.Compare(a.name, b.name) })
	answer := listed{id: m.id}
	for _, s := range segments {
		access := p.accessOrNone(ctx, s, Read)
		if access == 0 && e.cfg.Authorize != nil { // it may grant only the requested access
			access = p.accessOrNone(ctx, s, Write)
		}
		switch {
		case access == 0:
		case ctx.Err() != nil:
			return nil // the session has ended
		case len(answer.segments) == maxListed:
			answer.more = true
			return answer.encode()
		default:
			answer.segments = append(answer.segments, SegmentInfo{s.name, s.Len(), access, s.generation})
		}
	}
	return answer.encode()
}

// accessOrNone returns the peer's access to a segment, 0 after an error.
func (p *Peer) accessOrNone(ctx context.Context, s *Segment, want Access) Access {
	access, err := p.authorize(ctx, s, want)
	if err != nil {
		return 0
	}
	return access
}

// authorize returns the peer's access to a segment.
func (p *Peer) authorize(ctx context.Context, s *Segment, want Access) (access Access, err error) {
	access = s.cfg.DefaultAccess
	if decide := p.engine.cfg.Authorize; decide != nil {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		access, err = decide(ctx, p.node, s.name, want)
	}
	if s.readOnly {
		access &^= Write
	}
	return access & (Read | Write), err
}
