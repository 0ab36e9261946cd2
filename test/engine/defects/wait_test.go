package defects_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// lateContext is a context whose CQs show completions only once they are armed. An armed CQ returns all of
// them without a wakeup, as if they had been there before Arm.
type lateContext struct{ verbs.Context }

type lateCQ struct {
	verbs.CQ
	armed bool
}

func (x lateContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cfg.Waker = nil
	cq, err := x.Context.CreateCQ(cfg)
	return &lateCQ{CQ: cq}, err
}

func (c *lateCQ) Poll(dst []verbs.WC) (int, error) {
	if !c.armed {
		return 0, nil
	}
	return c.CQ.Poll(dst)
}

func (c *lateCQ) Arm(bool) error { c.armed = true; return nil }

func (x lateContext) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	return latePD{pd}, err
}

type latePD struct{ verbs.PD }

func (d latePD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*lateCQ).CQ, cfg.RecvCQ.(*lateCQ).CQ
	return d.PD.CreateQP(cfg)
}

// TestWaitEmptiesLongQueues: a queue held more completions before Arm than one poll returns, and only the
// last is for the program. Wait must not sleep before it has found it.
func TestWaitEmptiesLongQueues(t *testing.T) {
	const requests = 6000
	links := []softnic.Link{softnic.NewMemoryLink(nil)}
	cfg := ibverbx.Config{Lanes: 1, Control: enginetest.Deaf{}, SendDepth: 8192, LaneDepth: 8192, SignalInterval: 1}
	a := enginetest.NewRailsOver(t, links, func(_ int, inner verbs.Context) verbs.Context { return lateContext{inner} })
	b := enginetest.NewRails(t, links)
	for _, h := range []*enginetest.Host{a, b} {
		h.NewCQ(ibverbx.CQConfig{Depth: 32768, Waker: verbs.NewWaker()})
		h.QP = h.NewQP(cfg)
	}
	enginetest.Connect(t, a.QP, b.QP)
	local, remote := a.Region(8), b.Region(8)
	for i := range requests {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Remote: remote.Remote()}
		if i == requests-1 {
			wr.Flags = verbs.SendSignaled
		}
		wr.SetSGE(ibverbx.SGE{Region: local, Length: 8})
		a.PostSend(wr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wcs := make([]ibverbx.WC, 4)
	if n, err := a.CQ.Wait(ctx, wcs); n != 1 || err != nil || wcs[0].WRID != requests-1 {
		t.Fatalf("Wait = %d, %v, WRID %d; want the request %d", n, err, wcs[0].WRID, requests-1)
	}
}

// TestArm: Arm returns completions that precede it and 0 for the sleep, a limit for the sleep otherwise, and a completion
// that follows it wakes the Waker. A rail that cannot be armed is reported once its completions are returned.
func TestArm(t *testing.T) {
	links := enginetest.MemoryLinks(2)
	a, b := enginetest.NewRailsOver(t, links, func(_ int, inner verbs.Context) verbs.Context { return unarmed{inner} }), enginetest.NewRails(t, links)
	waker := verbs.NewWaker()
	for _, h := range []*enginetest.Host{a, b} {
		h.NewCQ(ibverbx.CQConfig{Waker: waker})
		h.QP = h.NewQP(ibverbx.Config{Lanes: 2})
	}
	enginetest.Connect(t, a.QP, b.QP)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: b.Region(8).Remote()}
	wr.SetSGE(ibverbx.SGE{Region: a.Region(8), Length: 8})
	dst := make([]ibverbx.WC, 4)
	b.PostRecv(ibverbx.RecvWR{}, ibverbx.RecvWR{})

	if n, sleep, err := b.CQ.Arm(dst); n != 0 || sleep != math.MaxInt64 || err != nil {
		t.Errorf("Arm of an idle queue = %d, %v, %v; want 0 and no limit for the sleep", n, sleep, err)
	}
	a.PostSend(wr)
	enginetest.WantOK(t, "Sleep after a completion", waker.Sleep(enginetest.Soon(t), math.MaxInt64))
	if n, sleep, err := b.CQ.Arm(dst); n != 1 || sleep != 0 || err != nil {
		t.Errorf("Arm with a completion = %d, %v, %v; want 1 completion and no sleep", n, sleep, err)
	}
	if n, _, err := a.CQ.Arm(dst); n != 1 || err != nil {
		t.Errorf("Arm of rails that cannot be armed, with a completion = %d, %v; want 1", n, err)
	}
	if n, sleep, err := a.CQ.Arm(dst); n != 0 || sleep <= 0 || sleep > time.Millisecond || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Arm of rails that cannot be armed = %d, %v, %v; want a short sleep and %v", n, sleep, err, verbs.ErrClosed)
	}
	if n, err := a.CQ.Wait(t.Context(), dst); n != 0 || !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Wait on rails that cannot be armed = %d, %v; want %v", n, err, verbs.ErrClosed)
	}
	without := enginetest.NewRails(t, links)
	without.NewCQ(ibverbx.CQConfig{})
	_, _, err := without.CQ.Arm(dst)
	enginetest.WantErr(t, "Arm without a Waker", err, verbs.ErrNotSupported)
}

// unarmed is a context whose CQs cannot be armed.
type unarmed struct{ verbs.Context }

func (x unarmed) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := x.Context.CreateCQ(cfg)
	return unarmedCQ{cq}, err
}

func (x unarmed) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	return unarmedPD{pd}, err
}

type unarmedCQ struct{ verbs.CQ }

func (unarmedCQ) Arm(bool) error { return verbs.ErrClosed }

type unarmedPD struct{ verbs.PD }

func (d unarmedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(unarmedCQ).CQ, cfg.RecvCQ.(unarmedCQ).CQ
	return d.PD.CreateQP(cfg)
}
