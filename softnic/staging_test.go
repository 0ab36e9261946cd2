//go:build linux

package softnic_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// stagedLinks are the links that stage device memory.
var stagedLinks = []string{"udp", "shm"}

// onStaged runs a test on every link of stagedLinks.
func onStaged(t *testing.T, test func(t *testing.T, link string)) {
	for _, link := range stagedLinks {
		t.Run(link, func(t *testing.T) { test(t, link) })
	}
}

// nothing checks that the CQs stay empty while a copy is held. A completion that does not wait for the copy
// would show up meanwhile.
func (r *deviceRig) nothing(what string) {
	r.tb.Helper()
	var wcs [1]verbs.WC
	for range 300 {
		for _, cq := range []verbs.CQ{r.cqa, r.cqb} {
			if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
				r.tb.Fatalf("%s: Poll before the bytes are in place = %d, %v (%+v), want nothing", what, n, err, wcs[0])
			}
		}
		runtime.Gosched()
	}
}

// TestStagedPartlyLanded: a landed request is acknowledged, unlike the one behind it, which waits for a
// slower device.
func TestStagedPartlyLanded(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		slow := new(verbstest.MemoryDevice)
		far := r.register(r.pb, slow.Alloc)
		first, release := hold(t, r.device)
		second, releaseSlow := hold(t, slow)
		r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)), far.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)))
		<-first
		<-second
		release()
		wcs := await(t, r.cqa, 1)
		succeeded(t, wcs)
		if len(wcs) != 1 {
			t.Errorf("%d completions, want that of the first WRITE", len(wcs))
		}
		r.nothing("the second WRITE")
		releaseSlow()
		succeeded(t, await(t, r.cqa, 1))
	})
}

// recv posts a receive of memory on side B.
func (r *deviceRig) recv(id uint64, sges ...verbs.SGE) {
	r.tb.Helper()
	wr := verbs.RecvWR{WRID: id, NumSGE: uint8(len(sges))}
	copy(wr.SGE[:], sges)
	_, err := r.qb.PostRecv([]verbs.RecvWR{wr})
	must(r.tb, err)
}

// TestStagedCompletion: neither side sees a completion before the bytes are on the device, and then both do.
func TestStagedCompletion(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead} {
			r := newDeviceRig(t, link, verbs.RC)
			const n = 50_000
			want, to := r.hostLocal.fill(t, 1), r.remote
			wr := r.remote.request(op, 0, r.hostLocal.sge(0, n))
			if op == verbs.OpRDMARead {
				want, to = r.hostRemote.fill(t, 2), r.local
				wr = r.hostRemote.request(op, 0, r.local.sge(0, n))
			}
			r.recv(5, r.remote.sge(0, n))
			waits, release := hold(t, r.device)
			r.post(wr)
			<-waits
			r.nothing(op.String())
			release()
			succeeded(t, await(t, r.cqa, 1))
			if op == verbs.OpSend || op == verbs.OpRDMAWriteWithImm {
				succeeded(t, await(t, r.cqb, 1))
			}
			if !bytes.Equal(to.read(t, 0, n), want[:n]) {
				t.Errorf("%v: the bytes are not in place", op)
			}
		}
	})
}

// TestStagedOrder: all work behind landing data is deferred: completions of host-memory requests, READ
// responses, atomics and NAKs.
func TestStagedOrder(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		for _, behind := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, 99} {
			r := newDeviceRig(t, link, verbs.RC)
			want := r.hostLocal.fill(t, 1)
			r.recv(7, r.hostRemote.sge(0, 64))
			waits, release := hold(t, r.device)
			r.post(r.remote.request(verbs.OpRDMAWrite, 100, r.hostLocal.sge(100, 64)))
			<-waits
			if behind == 99 { // a READ of the data being written
				r.post(r.remote.request(verbs.OpRDMARead, 100, r.hostLocal.sge(1000, 64)))
			} else {
				r.post(r.hostRemote.request(behind, 8, r.hostLocal.sge(0, 8)))
			}
			r.nothing(behind.String())
			release()
			succeeded(t, await(t, r.cqa, 2))
			if !bytes.Equal(r.remote.read(t, 100, 64), want[100:164]) {
				t.Errorf("%v: the bytes are not in place", behind)
			}
			if behind == 99 && !bytes.Equal(r.hostLocal.read(t, 1000, 64), want[100:164]) {
				t.Error("the READ brings what was there before the WRITE")
			}
		}
	})
}

