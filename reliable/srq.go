package reliable

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/ring"
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

const (
	// maxSRQ is the limit of a context's SRQs.
	maxSRQ = 1 << 12
	// maxSRQWR is the limit of receives in an SRQ.
	maxSRQWR = 1 << 16
)

// srq is a user's shared receive queue. A receive belongs to no QP until a message consumes it. Each peer
// requests receives for its messages and is granted a number of them, and sends only that many messages. The
// first chunk of a message consumes the oldest receive:
//
//	posted --> free --> granted to a peer --> consumed by a message --> completed
//	             ^---------- the QP closes ---------------+
//
// A peer is granted at most as many receives as remain for the others, so later peers find some, and a peer
// that never uses its grant holds only part of the queue. Peers without a grant are served round-robin.
//
// All QPs run in the engine of the first QP. The engine's lock guards the fields below mu; mu guards them
// while there is no engine (see lock).
type srq struct {
	pd     *pd
	engine atomic.Pointer[engine] // is set once, by the first QP

	mu       sync.Mutex
	recvs    ring.Ring[verbs.RecvWR] // the receives that no message has taken
	maxWR    int                     // the limit of occupied
	occupied atomic.Int32            // the occupied slots: a receive keeps its slot until its completion is polled
	maxSGE   int                     // the limit of elements of a receive
	granted  int                     // the number of granted receives in recvs
	limit    int                     // the event is raised when fewer are free; 0 is disarmed
	waiting  ring.Ring[*qp]          // the QPs whose peers want more, round-robin, each once
	due      bool                    // set when receives became free since the last grantWaiting
	users    int                     // counts the wrapped QPs
	closed   bool                    // set by Close
	// inner has the receives if QPs that are not wrapped use the SRQ, nil before the first of them.
	inner verbs.SRQ
}

var _ verbs.SRQ = (*srq)(nil)

// sharing is a QP's use of an SRQ. Numbers are totals that wrap.
type sharing struct {
	srq     *srq   // nil for a QP with receives of its own
	wanted  uint32 // the number of messages announced by the peer
	granted uint32 // the number of receives granted to the peer
	waits   bool   // set while the QP is in srq.waiting
}

func (p *pd) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	p.ctx.mu.Lock()
	defer p.ctx.mu.Unlock()
	var err error
	switch {
	case p.closed || p.ctx.closed.Load():
		err = verbs.ErrClosed
	case cfg.MaxWR <= 0 || cfg.MaxWR > maxSRQWR:
		err = verbs.Invalidf("SRQConfig.MaxWR is %d: want 1 to %d", cfg.MaxWR, maxSRQWR)
	case cfg.MaxSGE < 0 || cfg.MaxSGE > verbs.MaxSGE:
		err = verbs.Invalidf("SRQConfig.MaxSGE is %d: want 0 to %d", cfg.MaxSGE, verbs.MaxSGE)
	case cfg.Limit < 0 || cfg.Limit > cfg.MaxWR:
		err = verbs.Invalidf("SRQConfig.Limit is %d: want 0 to MaxWR, %d", cfg.Limit, cfg.MaxWR)
	case p.srqs >= maxSRQ:
		err = verbs.ErrLimit
	}
	if err != nil {
		return nil, p.ctx.opError("create SRQ", 0, err)
	}
	p.srqs++
	return &srq{
		pd: p, recvs: ring.New[verbs.RecvWR](cfg.MaxWR),
		maxWR: cfg.MaxWR, maxSGE: max(cfg.MaxSGE, 1), limit: cfg.Limit,
	}, nil
}

// lock locks the SRQ and returns its engine, nil if it has none.
func (s *srq) lock() *engine {
	for {
		e := s.engine.Load()
		if e != nil {
			e.mu.Lock()
		}
		s.mu.Lock()
		if s.engine.Load() == e {
			return e
		}
		s.unlock(e)
	}
}

func (s *srq) unlock(e *engine) {
	s.mu.Unlock()
	if e != nil {
		e.mu.Unlock()
	}
}

// join counts a QP of an engine. The engine is locked.
func (s *srq) join(e *engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.engine.Load() == nil {
		s.engine.Store(e)
		e.srqs = append(e.srqs, s)
	}
}

