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

// scarce is a context that refuses to make some things.
type scarce struct {
	verbs.Context
	caps   verbs.Capabilities // that it does not have
	noUC   int                // UC QPs that it refuses
	noAH   int                // address handles
	closed *int
}

var errScarce = errors.New("there is none")

type scarcePD struct {
	verbs.PD
	ctx *scarce
}

func (c *scarce) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return scarcePD{pd, c}, err
}

func (c *scarce) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := c.Context.QueryDevice()
	a.Capabilities &^= c.caps
	return a, err
}

func (c *scarce) Close() error {
	if c.closed != nil {
		*c.closed++
	}
	return c.Context.Close()
}

func (p scarcePD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	if cfg.Type == verbs.UC && p.ctx.noUC > 0 {
		p.ctx.noUC--
		return nil, errScarce
	}
	return p.PD.CreateQP(cfg)
}

func (p scarcePD) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	if p.ctx.noAH > 0 {
		p.ctx.noAH--
		return nil, errScarce
	}
	return p.PD.CreateAH(attr)
}

// TestNoQPForPath fails a path while the device has no QP for it: when there is one the path comes
// back.
func TestNoQPForPath(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	c := &scarce{}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2, ChunkBytes: 1024}), 4096, func(inner verbs.Context) verbs.Context { c.Context = inner; return c })
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2, ChunkBytes: 1024}), 4096)
	connect(t, a, b)
	c.noUC = 3
	must(t, a.nic.FailQP(pathNumbers(a.qp)[1]))
	for range 64 { // some go by that path
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		wr.SetSGE(a.sge(0, 4096))
		a.post(t, wr)
	}
	up := func(s *side) bool {
		p := s.qp.(reliable.Counted).Paths()[1]
		return p.State == core.PathUp && p.Epoch > 0
	}
	for w.now < int64(time.Second) && (!up(a) || !up(b)) {
		w.step(int64(time.Second), []*side{a, b})
	}
	if !up(a) || !up(b) || c.noUC != 0 {
		t.Fatalf("the paths are %+v and %+v after a second, want them up again", a.qp.(reliable.Counted).Paths(), b.qp.(reliable.Counted).Paths())
	}
}

// TestConnectFails lets Connect fail half way: the QP is of no use, and says so, until it is reset.
func TestConnectFails(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	c := &scarce{}
	a := newSideOver(t, w.link, w.config(reliable.Config{Paths: 2}), 4096, func(inner verbs.Context) verbs.Context { c.Context = inner; return c })
	b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	ep, err := b.qp.Endpoint()
	must(t, err)
	c.noAH = 1
	if err := a.qp.Connect(ep); !errors.Is(err, errScarce) {
		t.Fatalf("Connect = %v, want %v", err, errScarce)
	}
	if s := a.qp.State(); s != verbs.StateErr {
		t.Fatalf("the QP is %v after Connect has failed, want %v", s, verbs.StateErr)
	}
	must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	connect(t, a, b)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	wr.SetSGE(a.sge(0, 100))
	a.post(t, wr)
	for w.now < int64(time.Second) {
		var wc [1]verbs.WC
		if n, _ := a.cq.Poll(wc[:]); n == 1 {
			must(t, wc[0].Err())
			return
		}
		w.step(int64(time.Second), []*side{a, b})
	}
	t.Fatalf("a WRITE has not ended after a second, want success")
}

// opener is a device whose contexts have no UC, and count how many are closed.
type opener struct {
	verbs.Device
	closed *int
}

func (o opener) Open() (verbs.Context, error) {
	ctx, err := o.Device.Open()
	return &scarce{Context: ctx, caps: verbs.CapUC, closed: o.closed}, err
}

type openerOf struct {
	verbs.Context
	closed *int
}

func (c openerOf) Device() verbs.Device { return opener{c.Context.Device(), c.closed} }

// TestOpenClosesWhatItCannotWrap opens a device once more that cannot carry paths any longer: the
// context that nobody gets is closed.
func TestOpenClosesWhatItCannotWrap(t *testing.T) {
	closed := 0
	s := newSideOver(t, softnic.NewMemoryLink(nil), reliable.Config{}, 4096, func(inner verbs.Context) verbs.Context { return openerOf{inner, &closed} })
	if ctx, err := s.ctx.Device().Open(); !errors.Is(err, reliable.ErrNoUC) || ctx != nil || closed != 1 {
		t.Fatalf("Open = %v, %v with %d contexts closed, want none, ErrNoUC and one", ctx, err, closed)
	}
}
