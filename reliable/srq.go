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

// srq is a user's shared receive queue. Its receives belong to no QP until a message takes one. The peers of
// its QPs tell how many messages they have. Each is promised receives, but no particular ones, and sends only
// that many messages. The first chunk of a message then takes the oldest receive:
//
//	posted --> free --> promised to a peer --> taken by a message --> completed
//	             ^---------- the QP ends ---------------+
//
// A QP is promised at most as many as are left for the others. So those that come later find some, and a
// peer that asks and never sends holds back a part. With none left, QPs wait and are served in turn.
//
// Its first QP chooses the engine that runs all its QPs. The lock of the engine guards the fields below mu, and mu
// does while there is no engine; see enter.
type srq struct {
	pd     *pd
	engine atomic.Pointer[engine] // is set once, by the first QP

	mu       sync.Mutex
	recvs    ring.Ring[verbs.RecvWR] // the receives that no message has taken
	maxWR    int                     // the limit of held
	held     atomic.Int32            // the places that are taken: a receive keeps its place until its completion was polled
	maxSGE   int                     // the limit of elements of a receive
	promised int                     // the number of receives of recvs that are promised
	limit    int                     // the event is raised when fewer are free; 0 is disarmed
	waiting  ring.Ring[*qp]          // the QPs whose peers want more, in turn, each once
	due      bool                    // reports that receives became free since serve
	users    int                     // counts the wrapped QPs
	closed   bool                    // set by Close
	// inner has the receives if QPs that are not wrapped use the SRQ, nil before the first of them.
	inner verbs.SRQ
}

var _ verbs.SRQ = (*srq)(nil)