// TestStagedFence: a fenced WRITE sends the data that an earlier READ brought to a device.
func TestStagedFence(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		r.local.fill(t, 1)
		want := r.hostRemote.fill(t, 2)
		other := r.register(r.pb, r.device.Alloc)
		fenced := other.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 5000))
		fenced.Flags |= verbs.SendFence
		waits, release := hold(t, r.device)
		// The first WRITE starts the prefetch.
		r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.local.sge(20_000, 5000)), r.hostRemote.request(verbs.OpRDMARead, 0, r.local.sge(0, 5000)), fenced)
		<-waits
		r.nothing("fence")
		release()
		succeeded(t, await(t, r.cqa, 3))
		if !bytes.Equal(other.read(t, 0, 5000), want[:5000]) {
			t.Error("the fenced WRITE sends what was there before the READ")
		}
	})
}

// TestStagedAhead: data is prefetched while earlier data is unacknowledged, and fetched again after a
// go-back.
func TestStagedAhead(t *testing.T) {
	link, err := softnic.NewUDPLink(nil)
	must(t, err)
	r, device, nics := &rig{tb: t}, new(verbstest.MemoryDevice), [2]*softnic.NIC{}
	for i, x := range []struct {
		ctx *verbs.Context
		pd  *verbs.PD
	}{{&r.ca, &r.pa}, {&r.cb, &r.pb}} {
		nics[i], err = softnic.New(link, softnic.Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})})
		must(t, err)
		t.Cleanup(func() { must(t, nics[i].Close()) })
		*x.ctx, err = nics[i].Open()
		must(t, err)
		*x.pd, err = (*x.ctx).AllocPD()
		must(t, err)
	}
	cqa, cqb := newCQ(t, r.ca, 16), newCQ(t, r.cb, 16)
	qa, _ := r.pair(verbs.RC, cqa, cqb, 16)
	const n = 3 << 20
	from, to := bigPiece(t, r.pa, device, n), bigPiece(t, r.pb, new(verbstest.MemoryDevice), n)
	want := from.fill(t, 3)
	copies := device.Count().Copies
	link.Cut(nics[0], netip.MustParseAddr("127.0.0.2"))
	if k, err := qa.PostSend([]verbs.SendWR{to.request(verbs.OpRDMAWrite, 0, from.sge(0, n))}); k != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v, want 1 and nil", k, err)
	}
	for device.Count().Copies < copies+3 { // still unacknowledged
		runtime.Gosched()
	}
	link.Restore(nics[0], netip.MustParseAddr("127.0.0.2"))
	succeeded(t, await(t, cqa, 1))
	if !bytes.Equal(to.read(t, 0, n), want) {
		t.Error("the bytes are not in place")
	}
}

// bigPiece returns registered device memory.
func bigPiece(tb testing.TB, pd verbs.PD, d *verbstest.MemoryDevice, n int) devicePiece {
	tb.Helper()
	m, err := d.Alloc(n)
	must(tb, err)
	tb.Cleanup(func() { must(tb, m.Free()) })
	mr, err := pd.RegisterMemory(m, verbs.AccessAll)
	must(tb, err)
	tb.Cleanup(func() { must(tb, mr.Close()) })
	return devicePiece{m, mr}
}

