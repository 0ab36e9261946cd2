package defects_test

import (
	"context"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// lateContext is a context whose CQs show completions only once they are armed. Then they hand out everything, and
// wake nobody: all of it was there before Arm.
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

// TestWaitEmptiesLongQueues: more completions than one poll takes were in a queue before Arm, and only the last is for the
// program. Wait must not sleep before it has found it.
func TestWaitEmptiesLongQueues(t *testing.T) {
	const requests = 6000
	links := []softnic.Link{softnic.NewMemoryLink(nil)}
	cfg := ibverbx.Config{Lanes: 1, TrackSingleLane: true, SendDepth: 8192, LaneDepth: 8192, SignalInterval: 1}
	a := rig.NewRailsOver(t, links, func(_ int, inner verbs.Context) verbs.Context { return lateContext{inner} })
	b := rig.NewRails(t, links)
	for _, h := range []*rig.Host{a, b} {
		h.NewCQ(ibverbx.CQConfig{Depth: 32768, Waker: verbs.NewWaker()})
		h.QP = h.NewQP(cfg)
	}
	rig.Connect(t, a.QP, b.QP)
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