// sharing is what a QP with an SRQ knows of its peer's demand. Numbers are totals that wrap.
type sharing struct {
	srq      *srq   // nil for a QP with receives of its own
	wanted   uint32 // the number of messages that the peer has told of
	promised uint32 // the number of receives that the peer knows of
	waits    bool   // reports that the QP is in srq.waiting
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

// enter locks the SRQ and returns its engine, nil if it has none. exit undoes it.
func (s *srq) enter() *engine {
	for {
		e := s.engine.Load()
		if e != nil {
			e.mu.Lock()
		}
		s.mu.Lock()
		if s.engine.Load() == e {
			return e
		}
		s.exit(e)
	}
}

func (s *srq) exit(e *engine) {
	s.mu.Unlock()
	if e != nil {
		e.mu.Unlock()
	}
}

// join notes that a QP of an engine uses the SRQ. The engine is locked.
func (s *srq) join(e *engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.engine.Load() == nil {
		s.engine.Store(e)
		e.srqs = append(e.srqs, s)
	}
}

// usable returns the SRQ of the configuration of a QP, nil if it has none, or why the QP cannot use it. The context
// is locked.
func (p *pd) usable(cfg *verbs.QPConfig) (*srq, error) {
	if cfg.SRQ == nil {
		return nil, nil
	}
	s, ok := cfg.SRQ.(*srq)
	if !ok || s == nil || s.pd != p {
		return nil, verbs.Invalidf("QPConfig.SRQ is nil or belongs to another PD")
	}
	defer s.exit(s.enter())
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
	e := s.enter()
	defer s.exit(e)
	switch {
	case s.isClosed():
		return 0, s.opError("post receive to SRQ", verbs.ErrClosed)
	case s.inner != nil:
		return s.inner.PostRecv(wrs)
	}
	for i := range wrs {
		if int(s.held.Load()) >= s.maxWR {
			err = verbs.ErrQueueFull
			break
		}
		if int(wrs[i].NumSGE) > s.maxSGE {
			err = s.opError("post receive to SRQ", verbs.Invalidf("%d elements, the SRQ was made for %d", wrs[i].NumSGE, s.maxSGE))
			break
		}
		*s.recvs.Extend() = wrs[i]
		s.held.Add(1)
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
	defer s.exit(s.enter())
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
	e := s.enter()
	defer s.exit(e)
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

// lend returns an SRQ for QPs that are not wrapped. All receives go there from now on.
func (s *srq) lend() (verbs.SRQ, error) {
	defer s.exit(s.enter())
	if s.inner != nil {
		return s.inner, nil
	}
	inner, err := s.pd.inner.CreateSRQ(verbs.SRQConfig{MaxWR: s.maxWR, MaxSGE: s.maxSGE, Limit: s.limit})
	if err != nil {
		return nil, err
	}
	for s.recvs.Len() > 0 {
		if _, err := inner.PostRecv([]verbs.RecvWR{*s.recvs.Front()}); err != nil {
			return nil, errors.Join(err, inner.Close())
		}
		s.recvs.Drop(1)
	}
	s.inner = inner
	s.pd.ctx.events.lend(inner, s)
	return inner, nil
}

// left is the number of receives that are neither taken nor promised.
func (s *srq) left() int { return s.recvs.Len() - s.promised }

// checkLimit raises the limit event when fewer receives are left than the limit says, and disarms it.
func (s *srq) checkLimit() {
	if s.left() < s.limit {
		s.limit = 0
		s.pd.ctx.events.raise(verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

// promise promises up to n receives to the peer of a QP, and returns how many.
func (s *srq) promise(q *qp, n int) (k int) {
	for k < n && q.shared.wants(&q.recvs) && int(q.shared.promised-q.recvs.Tail()) < s.left() {
		q.shared.promised++
		s.promised++
		k++
	}
	if k > 0 {
		s.checkLimit()
	}
	return k
}

// serve promises the receives that are left to the QPs that wait, in turn.
func (s *srq) serve() {
	s.due = false
	for given := 1; given > 0 && s.waiting.Len() > 0; {
		given = 0
		share := max(s.left()/s.waiting.Len(), 1)
		for n := s.waiting.Len(); n > 0 && s.left() > 0; n-- {
			q := s.waiting.Pop()
			q.shared.waits = false
			k := s.promise(q, share)
			given += k
			if s.queueUp(q); k > 0 {
				q.step(&core.Event{Kind: core.EvReceives, Count: k})
				q.engine.rekick(q.conn)
			}
		}
	}
}

// wants reports whether the peer of a QP has a message without a promised receive, and can send it: a flow has
// no more messages in flight than chunks, and recvs has room for all of them.
func (d *sharing) wants(recvs *ring.Ring[verbs.RecvWR]) bool {
	return int32(d.wanted-d.promised) > 0 && int(d.promised-recvs.Head()) < recvs.Cap()
}

// queueUp makes a QP wait for receives if its peer wants more.
func (s *srq) queueUp(q *qp) {
	if !q.shared.waits && q.shared.wants(&q.recvs) {
		q.shared.waits = true
		s.waiting.Push(q)
	}
}

// want takes the number of messages that the peer has, and answers with a promise.
func (q *qp) want(messages uint32) {
	if int32(messages-q.shared.wanted) > 0 {
		q.shared.wanted = messages
	}
	q.shared.srq.tell(q, true)
}

// tell promises more receives to the peer of a QP if it wants some. The next step tells it, also of none if
// it has asked.
func (s *srq) tell(q *qp, asked bool) {
	k := s.promise(q, q.recvs.Cap())
	s.queueUp(q)
	if k > 0 || asked {
		q.conn.queue = append(q.conn.queue, core.Event{Kind: core.EvReceives, Flow: q.flow, Count: k})
	}
}

// take gives the messages of a QP up to n, counted from the oldest that has not completed, their receives. It
// reports whether as many were promised.
func (s *srq) take(q *qp, n uint32) bool {
	if n >= q.shared.promised-q.recvs.Head() {
		return false
	}
	if n < uint32(q.recvs.Len()) {
		return true
	}
	for n >= uint32(q.recvs.Len()) {
		*q.recvs.Extend() = *s.recvs.Front()
		s.recvs.Drop(1)
		s.promised--
	}
	s.tell(q, false)
	return true
}

// release takes back what was promised to the peer of a QP that ends. Receives that messages have taken return
// to the front, unless they have completed.
func (s *srq) release(q *qp) {
	s.promised -= int(q.shared.promised - q.recvs.Tail())
	if q.recvs.Len() > 0 {
		behind := s.recvs.Len()
		for ; q.recvs.Len() > 0; q.recvs.Drop(1) {
			s.recvs.Push(*q.recvs.Front())
		}
		for range behind {
			s.recvs.Push(s.recvs.Pop())
		}
	}
	q.shared.wanted, q.shared.promised, s.due = q.recvs.Tail(), q.recvs.Tail(), true
	if q.shared.waits {
		q.shared.waits = false
		for range s.waiting.Len() {
			if o := s.waiting.Pop(); o != q {
				s.waiting.Push(o)
			}
		}
	}
}
