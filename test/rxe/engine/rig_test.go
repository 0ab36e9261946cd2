package engine_test

import (
	"os"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// host is one side: rails on rxe devices, a CQ and a VirtualQP.
type host struct {
	t     *testing.T
	ctxs  []verbs.Context
	rails *ibverbx.Rails
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP
}

// pair returns two hosts whose VirtualQPs are connected over so many rails.
func pair(t *testing.T, rails int, cfg ibverbx.Config) (a, b *host) {
	t.Helper()
	if os.Getenv("IBVERBX_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	names := [2][]string{{"rxe0", "rxe2"}, {"rxe1", "rxe3"}}
	a, b = open(t, names[0][:rails]), open(t, names[1][:rails])
	var controls [2]ibverbx.Control
	if cfg.Deadline != 0 { // a test of failover
		controls[0], controls[1] = ibverbx.ControlPair(nil, nil)
	}
	for i, h := range []*host{a, b} {
		cfg.Control = controls[i]
		var err error
		h.cq, err = h.rails.NewCQ(ibverbx.CQConfig{Depth: 16384})
		must(t, err)
		t.Cleanup(func() { must(t, h.cq.Close()) })
		h.qp, err = h.cq.NewQP(cfg)
		must(t, err)
		t.Cleanup(func() { must(t, h.qp.Close()) })
	}
	cardA, err := a.qp.Card()
	must(t, err)
	cardB, err := b.qp.Card()
	must(t, err)
	must(t, a.qp.Connect(cardB))
	must(t, b.qp.Connect(cardA))
	return a, b
}

func open(t *testing.T, names []string) *host {
	t.Helper()
	h := &host{t: t}
	lib, err := rdmacore.Load(rdmacore.Config{})
	must(t, err)
	devices, err := lib.Devices()
	must(t, err)
	var cfgs []ibverbx.RailConfig
	for _, name := range names {
		for _, d := range devices {
			if d.Name() != name {
				continue
			}
			ctx, err := d.Open()
			must(t, err)
			t.Cleanup(func() { must(t, ctx.Close()) })
			h.ctxs = append(h.ctxs, ctx)
			cfgs = append(cfgs, ibverbx.RailConfig{Context: ctx})
		}
	}
	if len(cfgs) != len(names) {
		t.Fatalf("%d of the devices %v are there", len(cfgs), names)
	}
	h.rails, err = ibverbx.NewRails(cfgs...)
	must(t, err)
	t.Cleanup(func() { must(t, h.rails.Close()) })
	return h
}

// region returns n registered bytes.
func (h *host) region(n int) *ibverbx.Region {
	h.t.Helper()
	mem, err := verbs.AllocMemory(n, nil)
	must(h.t, err)
	h.t.Cleanup(func() { must(h.t, mem.Free()) })
	r, err := h.rails.Register(mem, verbs.AccessAll)
	must(h.t, err)
	h.t.Cleanup(func() { must(h.t, r.Close()) })
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for something to happen: only a failing one waits so
// long. The machine is emulated, and may have a busy host.
const patience = 3 * time.Minute

// poll takes completions of all hosts until done holds.
func poll(t *testing.T, what string, done func() bool, hosts ...*host) [][]ibverbx.WC {
	t.Helper()
	got := make([][]ibverbx.WC, len(hosts))
	wcs := make([]ibverbx.WC, 64)
	collect(t, what, func([][]ibverbx.WC) bool { return done() }, got, wcs, hosts)
	return got
}

// collect takes completions of all hosts into got until done holds.
func collect(t *testing.T, what string, done func(got [][]ibverbx.WC) bool, got [][]ibverbx.WC, wcs []ibverbx.WC, hosts []*host) {
	t.Helper()
	for end := time.Now().Add(patience); !done(got); {
		if time.Now().After(end) {
			for _, h := range hosts {
				t.Logf("%+v", h.qp.Stats())
			}
			t.Fatalf("not within %v: %s", patience, what)
		}
		for i, h := range hosts {
			n, err := h.cq.Poll(wcs)
			must(t, err)
			got[i] = append(got[i], wcs[:n]...)
		}
	}
}

// wait takes so many completions of each host, all of them good.
func wait(t *testing.T, what string, want []int, hosts ...*host) [][]ibverbx.WC {
	t.Helper()
	got := make([][]ibverbx.WC, len(hosts))
	collect(t, what, func(got [][]ibverbx.WC) bool {
		for i := range got {
			if len(got[i]) < want[i] {
				return false
			}
		}
		return true
	}, got, make([]ibverbx.WC, 64), hosts)
	for i := range got {
		for k, wc := range got[i] {
			if wc.Err() != nil {
				for _, h := range hosts {
					t.Logf("%+v", h.qp.Stats().Lanes)
				}
				t.Fatalf("%s: completion %d of host %d: %v (%v)", what, k, i, wc.Err(), hosts[i].qp.Err())
			}
		}
	}
	return got
}
