package engine_test

import (
	"os"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/rdmacore"
)

// pair returns two hosts whose VirtualQPs are connected over the given number of rails.
func pair(t *testing.T, rails int, cfg ibverbx.Config) (a, b *enginetest.Host) {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	names := [2][]string{{"rxe0", "rxe2"}, {"rxe1", "rxe3"}}
	a, b = open(t, names[0][:rails]), open(t, names[1][:rails])
	var controls [2]ibverbx.Control
	if cfg.Deadline != 0 { // a test of failover
		controls[0], controls[1] = ibverbx.ControlPair()
	}
	for i, h := range []*enginetest.Host{a, b} {
		cfg.Control = controls[i]
		h.NewCQ(ibverbx.CQConfig{Depth: 16384})
		h.NewQP(cfg)
	}
	enginetest.Connect(t, a.QP, b.QP)
	return a, b
}

// open returns a host with a rail on each of the devices.
func open(t *testing.T, names []string) *enginetest.Host {
	t.Helper()
	lib, err := rdmacore.Load(rdmacore.Config{})
	enginetest.Must(t, err)
	devices, err := lib.Devices()
	enginetest.Must(t, err)
	var rails []ibverbx.RailConfig
	for _, name := range names {
		for _, d := range devices {
			if d.Name() != name {
				continue
			}
			ctx, err := d.Open()
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
			rails = append(rails, ibverbx.RailConfig{Context: ctx})
		}
	}
	if len(rails) != len(names) {
		t.Fatalf("%d of the devices %v are there", len(rails), names)
	}
	return enginetest.NewRailsOn(t, rails...)
}

// patience is the test timeout, which only a failing test reaches. The machine is emulated, on a possibly
// busy host.
const patience = 3 * time.Minute

// poll polls all hosts until done returns true.
func poll(t *testing.T, what string, done func() bool, hosts ...*enginetest.Host) {
	t.Helper()
	got := make([][]ibverbx.WC, len(hosts))
	wcs := make([]ibverbx.WC, 64)
	collect(t, what, func([][]ibverbx.WC) bool { return done() }, got, wcs, hosts)
}

// collect polls all hosts into got until done returns true.
func collect(t *testing.T, what string, done func(got [][]ibverbx.WC) bool, got [][]ibverbx.WC, wcs []ibverbx.WC, hosts []*enginetest.Host) {
	t.Helper()
	for end := time.Now().Add(patience); !done(got); {
		if time.Now().After(end) {
			for _, h := range hosts {
				t.Logf("%+v", h.QP.Stats())
			}
			t.Fatalf("not within %v: %s", patience, what)
		}
		for i, h := range hosts {
			n, err := h.CQ.Poll(wcs)
			enginetest.Must(t, err)
			got[i] = append(got[i], wcs[:n]...)
		}
	}
}

// wait polls until each host has want successful completions.
func wait(t *testing.T, what string, want []int, hosts ...*enginetest.Host) [][]ibverbx.WC {
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
					t.Logf("%+v", h.QP.Stats().Lanes)
				}
				t.Fatalf("%s: completion %d of host %d: %v (%v)", what, k, i, wc.Err(), hosts[i].QP.Err())
			}
		}
	}
	return got
}
