package reliable_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/reliable/core"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestNoQPForPath fails a path while the device refuses a new QP for it: the path recovers as soon as one is
// available.
func TestNoQPForPath(t *testing.T) {
	reliable.OverUC(t, "QPs of an epoch")
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	left := 0 // UC QPs to refuse
	c := &interposer{refuse: func(cfg *verbs.QPConfig) bool {
		refused := cfg.Type == verbs.UC && left > 0
		if refused {
			left--
		}
		return refused
	}}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2, ChunkBytes: 1024}), 4096, c.over)
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2, ChunkBytes: 1024}), 4096)
	connect(t, a, b)
	left = 3
	must(t, a.nic.FailQP(pathNumbers(a.qp)[1]))
	for range 64 { // some go by that path
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		wr.SetSGE(a.sge(0, 4096))
		a.post(t, wr)
	}
	up := func(s *side) bool {
		p := s.qp.(reliable.StatsReader).Paths()[1]
		return p.State == core.PathUp && p.Epoch > 0
	}
	for w.now < int64(time.Second) && (!up(a) || !up(b)) {
		w.step(int64(time.Second), []*side{a, b})
	}
	if !up(a) || !up(b) || left != 0 {
		t.Fatalf("the paths are %+v and %+v after a second, want them up again", a.qp.(reliable.StatsReader).Paths(), b.qp.(reliable.StatsReader).Paths())
	}
}

// TestConnectFails makes Connect fail halfway: the QP returns errors until it is reset.
func TestConnectFails(t *testing.T) {
	reliable.OverUC(t, "a handshake QP without address handles")
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	fails := false
	c := &interposer{ah: func(*verbs.AHAttr) error {
		if fails {
			return verbs.ErrLimit
		}
		return nil
	}}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2}), 4096, c.over)
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	ep, err := b.qp.Endpoint()
	must(t, err)
	fails = true
	if err := a.qp.Connect(ep); !errors.Is(err, verbs.ErrLimit) {
		t.Fatalf("Connect = %v, want %v", err, verbs.ErrLimit)
	}
	if s := a.qp.State(); s != verbs.StateErr {
		t.Fatalf("the QP is %v after Connect has failed, want %v", s, verbs.StateErr)
	}
	fails = false
	must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	connect(t, a, b)
	a.post(t, a.write(b, 0, 100))
	w.polled(t, a, 1, verbs.StatusSuccess, a, b)
}

// opener is a device that opens an interposer.
type opener struct {
	verbs.Device
	opened *interposer
}

func (o opener) Open() (ctx verbs.Context, err error) {
	o.opened.Context, err = o.Device.Open()
	return o.opened, err
}

// openerOf is a context whose Device is an opener.
type openerOf struct {
	verbs.Context
	opened *interposer
}

func (c openerOf) Device() verbs.Device { return opener{c.Context.Device(), c.opened} }

// TestOpenClosesWhatItCannotWrap reopens a device that no longer supports paths: the unusable context is
// closed.
func TestOpenClosesWhatItCannotWrap(t *testing.T) {
	opened := &interposer{hide: verbs.CapUC | verbs.CapUD}
	s := newSideOver(t, softnic.NewMemoryLink(nil), reliable.Config{}, 4096, func(inner verbs.Context) verbs.Context { return openerOf{inner, opened} })
	if ctx, err := s.ctx.Device().Open(); !errors.Is(err, reliable.ErrNoCarrier) || ctx != nil || opened.closed != 1 {
		t.Fatalf("Open = %v, %v with %d contexts closed, want none, ErrNoCarrier and one", ctx, err, opened.closed)
	}
}
