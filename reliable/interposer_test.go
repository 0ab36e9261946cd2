package reliable_test

import (
	"errors"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// interposer is a context that changes its inner one. A nil field changes nothing.
type interposer struct {
	verbs.Context
	hide   verbs.Capabilities                                                   // hides capabilities
	attr   func(*verbs.DeviceAttr)                                              // changes the attributes
	refuse func(*verbs.QPConfig) bool                                           // selects the QPs to refuse
	qp     func(verbs.QPType, verbs.QP) verbs.QP                                // replaces a QP
	srq    func(verbs.PD, verbs.SRQConfig) (verbs.SRQ, error)                   // creates SRQs
	ah     func(*verbs.AHAttr) error                                            // refuses address handles
	mr     func(verbs.PD, *verbs.Memory, verbs.Access) (mr verbs.MR, err error) // registers memory
	closed int                                                                  // counts the calls of Close
}

// over places the interposer over a context.
func (x *interposer) over(inner verbs.Context) verbs.Context {
	x.Context = inner
	return x
}

func (x *interposer) Close() error {
	x.closed++
	return x.Context.Close()
}

func (x *interposer) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := x.Context.QueryDevice()
	a.Capabilities &^= x.hide
	if x.attr != nil {
		x.attr(&a)
	}
	return a, err
}

func (x *interposer) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	return interposedPD{pd, x}, err
}

type interposedPD struct {
	verbs.PD
	by *interposer
}

func (p interposedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	if p.by.refuse != nil && p.by.refuse(&cfg) {
		return nil, verbs.NewOpError("create QP", "interposer", 0, verbs.ErrNotSupported)
	}
	if srq, ok := cfg.SRQ.(*countedSRQ); ok {
		cfg.SRQ = srq.SRQ
	}
	q, err := p.PD.CreateQP(cfg)
	if err == nil && p.by.qp != nil {
		q = p.by.qp(cfg.Type, q)
	}
	return q, err
}

func (p interposedPD) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	if p.by.srq != nil {
		return p.by.srq(p.PD, cfg)
	}
	return p.PD.CreateSRQ(cfg)
}

func (p interposedPD) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	if p.by.ah != nil {
		if err := p.by.ah(&attr); err != nil {
			return nil, err
		}
	}
	return p.PD.CreateAH(attr)
}

func (p interposedPD) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	if p.by.mr != nil {
		return p.by.mr(p.PD, m, access)
	}
	return p.PD.RegisterMemory(m, access)
}

// noSharedUC refuses UC QPs with a shared receive queue.
func noSharedUC(cfg *verbs.QPConfig) bool { return cfg.Type == verbs.UC && cfg.SRQ != nil }

// openWithout returns a context on a new NIC that refuses the selected QPs and hides capabilities.
func openWithout(tb testing.TB, link softnic.Link, refuse func(*verbs.QPConfig) bool, hide verbs.Capabilities) (*softnic.NIC, *interposer) {
	tb.Helper()
	nic, err := softnic.New(link, reliable.NICConfig())
	must(tb, err)
	tb.Cleanup(func() { must(tb, nic.Close()) })
	inner, err := nic.Open()
	must(tb, err)
	tb.Cleanup(func() { must(tb, inner.Close()) })
	return nic, &interposer{Context: inner, refuse: refuse, hide: hide}
}

// TestConformanceWithoutSRQ runs the suite on devices whose UC QPs cannot use an SRQ: one end learns it from
// the device's capabilities, the other by trying.
func TestConformanceWithoutSRQ(t *testing.T) {
	pickVariant(t, 4)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link := softnic.NewMemoryLink(nil)
		var ctx [2]verbs.Context
		for i, hide := range []verbs.Capabilities{verbs.CapSRQOnUC, 0} {
			_, inner := openWithout(tb, link, noSharedUC, hide)
			var err error
			ctx[i], err = reliable.Wrap(inner, reliable.Config{Paths: 4, ChunkBytes: 4096})
			must(tb, err)
			tb.Cleanup(func() { must(tb, ctx[i].Close()) })
		}
		return verbstest.Pair{A: ctx[0], B: ctx[1], Departures: departures()}
	})
}

