package transfer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Segment is memory with a name that transfers use and that peers may be lent.
type Segment struct {
	engine *Engine
	name   string
	cfg    SegmentConfig
	// readOnly memory is the source of transfers and is lent for reading only.
	readOnly bool
	mem      *verbs.Memory
	memory   service.Memory
	// release gives mem back when nothing is registered any more.
	release func() error
	// last is the registration for requests of this side that was used last.
	last atomic.Pointer[realmRegion]
	// uses counts the transfers and answers that use the memory. closing is added when no more may begin.
	uses atomic.Int64
	// closing adds that once. idle is closed, once, when uses has reached it.
	closing  sync.Once
	idle     chan struct{}
	idleOnce sync.Once
	// freeMu guards freed, which is true once the memory was given back.
	freeMu sync.Mutex
	freed  bool
}

// closing is far from any count of uses.
const closing = math.MinInt64 / 2

type realmRegion struct {
	realm  string
	region *ibverbx.Region
}

// revokeTimeout is how long a peer has to stop using a segment that is closed.
const revokeTimeout = 5 * time.Second

// Alloc returns a segment of size zeroed bytes. An empty name means that it is Local.
func (e *Engine) Alloc(name string, size int64, cfg SegmentConfig) (*Segment, error) {
	if size <= 0 || size > math.MaxInt {
		return nil, newError("alloc", nil, name, fmt.Errorf("%w: %d bytes", ErrRange, size))
	}
	mem, err := verbs.AllocMemory(int(size), &verbs.MemoryConfig{HugePages: cfg.HugePages})
	if err != nil {
		return nil, newError("alloc", nil, name, err)
	}
	return e.add("alloc", &Segment{name: name, cfg: cfg, mem: mem, release: mem.Free})
}

// Adopt makes a segment of memory of the program, which may be memory of a device such as a GPU. Close does not free it. Until Close has
// returned, mem.Free returns verbs.ErrBusy.
func (e *Engine) Adopt(name string, mem *verbs.Memory, cfg SegmentConfig) (*Segment, error) {
	if mem == nil || mem.Len() == 0 {
		return nil, newError("adopt", nil, name, verbs.Invalidf("no memory"))
	}
	if err := mem.Retain(); err != nil {
		return nil, newError("adopt", nil, name, fmt.Errorf("the memory: %w", err))
	}
	release := func() error {
		mem.Release()
		return nil
	}
	return e.add("adopt", &Segment{name: name, cfg: cfg, mem: mem, release: release})
}

// MapFile makes a segment of a file that is mapped read-only. The file must not become shorter while it is mapped: an access behind its end
// kills the process. It is meant for files in memory (tmpfs, hugetlbfs) and for those that nobody changes.
func (e *Engine) MapFile(name, path string, cfg SegmentConfig) (*Segment, error) {
	b, unmap, err := mapFile(path)
	if err != nil {
		return nil, newError("map file", nil, name, err)
	}
	m, err := verbs.AdoptMemory(b)
	if err != nil {
		return nil, newError("map file", nil, name, errors.Join(err, unmap()))
	}
	return e.add("map file", &Segment{name: name, cfg: cfg, readOnly: true, mem: m, release: unmap})
}

// add makes a segment known by its name. If that fails, the memory is given back.
func (e *Engine) add(op string, s *Segment) (*Segment, error) {
	var err error
	s.engine, s.idle = e, make(chan struct{})
	s.cfg.Local = s.cfg.Local || s.name == ""
	s.memory = e.service.Register(s.mem)
	e.mu.Lock()
	switch {
	case len(s.name) > MaxNameLen:
		err = fmt.Errorf("the name has %d bytes, at most %d: %w", len(s.name), MaxNameLen, ErrTooLong)
	case !utf8.ValidString(s.name):
		err = verbs.Invalidf("the name is not UTF-8")
	case s.cfg.DefaultAccess&^(Read|Write) != 0 || s.readOnly && s.cfg.DefaultAccess&Write != 0:
		err = fmt.Errorf("public %v: %w", s.cfg.DefaultAccess, ErrDenied)
	case e.closed:
		err = ErrClosed
	case s.name != "" && e.segments[s.name] != nil:
		err = verbs.Invalidf("there is a segment of that name")
	default:
		if s.name != "" {
			e.segments[s.name] = s
		}
		e.all[s] = struct{}{}
	}
	e.mu.Unlock()
	if err != nil {
		return nil, newError(op, nil, s.name, errors.Join(err, s.memory.Close(), s.release()))
	}
	return s, nil
}

