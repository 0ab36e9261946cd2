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

// Segment is registered memory, usually named, used as source or destination of transfers. Peers access it by name as Config.Authorize or
// SegmentConfig.DefaultAccess permits. All methods are safe for concurrent use.
type Segment struct {
	engine *Engine
	name   string
	cfg    SegmentConfig
	// generation is SegmentInfo.Generation, 0 without a name.
	generation uint64
	// readOnly memory can only be read, locally and by peers.
	readOnly bool
	mem      *verbs.Memory
	memory   service.Memory
	// release frees mem after deregistration.
	release func() error
	// lastRegion is the most recently used registration for local requests.
	lastRegion atomic.Pointer[realmRegion]
	// uses counts the transfers and responses using the memory. The constant closing is added to block new ones.
	uses atomic.Int64
	// closing guards that addition. idle is closed once uses has dropped to the constant.
	closing  sync.Once
	idle     chan struct{}
	idleOnce sync.Once
	// freeMu guards freed, which is set once the memory is released.
	freeMu sync.Mutex
	freed  bool
}

// closing is far from any count of uses.
const closing = math.MinInt64 / 2

type realmRegion struct {
	realm  string
	region *ibverbx.Region
}

// revokeTimeout is the time a peer has to stop using a closed segment.
const revokeTimeout = 5 * time.Second

// Alloc allocates a segment of size zeroed bytes. Only a Local segment may have an empty name. Alloc returns ErrRange if size is not
// positive, ErrTooLong if name exceeds MaxNameLen, verbs.ErrInvalid if name is empty, in use or not UTF-8, ErrDenied for unknown bits in
// cfg.DefaultAccess, and ErrClosed after Engine.Close.
func (e *Engine) Alloc(name string, size int64, cfg SegmentConfig) (*Segment, error) {
	if size <= 0 || size > math.MaxInt {
		return nil, newError("alloc", nil, name, fmt.Errorf("%w: %d bytes", ErrRange, size))
	}
	if !e.isOpen() {
		return nil, newError("alloc", nil, name, ErrClosed)
	}
	mem, err := e.service.Alloc(int(size), &verbs.MemoryConfig{HugePages: cfg.HugePages})
	if err != nil {
		return nil, newError("alloc", nil, name, err)
	}
	return e.add("alloc", &Segment{name: name, cfg: cfg, mem: mem, release: mem.Free})
}

// Adopt turns existing memory, including GPU memory, into a segment. Segment.Close does not free it; until Close has returned, mem.Free
// returns verbs.ErrBusy. Errors are as for Alloc; empty memory returns verbs.ErrInvalid.
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

// MapFile maps a regular, non-empty file read-only as a segment. The file must not shrink while it is mapped: access beyond its end kills
// the process. Use it for files in memory (tmpfs, hugetlbfs) and for immutable files. On systems other than Unix it returns
// errors.ErrUnsupported; other errors are as for Alloc, and ErrDenied if cfg.DefaultAccess includes Write.
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

// add publishes a segment under its name. On error it releases the memory.
func (e *Engine) add(op string, s *Segment) (*Segment, error) {
	if !e.isOpen() {
		return nil, newError(op, nil, s.name, errors.Join(ErrClosed, s.release()))
	}
	var err error
	s.engine, s.idle = e, make(chan struct{})
	s.memory = e.service.Register(s.mem)
	e.mu.Lock()
	switch {
	case len(s.name) > MaxNameLen:
		err = fmt.Errorf("the name has %d bytes, at most %d: %w", len(s.name), MaxNameLen, ErrTooLong)
	case s.name == "" && !s.cfg.Local:
		err = verbs.Invalidf("the name is empty: peers open a segment by name, and SegmentConfig.Local is not set")
	case !utf8.ValidString(s.name):
		err = verbs.Invalidf("the name is not UTF-8")
	case s.cfg.DefaultAccess&^(Read|Write) != 0 || s.readOnly && s.cfg.DefaultAccess&Write != 0:
		err = fmt.Errorf("DefaultAccess %v: %w", s.cfg.DefaultAccess, ErrDenied)
	case e.closed:
		err = ErrClosed
	case s.name != "" && e.segments[s.name] != nil:
		err = verbs.Invalidf("the name is in use")
	default:
		if s.name != "" {
			e.generation++
			s.generation = e.generation
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

// Name returns the segment's name; it may be empty.
func (s *Segment) Name() string { return s.name }

// Len returns the segment's size in bytes.
func (s *Segment) Len() int64 {
	if s.mem == nil {
		return 0
	}
	return int64(s.mem.Len())
}

// Bytes returns the memory, or nil for device memory (use ReadAt and WriteAt of the adopted verbs.Memory). Read the result of a transfer
// only after it has completed or its notification has arrived. Do not use the slice after Close.
func (s *Segment) Bytes() []byte {
	if s.mem == nil {
		return nil
	}
	return s.mem.Bytes()
}

// LocalRange is a range of bytes in a local segment.
type LocalRange struct {
	segment *Segment
	off, n  int64
}

// Slice returns the range of n bytes at off. Batch.Put and Batch.Get check it.
func (s *Segment) Slice(off, n int64) LocalRange { return LocalRange{s, off, n} }

// enter keeps the memory allocated until leave. It returns false if the segment is closing.
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

// local returns the registration for local requests to a peer.
func (s *Segment) local(p *Peer) (*ibverbx.Region, error) {
	if r := s.lastRegion.Load(); r != nil && r.realm == p.realm {
		return r.region, nil
	}
	var access verbs.Access
	if s.readOnly {
		access = Read.verbs()
	}
	region, err := s.memory.Region(p.service, access)
	if err == nil {
		s.lastRegion.Store(&realmRegion{p.realm, region})
	}
	return region, err
}

// Close revokes all access to the segment and frees it, unless it was adopted. Local transfers using it fail with ErrClosed. Close requests
// peers with access to stop and waits up to 5 s, or until ctx is done. The session of a peer that does not respond is closed; its requests
// can no longer reach the memory, and it reconnects. Disconnected peers are notified when they reconnect. If local transfers are still
// running when ctx is done, Close returns an error without freeing anything; call it again.
func (s *Segment) Close(ctx context.Context) error {
	e := s.engine
	if e == nil {
		return newError("close", nil, s.name, ErrClosed)
	}
	if err := checkContext(ctx); err != nil {
		return newError("close", nil, s.name, err)
	}
	peers := e.allPeers()
	if err := s.stop(ctx, peers); err != nil {
		return err
	}
	e.revoke(ctx, peers, func(l *grantedSegment) bool { return l.segment == s })
	return s.free()
}

// stop cancels all local uses of the memory and waits for them.
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
		p.cancelUsers(func(part endpoints) bool { return part.segment == s }, ErrClosed)
	}
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
		return newError("close", nil, s.name, fmt.Errorf("transfers are under way: %w", context.Cause(ctx)))
	}
}

// free deregisters the memory, which invalidates its keys, and releases it.
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