// TestMixedReceives connects an end with per-path receives to one with an SRQ, over a lossy network with
// failing paths and the minimum of receives.
func TestMixedReceives(t *testing.T) {
	const size = 1 << 18
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: 0.005}})
	must(t, err)
	cfg := reliable.Config{Paths: 4, ChunkBytes: 4096, PathRecv: 4, RecvBytes: 16 * 4096}
	a := newSide(t, link, cfg, size)
	nic, inner := openWithout(t, link, noSharedUC, 0)
	b := newSideOn(t, nic, inner, cfg, size)
	connect(t, a, b)
	for i := range 30 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		if i == 10 || i == 20 {
			must(t, b.nic.FailQP(pathNumbers(b.qp)[i/10]))
		}
		transfer(t, from, to, verbs.OpRDMAWriteWithImm, size-i)
		transfer(t, from, to, verbs.OpSend, 9000)
	}
}

// TestTooManyQPs: QPs that the receives cannot serve are refused, with and without an SRQ, and closing one
// frees a slot.
func TestTooManyQPs(t *testing.T) {
	reliable.OverUC(t, "this use of receives")
	for name, tt := range map[string]struct {
		refuse func(*verbs.QPConfig) bool
		want   int
	}{"shared": {nil, 16}, "per path": {noSharedUC, 2}} {
		t.Run(name, func(t *testing.T) {
			nic, inner := openWithout(t, softnic.NewMemoryLink(nil), tt.refuse, 0)
			s := newSideOn(t, nic, inner, reliable.Config{Paths: 4, ChunkBytes: 4096, RecvBytes: 64 * 4096}, 4096)
			attr, err := s.ctx.QueryDevice()
			must(t, err)
			if attr.MaxQP != tt.want {
				t.Fatalf("MaxQP is %d, want %d", attr.MaxQP, tt.want)
			}
			cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 1}
			qps := make([]verbs.QP, tt.want-1) // the side has one
			for i := range qps {
				qps[i], err = s.pd.CreateQP(cfg)
				must(t, err)
				t.Cleanup(func() { must(t, qps[i].Close()) })
			}
			if _, err := s.pd.CreateQP(cfg); !errors.Is(err, verbs.ErrLimit) {
				t.Fatalf("one QP more: %v, want ErrLimit", err)
			}
			must(t, qps[0].Close())
			qps[0], err = s.pd.CreateQP(cfg)
			must(t, err)
		})
	}
}

// TestDefaultServesManyQPs: by default, a PD serves 128 lanes, the message and notify lanes, and lanes being replaced, with and without an SRQ.
// Its receive buffers are allocated as QPs are created.
func TestDefaultServesManyQPs(t *testing.T) {
	reliable.OverUC(t, "this use of receives")
	const qps = 160
	for name, refuse := range map[string]func(*verbs.QPConfig) bool{"shared": nil, "per path": noSharedUC} {
		t.Run(name, func(t *testing.T) {
			nic, inner := openWithout(t, softnic.NewMemoryLink(nil), refuse, 0)
			s := newSideOn(t, nic, inner, reliable.Config{ChunkBytes: 4096}, 4096) // and 16 paths
			attr, err := s.ctx.QueryDevice()
			must(t, err)
			if attr.MaxQP < qps {
				t.Errorf("MaxQP is %d, want at least %d", attr.MaxQP, qps)
			}
			for i := range qps {
				q, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 1})
				if err != nil {
					t.Fatalf("QP %d: got %v, want no error", i, err)
				}
				t.Cleanup(func() { must(t, q.Close()) })
				if got, _ := reliable.Receives(q); refuse == nil && got > max(512, 16*(i+2)+64) {
					t.Fatalf("%d QPs: there are %d receive buffers, want 512, or 16 for each", i+2, got)
				}
			}
		})
	}
}

// TestRecvBytesTooSmallForPaths: if the receives do not suffice for the paths of one QP, the error names the setting to
// change.
func TestRecvBytesTooSmallForPaths(t *testing.T) {
	reliable.OverUC(t, "this use of receives")
	_, inner := openWithout(t, softnic.NewMemoryLink(nil), noSharedUC, 0)
	if _, err := reliable.Wrap(inner, reliable.Config{RecvBytes: 128*32768 - 1, ChunkBytes: 32768}); !errors.Is(err, verbs.ErrInvalid) {
		t.Fatalf("Wrap = %v, want ErrInvalid: 16 paths need 128 receives", err)
	}
	ctx, err := reliable.Wrap(inner, reliable.Config{RecvBytes: 128 * 32768, ChunkBytes: 32768})
	must(t, err)
	must(t, ctx.Close())
}
