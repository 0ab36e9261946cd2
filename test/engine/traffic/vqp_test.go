package traffic_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// TestWriteReadContent moves random bytes of random sizes over lanes and rails, and
// compares every one of them.
func TestWriteReadContent(t *testing.T) {
	const size = 3 << 20
	for _, rails := range []int{1, 2, 3} {
		for _, lanes := range []int{1, 2, 7, 16} {
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
				t.Run(fmt.Sprintf("rails=%d/lanes=%d/%s", rails, lanes, op), func(t *testing.T) {
					a, b := enginetest.NewPair(t, enginetest.MemoryLinks(rails), ibverbx.Config{Lanes: lanes})
					local, remote := a.Region(size), b.Region(size)
					rng := rand.New(rand.NewPCG(uint64(rails), uint64(lanes)))
					for _, n := range []int{1, 1000, 16 << 10, 16<<10 + 1, 100_003, 1<<20 + 7, size} {
						moveOnce(t, a, op, local, remote, rng, n)
					}
				})
			}
		}
	}
}

// moveOnce moves n bytes between random offsets, in three local SGEs.
func moveOnce(t *testing.T, a *enginetest.Host, op verbs.Opcode, local, remote *ibverbx.Region, rng *rand.Rand, n int) {
	t.Helper()
	off := uint64(rng.IntN(len(remote.Bytes()) - n + 1))
	wr := ibverbx.SendWR{WRID: uint64(n), Opcode: op, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: off}
	cut := uint32(n / 3)
	start := uint64(rng.IntN(len(local.Bytes()) - n + 1))
	wr.SetSGE(local.SGE(start, cut), local.SGE(start+uint64(cut), cut), local.SGE(start+2*uint64(cut), uint32(n)-2*cut))
	mine, theirs := local.Bytes()[start:][:n], remote.Bytes()[off:][:n]
	enginetest.Fill(mine, rng.Uint64())
	enginetest.Fill(theirs, rng.Uint64())
	want := bytes.Clone(mine)
	if op == verbs.OpRDMARead {
		want = bytes.Clone(theirs)
	}
	a.PostSend(wr)
	wc := a.Wait(1)[0]
	if err := wc.Err(); err != nil || wc.WRID != uint64(n) || wc.QP != a.QP {
		t.Fatalf("completion = %+v, %v", wc, err)
	}
	if !bytes.Equal(mine, want) || !bytes.Equal(theirs, want) {
		t.Fatalf("%d bytes did not arrive as they were", n)
	}
}

// TestFailureIsReportedOnceAndFlushes: a bad key fails the VirtualQP. The failed request has the cause, and
// later requests are flushed in order.
func TestFailureIsReportedOnceAndFlushes(t *testing.T) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4})
	local, remote := a.Region(64<<10), b.Region(64<<10)
	good := remote.Remote()
	bad := remote.Remote()
	for i := range bad.RKeys {
		bad.RKeys[i] ^= 0x10000
	}
	var wrs []ibverbx.SendWR
	for i := range 6 {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendFence, Remote: good}
		if i == 2 {
			wr.Remote = bad
		}
		wr.SetSGE(local.SGE(0, 64<<10))
		wrs = append(wrs, wr)
	}
	a.PostSend(wrs...)
	for i, wc := range a.Wait(len(wrs)) {
		want := verbs.StatusSuccess
		switch {
		case i == 2:
			want = verbs.StatusRemAccessErr
		case i > 2:
			want = verbs.StatusWRFlushErr
		}
		if wc.WRID != uint64(i) || wc.Status != want {
			t.Errorf("completion %d = request %d, %v; want request %d, %v", i, wc.WRID, wc.Status, i, want)
		}
	}
	if a.QP.Err() == nil {
		t.Error("Err = nil after a failure")
	}
	// What is posted afterwards is flushed too, as on an RC QP.
	if n, err := a.QP.PostSend(wrs[:1]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if wc := a.Wait(1)[0]; wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("request after a failure = %v, want %v", wc.Status, verbs.StatusWRFlushErr)
	}
}

// TestBadConfig (G15): an invalid value returns an error that names the field.
func TestBadConfig(t *testing.T) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	enginetest.Must(t, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 1 << 10})
	enginetest.Must(t, err)
	for _, c := range []struct {
		field string
		cfg   ibverbx.Config
	}{
		{"Lanes", ibverbx.Config{Lanes: -1}},
		{"Lanes", ibverbx.Config{Lanes: 1 << 20}},
		{"SendDepth", ibverbx.Config{SendDepth: -1}},
		{"RecvDepth", ibverbx.Config{RecvDepth: -5}},
		{"LaneDepth", ibverbx.Config{LaneDepth: -1}},
		{"NotifyDepth", ibverbx.Config{NotifyDepth: -1}},
		{"MaxInline", ibverbx.Config{MaxInline: 1 << 20}},
		{"MaxInline", ibverbx.Config{MaxInline: -2}},
		{"SignalInterval", ibverbx.Config{SignalInterval: -1}},
		{"Policy", ibverbx.Config{Policy: 99}},
		{"Scheme", ibverbx.Config{Scheme: 99}},
		{"FragmentSize", ibverbx.Config{FragmentSize: 1<<32 - 1}},
		{"Depth", ibverbx.Config{Lanes: 64}}, // 64 lanes overrun a CQ of 1024
	} {
		if _, err := cq.NewQP(c.cfg); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("NewQP(%+v) = %v, want %v that names %s", c.cfg, err, verbs.ErrInvalid, c.field)
		}
	}
	if _, err := ibverbx.NewRails(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewRails() = %v, want %v", err, verbs.ErrInvalid)
	}
	if _, err := ibverbx.NewRails(ibverbx.RailConfig{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewRails without a context = %v, want %v", err, verbs.ErrInvalid)
	}
}