// TestStagedFaults moves random ranges over UDP with loss, duplicates, reordering and corruption, in both
// kinds of memory.
func TestStagedFaults(t *testing.T) {
	p := openUDP(t, &softnic.UDPConfig{Seed: 7, Impairment: softnic.Impairment{Loss: 0.02, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.005}},
		softnic.Config{MTU: verbs.MTU1024, Staging: 1}, "127.0.0.1", "127.0.0.2")
	r := deviceRigOn(t, p, verbs.RC)
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		locals, remotes := []devicePiece{r.local, r.hostLocal}, []devicePiece{r.remote, r.hostRemote}
		from, to := locals[rng.IntN(2)], remotes[rng.IntN(2)]
		n, off := 1+rng.IntN(60_000), rng.IntN(5000)
		op := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead}[rng.IntN(4)]
		want, result := from.fill(t, round), to
		if op == verbs.OpRDMARead {
			want, result = to.fill(t, round), from
		}
		if op == verbs.OpSend || op == verbs.OpRDMAWriteWithImm {
			r.recv(1, to.sge(off, n))
		}
		r.post(to.request(op, off, from.sge(off, n/2), from.sge(off+n/2, n-n/2)))
		succeeded(t, await(t, r.cqa, 1))
		if op == verbs.OpSend || op == verbs.OpRDMAWriteWithImm {
			succeeded(t, await(t, r.cqb, 1))
		}
		if !bytes.Equal(result.read(t, off, n), want[off:off+n]) {
			t.Fatalf("round %d: %v of %d bytes at %d: the bytes are wrong", round, op, n, off)
		}
	}
}

// TestStagedFlush: a QP error flushes the requests behind landing data, and no completion is reported before
// it has landed.
func TestStagedFlush(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		r.recv(1, r.remote.sge(0, 100))
		r.recv(2, r.remote.sge(100, 100))
		want := r.hostLocal.fill(t, 1)
		waits, release := hold(t, r.device)
		r.post(r.remote.request(verbs.OpSend, 0, r.hostLocal.sge(0, 100)))
		<-waits
		must(t, r.qb.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
		r.nothing("flush")
		release()
		wcs := await(t, r.cqb, 2)
		if wcs[0].WRID != 1 || wcs[0].Status != verbs.StatusSuccess || wcs[1].WRID != 2 || wcs[1].Status != verbs.StatusWRFlushErr {
			t.Errorf("receives = %+v, want a success and a flush", wcs)
		}
		if !bytes.Equal(r.remote.read(t, 0, 100), want[:100]) {
			t.Error("the bytes are not in place")
		}
	})
}

// TestStagedReset: a QP that is reset or closed while its data lands does not report completions, and can be
// reused.
func TestStagedReset(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		r.recv(1, r.remote.sge(0, 100))
		waits, release := hold(t, r.device)
		r.post(r.remote.request(verbs.OpSend, 0, r.local.sge(0, 100)))
		<-waits // the fetch
		for _, q := range []verbs.QP{r.qa, r.qb} {
			must(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
		}
		connect(t, r.qa, r.qb)
		r.recv(2, r.remote.sge(1000, 100))
		want := r.hostLocal.fill(t, 1)
		r.post(r.remote.request(verbs.OpSend, 0, r.hostLocal.sge(0, 100)))
		r.nothing("reset") // the copier is held
		release()
		succeeded(t, await(t, r.cqa, 1))
		if wc := await(t, r.cqb, 1)[0]; wc.WRID != 2 || wc.Status != verbs.StatusSuccess || !bytes.Equal(r.remote.read(t, 1000, 100), want[:100]) {
			t.Errorf("receive after the reset = %+v, want success of 2", wc)
		}
	})
}

// TestStagedResetWaits: resetting or closing a QP waits until its data has landed. A late copy could
// otherwise overwrite memory already in use for something else.
func TestStagedResetWaits(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		for _, end := range []func(q verbs.QP) error{
			func(q verbs.QP) error { return q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState) },
			func(q verbs.QP) error { return q.Close() },
		} {
			r := newDeviceRig(t, link, verbs.RC)
			waits, release := hold(t, r.device)
			r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)))
			<-waits
			ended := make(chan error, 1)
			go func() { ended <- end(r.qb) }()
			for range 1000 {
				if runtime.Gosched(); len(ended) > 0 {
					t.Fatal("the QP ends while its bytes land")
				}
			}
			release()
			must(t, <-ended)
		}
	})
}