// usable returns the SRQ of a QP's configuration, nil without one, or an error if the QP cannot use it. The context
// is locked.
func (p *pd) usable(cfg *verbs.QPConfig) (*srq, error) {
	if cfg.SRQ == nil {
		return nil, nil
	}
	s, ok := cfg.SRQ.(*srq)
	if !ok || s == nil || s.pd != p {
		return nil, verbs.Invalidf("QPConfig.SRQ is nil or belongs to another PD")
	}
	defer s.unlock(s.lock())
	switch {
	case s.closed:
		return nil, verbs.Invalidf("QPConfig.SRQ is closed")
	case cfg.MaxRecvWR != 0:
		return nil, verbs.Invalidf("QPConfig.MaxRecvWR is %d: with an SRQ it must be 0", cfg.MaxRecvWR)
	case cfg.Type == verbs.RC && s.inner != nil, cfg.Type != verbs.RC && s.users > 0:
		return nil, fmt.Errorf("%w: an SRQ of a wrapped context serves either RC QPs or QPs of other types", verbs.ErrNotSupported)
	}
	return s, nil
}

func (s *srq) MaxWR() int { return s.maxWR }

func (s *srq) PostRecv(wrs []verbs.RecvWR) (n int, err error) {
	e := s.lock()
	defer s.unlock(e)
	switch {
	case s.isClosed():
		return 0, s.opError("post receive to SRQ", verbs.ErrClosed)
	case s.inner != nil:
		return s.inner.PostRecv(wrs)
	}
	for i := range wrs {
		if int(s.occupied.Load()) >= s.maxWR {
			err = verbs.ErrQueueFull
			break
		}
		if int(wrs[i].NumSGE) > s.maxSGE {
			err = s.opError("post receive to SRQ", verbs.Invalidf("%d elements, the SRQ was made for %d", wrs[i].NumSGE, s.maxSGE))
			break
		}
		*s.recvs.Extend() = wrs[i]
		s.occupied.Add(1)
		n++
	}
	if s.waiting.Len() > 0 {
		e.now = s.pd.ctx.clock()
		s.due = true
		e.flush()
	}
	return n, err
}

func (s *srq) SetLimit(limit int) error {
	defer s.unlock(s.lock())
	switch {
	case s.isClosed():
		return s.opError("modify SRQ", verbs.ErrClosed)
	case limit < 0 || limit > s.maxWR:
		return s.opError("modify SRQ", verbs.Invalidf("SRQ limit %d: want 0 to %d", limit, s.maxWR))
	case s.inner != nil:
		return s.inner.SetLimit(limit)
	}
	s.limit = limit
	s.checkLimit()
	return nil
}

func (s *srq) Close() error {
	s.pd.ctx.mu.Lock()
	defer s.pd.ctx.mu.Unlock()
	e := s.lock()
	defer s.unlock(e)
	if s.isClosed() {
		return nil
	}
	if s.users > 0 {
		return s.opError("close SRQ", fmt.Errorf("%w: %d QPs use it", verbs.ErrBusy, s.users))
	}
	if s.inner != nil {
		if err := s.inner.Close(); err != nil {
			return err
		}
	}
	s.closed = true
	s.pd.srqs--
	if e != nil {
		e.srqs = slices.DeleteFunc(e.srqs, func(o *srq) bool { return o == s })
	}
	s.pd.ctx.events.closeSRQ(s)
	return nil
}

func (s *srq) isClosed() bool { return s.closed || s.pd.ctx.closed.Load() }

func (s *srq) opError(op string, err error) error { return s.pd.ctx.opError(op, 0, err) }

// moveToDevice moves the receives to a device SRQ, which QPs that are not wrapped use from now on.
func (s *srq) moveToDevice() (verbs.SRQ, error) {
	defer s.unlock(s.lock())
	if s.inner != nil {
		return s.inner, nil
	}
	inner, err := s.pd.inner.CreateSRQ(verbs.SRQConfig{MaxWR: s.maxWR, MaxSGE: s.maxSGE, Limit: s.limit})
	if err != nil {
		return nil, err
	}
	for i := s.recvs.Head(); i != s.recvs.Tail(); i++ {
		if _, err := inner.PostRecv([]verbs.RecvWR{*s.recvs.At(i)}); err != nil {
			return nil, errors.Join(err, inner.Close())
		}
	}
	s.recvs.Drop(s.recvs.Len())
	s.inner = inner
	s.pd.ctx.events.borrow(inner, s)
	return inner, nil
}

