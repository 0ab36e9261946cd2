package traffic_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/internal/rig"
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
					a, b := rig.NewPair(t, rig.MemoryLinks(rails), ibverbx.Config{Lanes: lanes})
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

// moveOnce moves n bytes between random places, in three pieces on the local side.
func moveOnce(t *testing.T, a *rig.Host, op verbs.Opcode, local, remote *ibverbx.Region, rng *rand.Rand, n int) {
	t.Helper()
	rig.Fill(local.Bytes(), rng.Uint64())
	rig.Fill(remote.Bytes(), rng.Uint64())
	off := uint64(rng.IntN(len(remote.Bytes()) - n + 1))
	wr := ibverbx.SendWR{WRID: uint64(n), Opcode: op, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: off}
	cut := uint32(n / 3)
	start := uint64(rng.IntN(len(local.Bytes()) - n + 1))
	wr.SetSGE(local.SGE(start, cut), local.SGE(start+uint64(cut), cut), local.SGE(start+2*uint64(cut), uint32(n)-2*cut))
	mine, theirs := local.Bytes()[start:][:n], remote.Bytes()[off:][:n]
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

// TestRailsShareTheLoad: the bytes that the lanes carried add up, and each NIC carried half.
func TestRailsShareTheLoad(t *testing.T) {
	a, b := rig.NewPair(t, rig.MemoryLinks(2), ibverbx.Config{Lanes: 8})
	local, remote := a.Region(8<<20), b.Region(8<<20)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 8<<20))
	if _, err := a.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	a.Wait(1)
	var rails [2]uint64
	for _, s := range a.QP.Stats().Lanes {
		rails[s.Rail] += s.Bytes
	}
	if rails[0] != 4<<20 || rails[1] != 4<<20 {
		t.Errorf("the rails carried %d and %d bytes, want 4 MiB each", rails[0], rails[1])
	}
}

// TestFailureIsReportedOnceAndFlushes: a bad key ends the VirtualQP, the failed request
// says why, and those behind it are flushed in order.
func TestFailureIsReportedOnceAndFlushes(t *testing.T) {
	a, b := rig.NewPair(t, rig.MemoryLinks(2), ibverbx.Config{Lanes: 4})
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

// TestUnknownCompletion (G12): a completion of an unknown QP is an error, returned when there is
// nothing else to return, and no other completion is lost.
func TestUnknownCompletion(t *testing.T) {
	nic := nullnic.New("null0", 0x11)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
	rig.Must(t, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	rig.Must(t, err)
	q, err := cq.NewQP(ibverbx.Config{Lanes: 2})
	rig.Must(t, err)
	card, err := q.Card()
	rig.Must(t, err)
	rig.Must(t, q.Connect(card))
	stray, err := rails.NewCQ(ibverbx.CQConfig{})
	rig.Must(t, err)
	other, err := stray.NewQP(ibverbx.Config{Lanes: 1})
	rig.Must(t, err)
	card, err = other.Card()
	rig.Must(t, err)
	rig.Must(t, other.Connect(card))
	mem, err := verbs.AllocMemory(64, nil)
	rig.Must(t, err)
	region, err := rails.Register(mem, verbs.AccessAll)
	rig.Must(t, err)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: region.Remote()}
	wr.SetSGE(region.SGE(0, 64))
	if _, err := other.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	rig.Must(t, other.Close()) // its completion is on its way
	if n, err := stray.Poll(make([]ibverbx.WC, 4)); n != 0 || !errors.Is(err, verbs.ErrNotFound) {
		t.Errorf("Poll = %d, %v; want %v", n, err, verbs.ErrNotFound)
	}
	if n, err := stray.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
		t.Errorf("second Poll = %d, %v; want nothing", n, err)
	}
}

// TestBadRequests: each is refused before anything is posted, with an error that says
// what is wrong.
func TestBadRequests(t *testing.T) {
	a, b := rig.NewPair(t, rig.MemoryLinks(2), ibverbx.Config{Lanes: 4, MaxInline: 32})
	other, _ := rig.NewPair(t, rig.MemoryLinks(1), ibverbx.Config{Lanes: 2})
	local, remote, foreign := a.Region(4096), b.Region(4096), other.Region(4096)
	for name, change := range map[string]func(w *ibverbx.SendWR){
		"too many SGEs":       func(w *ibverbx.SendWR) { w.NumSGE = 5 },
		"unknown flag":        func(w *ibverbx.SendWR) { w.Flags |= 0x80 },
		"unknown opcode":      func(w *ibverbx.SendWR) { w.Opcode = 77 },
		"no local region":     func(w *ibverbx.SendWR) { w.SGE[0].Region = nil },
		"foreign region":      func(w *ibverbx.SendWR) { w.SGE[0].Region = foreign },
		"behind the region":   func(w *ibverbx.SendWR) { w.SGE[0].Offset = 4000 },
		"offset wraps":        func(w *ibverbx.SendWR) { w.SGE[0].Offset = 1<<64 - 1 },
		"no remote region":    func(w *ibverbx.SendWR) { w.Remote = nil },
		"behind the remote":   func(w *ibverbx.SendWR) { w.RemoteOffset = 4000 },
		"missing rail key":    func(w *ibverbx.SendWR) { w.Remote = &ibverbx.RemoteRegion{Addr: 1, Length: 4096, RKeys: []uint32{1}} },
		"inline READ":         func(w *ibverbx.SendWR) { w.Opcode = verbs.OpRDMARead; w.Flags |= verbs.SendInline; w.SGE[0].Length = 8 },
		"too much inline":     func(w *ibverbx.SendWR) { w.Flags |= verbs.SendInline },
		"more than 4 GiB - 1": func(w *ibverbx.SendWR) { w.NumSGE = 4; w.SGE[0].Length = 1 << 31; w.SGE[1].Length = 1 << 31 },
	} {
		t.Run(name, func(t *testing.T) {
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 1024))
			change(&wr)
			if n, err := a.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("PostSend = %d, %v; want 0, %v", n, err, verbs.ErrInvalid)
			}
			if n, err := a.CQ.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
				t.Errorf("Poll = %d, %v; want nothing", n, err)
			}
		})
	}
	for _, s := range a.QP.Stats().Lanes {
		if s.Fragments != 0 {
			t.Errorf("a refused request was handed to a lane: %+v", s)
		}
	}
}

// TestBadConfig: a value that makes no sense is an error that names the field.
func TestBadConfig(t *testing.T) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	rig.Must(t, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 1 << 10})
	rig.Must(t, err)
	for _, cfg := range []ibverbx.Config{
		{Lanes: -1},
		{Lanes: 1 << 20},
		{SendDepth: -1},
		{RecvDepth: -5},
		{LaneDepth: -1},
		{MaxInline: 1 << 20},
		{SignalInterval: -1},
		{Policy: 99},
		{FragmentSize: 1<<32 - 1},
		{Lanes: 64}, // 64 lanes overrun a CQ of 1024
	} {
		if _, err := cq.NewQP(cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("NewQP(%+v) = %v, want %v", cfg, err, verbs.ErrInvalid)
		}
	}
	if _, err := ibverbx.NewRails(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewRails() = %v, want %v", err, verbs.ErrInvalid)
	}
	if _, err := ibverbx.NewRails(ibverbx.RailConfig{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewRails without a context = %v, want %v", err, verbs.ErrInvalid)
	}
}