// TestStagedDeregister: Close of a region waits for copies from and to it. Requests behind it fail.
func TestStagedDeregister(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		for _, incoming := range []bool{false, true} {
			r := newDeviceRig(t, link, verbs.RC)
			device := new(verbstest.MemoryDevice)
			pd := r.pa
			if incoming {
				pd = r.pb
			}
			m, err := device.Alloc(10_000)
			must(t, err)
			mr, err := pd.RegisterMemory(m, verbs.AccessAll)
			must(t, err)
			piece := devicePiece{m, mr}
			waits, release := hold(t, device)
			wr := r.hostRemote.request(verbs.OpRDMAWrite, 0, piece.sge(0, 10_000))
			if incoming { // one packet: others could arrive after Close
				wr = piece.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 1000))
			}
			r.post(wr)
			<-waits
			closed := make(chan error, 1)
			go func() { closed <- mr.Close() }()
			stacks := make([]byte, 1<<20)
			for n := 0; n < 1000; runtime.Gosched() {
				if n > 0 || strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*stager).deregister(") { // Close waits
					n++
				}
				if len(closed) > 0 {
					t.Fatal("Close returns while the device copies")
				}
			}
			release()
			must(t, <-closed)
			must(t, m.Free())
			if n := device.Pinned(); n != 0 {
				t.Errorf("%d bytes of staging are left, want none", n)
			}
			wc := await(t, r.cqa, 1)[0]
			if incoming && wc.Status != verbs.StatusSuccess {
				t.Errorf("the WRITE whose bytes have landed = %v, want success", wc.Status)
			} else if !incoming && wc.Status != verbs.StatusLocProtErr {
				t.Errorf("the WRITE whose bytes have not left = %v, want LOC_PROT_ERR", wc.Status)
			}
		}
	})
}

// TestStagedBound: many QPs share few staging buffers. One that cannot send does not keep others from it.
func TestStagedBound(t *testing.T) {
	const qps, n = 8, 300_000
	p := openUDP(t, nil, softnic.Config{Staging: 1 << 20}, "127.0.0.1", "127.0.0.2")
	r := deviceRigOn(t, p, verbs.RC)
	from, to := bigPiece(t, r.pa, r.device, n), bigPiece(t, r.pb, r.device, n)
	long := bigPiece(t, r.pa, r.device, 4<<20)
	cq := newCQ(t, r.ca, 16) // of a QP with fetched data that waits forever for a closed peer
	qa, err := r.pa.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxSendSGE: 1, Path: verbs.PathConfig{AckTimeout: verbs.ExplicitZero},
	})
	must(t, err)
	_, qb := r.pair(verbs.RC, newCQ(t, r.ca, 16), newCQ(t, r.cb, 16), 4)
	e, err := qb.Endpoint()
	must(t, err)
	must(t, qb.Close())
	must(t, qa.Connect(e))
	must2(t)(qa.PostSend([]verbs.SendWR{ // the first closes the window in the middle of a buffer
		{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend, NumSGE: 1, SGE: [verbs.MaxSGE]verbs.SGE{long.sge(0, 4<<20)}},
	}))
	want := from.fill(t, 5)
	for range qps {
		qa, _ := r.pair(verbs.RC, r.cqa, r.cqb, 4)
		must2(t)(qa.PostSend([]verbs.SendWR{to.request(verbs.OpRDMAWrite, 0, from.sge(0, n))}))
	}
	succeeded(t, await(t, r.cqa, qps))
	if !bytes.Equal(to.read(t, 0, n), want) {
		t.Error("the bytes are not in place")
	}
	if pinned := r.device.Pinned(); pinned > 2<<20 { // of two NICs
		t.Errorf("%d bytes are pinned, want at most 1 MiB per NIC", pinned)
	}
}

// must2 is must for calls that return a number too.
func must2(tb testing.TB) func(int, error) {
	return func(_ int, err error) { tb.Helper(); must(tb, err) }
}

