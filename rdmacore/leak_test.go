//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"bufio"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// usage counts the resources of the process.
type usage struct{ fds, mappings, goroutines int }

// more reports whether any count in u exceeds before.
func (u usage) more(before usage) bool {
	return u.fds > before.fds || u.mappings > before.mappings || u.goroutines > before.goroutines
}

// steady measures once the goroutine count has been stable for 20 ms: a goroutine that has signaled
// its exit may still be running.
func steady(t *testing.T) usage {
	t.Helper()
	u := measure(t)
	for same := 0; same < 20; same++ {
		time.Sleep(time.Millisecond)
		next := measure(t)
		if next.goroutines != u.goroutines {
			same = 0
		}
		u = next
	}
	return u
}

func measure(t *testing.T) usage {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	ok(t, err, "read /proc/self/fd")
	f, err := os.Open("/proc/self/maps")
	ok(t, err, "open /proc/self/maps")
	defer f.Close()
	u := usage{fds: len(fds), goroutines: runtime.NumGoroutine()}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		// The number of thread stacks and allocator arenas varies. Mappings of named files are
		// explicit.
		if strings.Contains(sc.Text(), "/") {
			u.mappings++
		}
	}
	return u
}

// lifetime opens a device, creates one object of each kind, uses them, and closes all of them,
// one by one or by closing the context.
func lifetime(t *testing.T, dev verbs.Device, byHand bool) {
	t.Helper()
	ctx, err := dev.Open()
	ok(t, err, "Open")
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	w := verbs.NewWaker()
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16, Waker: w})
	ok(t, err, "CreateCQ")
	mem, err := verbs.AllocMemory(4096, nil)
	ok(t, err, "AllocMemory")
	mr, err := pd.RegisterMemory(mem, verbs.AccessAll)
	ok(t, err, "RegisterMemory")
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: 1})
	ok(t, err, "CreateSRQ")
	qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 16})
	ok(t, err, "CreateQP")
	ep, err := qp.Endpoint()
	ok(t, err, "Endpoint")
	ah, err := pd.CreateAH(verbs.AHAttr{DGID: ep.GID, SGIDIndex: 1})
	ok(t, err, "CreateAH")
	ok(t, qp.Connect(ep), "Connect")
	ok(t, cq.Arm(false), "Arm")
	wr := verbs.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey()}
	if n, err := qp.PostSend([]verbs.SendWR{wr, wr}); n != 2 || err != nil {
		t.Fatalf("PostSend = %d, %v, want 2, nil", n, err)
	}
	wcs := make([]verbs.WC, 1)
	if n, err := verbs.Wait(t.Context(), cq, w, wcs); n != 1 || err != nil || wcs[0].Err() != nil {
		t.Fatalf("Wait = %d, %v, %v, want a success", n, err, wcs[0].Err())
	}
	if byHand {
		for _, c := range []interface{ Close() error }{ah, qp, srq, mr, cq, pd} {
			ok(t, c.Close(), "Close")
		}
	}
	ok(t, ctx.Close(), "Close of the context")
	ok(t, mem.Free(), "Free")
}

// noLeak runs lifetimes and compares the resources of the process before and after.
func noLeak(t *testing.T, dev verbs.Device, rounds int) {
	t.Helper()
	for i := range 20 { // the first rounds create process-wide state
		lifetime(t, dev, i%2 == 0)
	}
	before := steady(t)
	for i := range rounds {
		lifetime(t, dev, i%2 == 0)
	}
	// Only a lasting increase is a leak: goroutines may exit late on a busy machine.
	after := steady(t)
	for limit := time.Now().Add(time.Minute); after.more(before) && time.Now().Before(limit); {
		after = steady(t)
	}
	if after.more(before) {
		t.Errorf("after %d lifetimes the process has %+v, want at most %+v", rounds, after, before)
	}
}

// Opening and closing everything a thousand times leaks no descriptor, goroutine, mapping or
// library object.
func TestNoLeak(t *testing.T) {
	lib, _ := loadStandin(t, rdmacore.Config{}) // its cleanup checks that all library objects are destroyed
	devices, err := lib.Devices()
	ok(t, err, "Devices")
	noLeak(t, devices[0], 1000)
}