// Name is the name.
func (s *Segment) Name() string { return s.name }

// Len is the number of bytes.
func (s *Segment) Len() int64 { return int64(s.mem.Len()) }

// Bytes returns the memory. Read what a transfer wrote only after its end, or after its notification. It must not be used after Close. It is
// nil if a device has the memory: use ReadAt and WriteAt of what was adopted.
func (s *Segment) Bytes() []byte { return s.mem.Bytes() }

// LocalRange is a part of a segment on this side.
type LocalRange struct {
	segment *Segment
	off, n  int64
}

// Slice returns n bytes at off. Submit checks them.
func (s *Segment) Slice(off, n int64) LocalRange { return LocalRange{s, off, n} }

// enter keeps the memory until leave. It fails if the segment is being closed.
func (s *Segment) enter() bool {
	if s.uses.Add(1) < 0 {
		s.leave()
		return false
	}
	return true
}

func (s *Segment) leave() {
	if s.uses.Add(-1) == closing {
		s.idleOnce.Do(func() { close(s.idle) })
	}
}

// local returns the registration for requests of this side to a peer.
func (s *Segment) local(p *Peer) (*ibverbx.Region, error) {
	if r := s.last.Load(); r != nil && r.realm == p.realm {
		return r.region, nil
	}
	var access verbs.Access
	if s.readOnly {
		access = Read.verbs()
	}
	region, err := s.memory.Region(p.service, access)
	if err == nil {
		s.last.Store(&realmRegion{p.realm, region})
	}
	return region, err
}

// Close takes the segment back and frees it, unless it was adopted. Transfers of this side that use it are canceled. Peers that were lent it are told to stop, and
// have 5 s, or until ctx ends. The sessions of those that do not answer are ended. They connect again, and nothing of theirs reaches the
// memory. A peer that is not connected is told when it is. If transfers cannot be ended before ctx ends, Close returns an error,
// nothing is freed, and it can be called again.
func (s *Segment) Close(ctx context.Context) error {
	e := s.engine
	peers := e.known()
	if err := s.stop(ctx, peers); err != nil {
		return err
	}
	e.revoke(ctx, peers, func(l *lending) bool { return l.segment == s })
	return s.free()
}

// stop makes sure that nothing of this side uses the memory any more.
func (s *Segment) stop(ctx context.Context, peers []*Peer) error {
	e := s.engine
	e.mu.Lock()
	if e.segments[s.name] == s {
		delete(e.segments, s.name)
	}
	e.mu.Unlock()
	s.closing.Do(func() {
		s.uses.Add(closing + 1)
		s.leave()
	})
	select {
	case <-s.idle:
		return nil
	default:
	}
	for _, p := range peers {
		p.cancelUsers(func(part part) bool { return part.segment == s }, ErrClosed)
	}
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
		return newError("close", nil, s.name, fmt.Errorf("transfers are under way: %w", context.Cause(ctx)))
	}
}

// free ends the registrations, so that no key works any more, and gives the memory back.
func (s *Segment) free() error {
	s.freeMu.Lock()
	defer s.freeMu.Unlock()
	if s.freed {
		return nil
	}
	err := s.memory.Close()
	if err == nil {
		err = s.release()
	}
	if err != nil {
		return newError("close", nil, s.name, err)
	}
	s.freed = true
	e := s.engine
	e.mu.Lock()
	delete(e.all, s)
	e.mu.Unlock()
	return nil
}
