package traffic_test

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// forEachWidth runs a test with one lane, with one tracked lane, and with four lanes in every scheme.
func forEachWidth(t *testing.T, run func(t *testing.T, cfg ibverbx.Config)) {
	for _, cfg := range []ibverbx.Config{
		{Lanes: 1}, {Lanes: 1, Control: enginetest.Deaf{}}, {Lanes: 4}, {Lanes: 4, Scheme: ibverbx.DQPLB}, {Lanes: 4, Scheme: ibverbx.Spray},
	} {
		t.Run(fmt.Sprintf("%s/lanes=%d/track=%v", cfg.Scheme, cfg.Lanes, cfg.Control != nil), func(t *testing.T) { run(t, cfg) })
	}
}

// TestSameRefusalsOnOneLaneAndMany (G11): an illegal request is refused when posted, on one lane as on
// several. No part of it is posted, and the VirtualQP still works.
func TestSameRefusalsOnOneLaneAndMany(t *testing.T) {
	forEachWidth(t, func(t *testing.T, cfg ibverbx.Config) {
		a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), cfg)
		local, other, remote := a.Region(4096), b.Region(4096), b.Region(4096)
		for name, bad := range map[string]func(wr *ibverbx.SendWR){
			"opcode":               func(wr *ibverbx.SendWR) { wr.Opcode = 77 },
			"flags":                func(wr *ibverbx.SendWR) { wr.Flags |= 1 << 7 },
			"five pieces":          func(wr *ibverbx.SendWR) { e := local.SGE(0, 1); wr.SetSGE(e, e, e, e, e) },
			"300 pieces":           func(wr *ibverbx.SendWR) { wr.SetSGE(make([]ibverbx.SGE, 300)...) },
			"no region":            func(wr *ibverbx.SendWR) { wr.SGE[0].Region = nil },
			"region of others":     func(wr *ibverbx.SendWR) { wr.SGE[0].Region = other },
			"beyond the region":    func(wr *ibverbx.SendWR) { wr.SGE[0].Offset = 4090 },
			"no remote":            func(wr *ibverbx.SendWR) { wr.Remote = nil },
			"beyond the remote":    func(wr *ibverbx.SendWR) { wr.RemoteOffset = 4090 },
			"remote without keys":  func(wr *ibverbx.SendWR) { wr.Remote = &ibverbx.RemoteRegion{Length: 4096} },
			"remote key missing":   func(wr *ibverbx.SendWR) { wr.Remote.RKeys = wr.Remote.RKeys[:1] },
			"offset wraps":         func(wr *ibverbx.SendWR) { wr.SGE[0].Offset = 1<<64 - 1 },
			"4 GiB":                func(wr *ibverbx.SendWR) { wr.NumSGE, wr.SGE[0].Length, wr.SGE[1].Length = 4, 1<<31, 1<<31 },
			"atomic of 4 bytes":    func(wr *ibverbx.SendWR) { wr.Opcode, wr.SGE[0].Length = verbs.OpAtomicFetchAndAdd, 4 },
			"atomic of no bytes":   func(wr *ibverbx.SendWR) { wr.Opcode, wr.NumSGE = verbs.OpAtomicCmpAndSwp, 0 },
			"inline READ":          func(wr *ibverbx.SendWR) { wr.Opcode, wr.Flags = verbs.OpRDMARead, verbs.SendInline },
			"inline atomic":        func(wr *ibverbx.SendWR) { wr.Opcode, wr.Flags = verbs.OpAtomicFetchAndAdd, verbs.SendInline },
			"too many inline":      func(wr *ibverbx.SendWR) { wr.Flags, wr.SGE[0].Length = verbs.SendInline, 65 },
			"a SEND of 5 pieces":   func(wr *ibverbx.SendWR) { wr.Opcode, wr.NumSGE = verbs.OpSend, 5 },
			"inline SEND too long": func(wr *ibverbx.SendWR) { wr.Opcode, wr.Flags, wr.SGE[0].Length = verbs.OpSend, verbs.SendInline, 65 },
		} {
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 8))
			bad(&wr)
			if n, err := a.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: PostSend = %d, %v; want %v", name, n, err, verbs.ErrInvalid)
			}
		}
		if wcs, s := a.Poll(), a.QP.Stats(); len(wcs) > 0 || s.Posted > 0 || s.Fragments > 0 {
			t.Errorf("refused requests have %d completions and %d fragments, and %d count as posted; want none", len(wcs), s.Fragments, s.Posted)
		}
		recv := ibverbx.RecvWR{}
		recv.SetSGE(make([]ibverbx.SGE, 5)...)
		if n, err := a.QP.PostRecv([]ibverbx.RecvWR{recv}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("PostRecv of 5 pieces = %d, %v; want %v", n, err, verbs.ErrInvalid)
		}
		wr := ibverbx.SendWR{WRID: 9, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 8))
		a.PostSend(wr)
		if wc := a.Wait(1)[0]; wc.WRID != 9 || wc.Err() != nil {
			t.Errorf("completion = %+v, %v; want request 9", wc, wc.Err())
		}
	})
}