// ungranted is the number of receives that are neither consumed nor granted.
func (s *srq) ungranted() int { return s.recvs.Len() - s.granted }

// checkLimit raises the limit event, once, if fewer receives than the limit are free.
func (s *srq) checkLimit() {
	if s.ungranted() < s.limit {
		s.limit = 0
		s.pd.ctx.events.raise(verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

// grant grants up to n receives to the peer of a QP and returns their number.
func (s *srq) grant(q *qp, n int) (k int) {
	for k < n && q.shared.wantsMore(&q.recvs) && int(q.shared.granted-q.recvs.Tail()) < s.ungranted() {
		q.shared.granted++
		s.granted++
		k++
	}
	if k > 0 {
		s.checkLimit()
	}
	return k
}

// grantWaiting grants the remaining receives to the waiting QPs, round-robin.
func (s *srq) grantWaiting() {
	s.due = false
	for given := 1; given > 0 && s.waiting.Len() > 0; {
		given = 0
		share := max(s.ungranted()/s.waiting.Len(), 1)
		for n := s.waiting.Len(); s.waiting.Len() > 0 && n > 0 && s.ungranted() > 0; n-- { // a step may fail waiting QPs
			q := s.waiting.Pop()
			q.shared.waits = false
			k := s.grant(q, share)
			given += k
			if s.enqueue(q); k > 0 {
				q.step(&core.Event{Kind: core.EvReceives, Count: k})
				q.engine.wakeForTimer(q.conn)
			}
		}
	}
}

// wantsMore reports whether the peer of a QP has a message without a granted receive and can send it: a flow has
// at most as many messages in flight as chunks, and recvs holds them all.
func (d *sharing) wantsMore(recvs *ring.Ring[verbs.RecvWR]) bool {
	return int32(d.wanted-d.granted) > 0 && int(d.granted-recvs.Head()) < recvs.Cap()
}

// enqueue adds a QP to waiting if its peer wants more receives.
func (s *srq) enqueue(q *qp) {
	if !q.shared.waits && q.shared.wantsMore(&q.recvs) {
		q.shared.waits = true
		s.waiting.Push(q)
	}
}

// onWant records the number of messages that the peer has, and responds with a grant.
func (q *qp) onWant(messages uint32) {
	if int32(messages-q.shared.wanted) > 0 {
		q.shared.wanted = messages
	}
	q.shared.srq.advertise(q, true)
}

// advertise grants receives to the peer of a QP if it wants some. The next step sends the grant; a peer that
// has requested one also gets an empty one.
func (s *srq) advertise(q *qp, requested bool) {
	k := s.grant(q, q.recvs.Cap())
	s.enqueue(q)
	if k > 0 || requested {
		q.conn.queue = append(q.conn.queue, core.Event{Kind: core.EvReceives, Flow: q.flow, Count: k})
	}
}

// consume assigns receives to the messages of a QP up to n, counted from the oldest incomplete one. It reports
// whether so many were granted.
func (s *srq) consume(q *qp, n uint32) bool {
	if n >= q.shared.granted-q.recvs.Head() {
		return false
	}
	if n < uint32(q.recvs.Len()) {
		return true
	}
	for n >= uint32(q.recvs.Len()) {
		*q.recvs.Extend() = *s.recvs.Front()
		s.recvs.Drop(1)
		s.granted--
	}
	s.advertise(q, false)
	return true
}

// releaseGrants revokes the grants of a QP's peer. Receives that incomplete messages have consumed return to the
// front of the queue.
func (s *srq) releaseGrants(q *qp) {
	s.granted -= int(q.shared.granted - q.recvs.Tail())
	if q.recvs.Len() > 0 {
		behind := s.recvs.Len()
		for ; q.recvs.Len() > 0; q.recvs.Drop(1) {
			s.recvs.Push(*q.recvs.Front())
		}
		for range behind {
			s.recvs.Push(s.recvs.Pop())
		}
	}
	q.shared.wanted, q.shared.granted, s.due = q.recvs.Tail(), q.recvs.Tail(), true
	if q.shared.waits {
		q.shared.waits = false
		for range s.waiting.Len() {
			if o := s.waiting.Pop(); o != q {
				s.waiting.Push(o)
			}
		}
	}
}
