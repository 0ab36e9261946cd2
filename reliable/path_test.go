package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// pathNumbers returns the present QP numbers of the paths of a QP.
func pathNumbers(q verbs.QP) (nums []uint32) {
	for _, p := range q.(reliable.StatsReader).Paths() {
		nums = append(nums, p.QPN)
	}
	return nums
}

// TestPathsFail fails path QPs at either end while messages move: every message arrives, and the paths
// recover.
func TestPathsFail(t *testing.T) {
	reliable.OverUC(t, "QPs of an epoch")
	const size = 1 << 16
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: 0.002}})
	must(t, err)
	a, b := newPair(t, link, reliable.Config{Paths: 4, ChunkBytes: 4096}, size)
	before := pathNumbers(a.qp)
	for i := range 40 {
		switch i {
		case 5, 6:
			must(t, a.nic.FailQP(before[i-5]))
		case 20:
			must(t, b.nic.FailQP(pathNumbers(b.qp)[3]))
		}
		transfer(t, a, b, verbs.OpRDMAWriteWithImm, size-i)
		transfer(t, a, b, verbs.OpSend, 5000)
	}
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if pathNumbers(a.qp)[0] != before[0] {
			break
		}
		if time.Since(start) > patience {
			t.Fatal("path 0 of A has not come back")
		}
	}
	transfer(t, a, b, verbs.OpRDMAWriteWithImm, size)
}

// TestPassiveTarget writes to a side that neither posts nor polls: its goroutine acknowledges.
func TestPassiveTarget(t *testing.T) {
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{}, 1<<20)
	for range 20 {
		a.post(t, a.write(b, 0, 1<<20))
		if wc := a.wait(t, 1)[0]; wc.Err() != nil {
			t.Fatalf("completion %v, want success", wc.Err())
		}
	}
}

// TestPeerGone: when the peer's NIC is closed, the request fails with RETRY_EXC within the timeout, and later
// ones are flushed.
func TestPeerGone(t *testing.T) {
	link, err := softnic.NewFaultLink(nil)
	must(t, err)
	a, b := newPair(t, link, reliable.Config{GiveUp: int64(200 * time.Millisecond)}, 4096)
	link.Cut(a.nic, b.nic)
	for range 3 {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()} // unsignaled errors are reported, too
		wr.SetSGE(a.sge(0, 100))
		a.post(t, wr)
	}
	wcs := a.wait(t, 3)
	if wcs[0].Status != verbs.StatusRetryExcErr || wcs[1].Status != verbs.StatusWRFlushErr || wcs[2].Status != verbs.StatusWRFlushErr {
		t.Fatalf("completions %+v, want RETRY_EXC and two flushes", wcs)
	}
	if s := a.qp.State(); s != verbs.StateErr {
		t.Fatalf("the QP is in %v, want ERR", s)
	}
}

// TestVirtualTime runs two wrapped contexts on a test clock, without goroutines, over a lossy network: the
// same seed takes the same time.
func TestVirtualTime(t *testing.T) {
	run := func() time.Duration {
		w := newWorld(t, softnic.Impairment{Loss: 0.01, Delay: 10 * time.Microsecond})
		a, b := newPair(t, w.link, w.config(reliable.Config{MinProbe: 50_000}), 1<<20)
		a.fill(1)
		a.post(t, a.write(b, 0, 1<<20))
		return w.polled(t, a, 1, verbs.StatusSuccess, a, b)
	}
	first, second := run(), run()
	t.Logf("1 MiB over 1%% loss in %v of virtual time", first)
	if first != second {
		t.Fatalf("took %v, then %v: want the same", first, second)
	}
}