// TestStagedIsolation: a failed copy fails only the QP that owns the memory, on either side.
func TestStagedIsolation(t *testing.T) {
	const busy = 4 // landings, so that the following ones land together
	onStaged(t, func(t *testing.T, link string) {
		for _, incoming := range []bool{false, true} {
			r := newDeviceRig(t, link, verbs.RC)
			cq := newCQ(t, r.ca, 4)
			qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 4)
			bad := r.register(r.pa, r.device.Alloc)
			wr := r.hostRemote.request(verbs.OpRDMAWrite, 0, bad.sge(0, 100))
			if incoming {
				bad = r.register(r.pb, r.device.Alloc)
				wr = bad.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100))
			}
			first := r.remote.request(verbs.OpRDMAWrite, 200, r.hostLocal.sge(0, 100))
			waits, release := hold(t, r.device)
			nic := r.cb.Device().(*softnic.NIC)
			came := func() uint64 { s := nic.Stats(); return s.PacketsReceived - s.Duplicates } // without probes
			sent := func(q verbs.QP, wr verbs.SendWR) {                                         // and received
				before := came()
				must2(t)(q.PostSend([]verbs.SendWR{wr}))
				for came() == before {
					runtime.Gosched()
				}
			}
			for range busy {
				sent(r.qa, first)
			}
			<-waits
			r.device.FailAt(bad.Memory)
			if incoming {
				sent(qa, wr)
				sent(r.qa, first)
			} else {
				must2(t)(qa.PostSend([]verbs.SendWR{wr}))
				r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 100)))
			}
			release()
			succeeded(t, await(t, r.cqa, busy+1))
			want := verbs.StatusGeneralErr
			if incoming {
				want = verbs.StatusRemOpErr
			}
			if wc := await(t, cq, 1)[0]; wc.Status != want {
				t.Errorf("the WRITE whose copy fails = %v, want %v", wc.Status, want)
			}
			r.device.FailAt(nil)
		}
	})
}

// TestStagedUnreliable: UC and UD move data to and from devices, and a failed copy never completes a
// receive successfully.
func TestStagedUnreliable(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.UC)
		want := r.local.fill(t, 1)
		for i := range 3 {
			r.recv(uint64(i), r.remote.sge(0, 3000))
		}
		waits, release := hold(t, r.device)
		r.post(r.remote.request(verbs.OpSend, 0, r.local.sge(0, 3000)))
		<-waits
		release()
		succeeded(t, await(t, r.cqa, 1))
		succeeded(t, await(t, r.cqb, 1))
		if !bytes.Equal(r.remote.read(t, 0, 3000), want[:3000]) {
			t.Error("the bytes are not in place")
		}
		r.device.FailAt(r.remote.Memory)
		r.post(r.remote.request(verbs.OpSend, 0, r.hostLocal.sge(0, 3000)))
		wcs := await(t, r.cqb, 2)
		if wcs[0].WRID != 1 || wcs[0].Status != verbs.StatusGeneralErr || wcs[1].Status != verbs.StatusWRFlushErr {
			t.Errorf("receives = %+v, want the error of the copy and a flush", wcs)
		}
		r.device.FailAt(nil)
	})
}

// TestStagedUnsignaled: an unsignaled READ whose data cannot land is reported.
func TestStagedUnsignaled(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		quiet := r.hostRemote.request(verbs.OpRDMARead, 0, r.local.sge(0, 100))
		quiet.Flags, quiet.WRID = 0, 8
		r.device.FailAt(r.local.Memory)
		r.post(quiet, r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)))
		wcs := await(t, r.cqa, 2)
		if wcs[0].WRID != 8 || wcs[0].Status != verbs.StatusGeneralErr || wcs[1].Status != verbs.StatusWRFlushErr {
			t.Errorf("completions = %+v, want the error of the READ and a flush", wcs)
		}
		r.device.FailAt(nil)
	})
}

// TestStagingConfig: a negative size is refused.
func TestStagingConfig(t *testing.T) {
	if _, err := softnic.New(softnic.NewMemoryLink(nil), softnic.Config{Staging: -1}); err == nil {
		t.Error("New with a negative Staging = nil, want an error")
	}
}
