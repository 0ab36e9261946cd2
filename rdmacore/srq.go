//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"cmp"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"ibverbx/verbs"
)

// srq is a shared receive queue.
type srq struct {
	pd     *pd
	h, key handle
	maxWR  int
	maxSGE int
	users  int // QPs that use it; guarded by the lock of the context

	mu     sync.Mutex
	closed bool
	from   *verbs.RecvWR // never set; see cq.into
}

var _ verbs.SRQ = (*srq)(nil)

func (d *pd) createSRQ(cfg verbs.SRQConfig) (*srq, error) {
	x := d.ctx
	if x.attr.MaxSRQ == 0 {
		return nil, fmt.Errorf("%w: the device has no shared receive queues", verbs.ErrNotSupported)
	}
	cfg.MaxSGE = cmp.Or(cfg.MaxSGE, 1)
	switch {
	case cfg.MaxWR < 1 || cfg.MaxWR > x.attr.MaxSRQWR:
		return nil, verbs.Invalidf("SRQConfig.MaxWR is %d: want 1 to %d", cfg.MaxWR, x.attr.MaxSRQWR)
	case cfg.MaxSGE < 0 || cfg.MaxSGE > x.attr.MaxSRQSGE:
		return nil, verbs.Invalidf("SRQConfig.MaxSGE is %d: want 0 to %d", cfg.MaxSGE, x.attr.MaxSRQSGE)
	case cfg.Limit < 0 || cfg.Limit > cfg.MaxWR:
		return nil, verbs.Invalidf("SRQConfig.Limit is %d: want 0 to MaxWR", cfg.Limit)
	}
	q, errno := cCreateSRQ(x.lib, d.h, cfg.MaxWR, cfg.MaxSGE)
	if errno != 0 {
		return nil, errnoErr(errno)
	}
	s := &srq{pd: d, h: q.h, key: q.key, maxWR: max(q.depth, cfg.MaxWR), maxSGE: cfg.MaxSGE}
	x.events.add(s.key, verbs.Event{SRQ: s})
	if cfg.Limit > 0 {
		if errno := cSetLimit(x.lib, s.h, cfg.Limit); errno != 0 {
			x.events.remove(s.key)
			_ = cDestroySRQ(x.lib, s.h)
			return nil, fmt.Errorf("SRQConfig.Limit: %w", errnoErr(errno))
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	d.srqs.add(s)
	return s, nil
}

func (s *srq) MaxWR() int { return s.maxWR }

func (s *srq) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, verbs.NewOpError("post receive", s.pd.ctx.dev.Name(), 0, verbs.ErrClosed)
	}
	from := unsafe.SliceData(wrs)
	if s.h == 0 {
		s.from = from // never executed; see cq.into
	}
	r := cPostSRQ(s.h, uintptr(unsafe.Pointer(from)), len(wrs))
	runtime.KeepAlive(from)
	s.mu.Unlock()
	n := int(r >> 32)
	if why := uint32(r); why != 0 {
		return n, s.pd.ctx.recvError(0, n, wrs, why, s.maxSGE)
	}
	return n, nil
}

func (s *srq) SetLimit(limit int) error {
	return s.pd.ctx.do("set SRQ limit", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.closed:
			return verbs.ErrClosed
		case limit < 0 || limit > s.maxWR:
			return verbs.Invalidf("limit %d: want 0 to %d", limit, s.maxWR)
		}
		return errnoErr(cSetLimit(s.pd.ctx.lib, s.h, limit))
	})
}

func (s *srq) Close() error {
	return ignoreClosed(s.pd.ctx.do("close SRQ", s.destroy))
}

func (s *srq) destroy() error {
	x := s.pd.ctx
	s.mu.Lock()
	defer s.mu.Unlock()
	return x.destroyObject(&s.closed, &s.users, "QPs", func() syscall.Errno {
		return x.events.removeDuring(s.key, func() syscall.Errno { return x.destroyed(cDestroySRQ(x.lib, s.h)) })
	}, func() { dropFrom(s.pd, s.pd.srqs, s) })
}