// TestRequestsOfNoBytes: empty WRITE, READ, WRITE_WITH_IMM and SEND requests complete without remote memory,
// on one lane as on several. The receiver gets the last two.
func TestRequestsOfNoBytes(t *testing.T) {
	forEachWidth(t, func(t *testing.T, cfg ibverbx.Config) {
		a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), cfg)
		local, remote := a.Region(64), b.Region(64)
		data := ibverbx.RecvWR{WRID: 2}
		data.SetSGE(remote.SGE(0, 64))
		b.PostRecv(ibverbx.RecvWR{WRID: 1}, data)
		ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead}
		for i, op := range ops {
			wr := ibverbx.SendWR{WRID: uint64(i), Opcode: op, Flags: verbs.SendSignaled}
			if i >= 4 { // like a program with buffers of any size
				wr.Remote = remote.Remote()
				wr.SetSGE(local.SGE(0, 0))
			}
			a.PostSend(wr)
		}
		var sent, got []ibverbx.WC
		for turns := 0; len(sent) < len(ops) || len(got) < 2; turns++ {
			sent, got = append(sent, a.Poll()...), append(got, b.Poll()...)
			if turns > 1_000_000 {
				t.Fatalf("sent %+v, received %+v; %v", sent, got, a.QP.Err())
			}
		}
		for i, wc := range sent {
			if wc.WRID != uint64(i) || wc.Err() != nil {
				t.Errorf("completion %d = %+v, %v", i, wc, wc.Err())
			}
		}
		if got[0].WRID != 1 || got[0].Err() != nil || got[1].WRID != 2 || got[1].Err() != nil {
			t.Errorf("received %+v", got)
		}
	})
}

// TestBadArgumentsAreErrors: an argument out of range is an error and no panic.
func TestBadArgumentsAreErrors(t *testing.T) {
	a, _ := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 2})
	control, _ := ibverbx.ControlPair()
	failure := func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"CQ(9)":                            failure(a.CQ.CQ(9)),
		"CQ(-1)":                           failure(a.CQ.CQ(-1)),
		"ProcessCompletions(-1)":           failure(a.CQ.ProcessCompletions(-1, nil, nil)),
		"KillLane(99)":                     a.QP.KillLane(99),
		"Connect(nil)":                     a.QP.Connect(nil),
		"Register(nil)":                    failure(a.Rails.Register(nil, verbs.AccessAll)),
		"NewCQ with a negative depth":      failure(a.Rails.NewCQ(ibverbx.CQConfig{Depth: -1})),
		"NewCQ with -1 shared receives":    failure(a.Rails.NewCQ(ibverbx.CQConfig{SharedReceives: -1})),
		"Deadline without Control":         failure(a.CQ.NewQP(ibverbx.Config{Deadline: 1})),
		"KeepAtomics without Control":      failure(a.CQ.NewQP(ibverbx.Config{KeepAtomics: true})),
		"a negative Deadline with Control": failure(a.CQ.NewQP(ibverbx.Config{Deadline: -1, Control: control})),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s = %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
	if cq, err := a.CQ.CQ(1); cq == nil || err != nil {
		t.Errorf("CQ(1) = %v, %v", cq, err)
	}
}
