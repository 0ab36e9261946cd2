//go:build linux

package softnic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// stagedFlow is one direction of a pair of QPs in TestStagedRandom. Each request has its own slot of the target.
type stagedFlow struct {
	q, peer    verbs.QP
	cq, peerCQ verbs.CQ
	// own and far are host and device memory on the two sides.
	own, far [2]devicePiece
	// want is the expected content of far, and got of own.
	want, got [2][]byte
	// adds is the last word of far on the host. Each atomic adds 1.
	adds uint64
	sent []verbs.SendWR
	// done counts send completions, received counts receive completions, and expected is the number of
	// expected ones.
	done, received, expected int
}

const (
	stagedSlot  = 24 << 10
	stagedSlots = 16
	stagedSize  = stagedSlots*stagedSlot + 8
)

// TestStagedRandom posts many concurrent requests of all kinds on several QPs and in both directions, with
// host and device memory. The network loses, duplicates, reorders and corrupts packets, and staging buffers
// are scarce.
func TestStagedRandom(t *testing.T) {
	for seed := range 4 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { stagedRandom(t, uint64(seed)) })
	}
}

func stagedRandom(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 77))
	var imp softnic.Impairment
	if seed%3 != 0 {
		imp = softnic.Impairment{Loss: 0.01, Duplicate: 0.03, Reorder: 0.05, Corrupt: 0.003}
	}
	p := openUDP(t, &softnic.UDPConfig{Seed: seed + 1, Impairment: imp}, softnic.Config{MTU: verbs.MTU1024, Staging: 1}, "127.0.0.1", "127.0.0.2")
	r := &rig{tb: t, ca: p.A, cb: p.B, ackTimeout: 18}
	var err error
	r.pa, err = p.A.AllocPD()
	must(t, err)
	r.pb, err = p.B.AllocPD()
	must(t, err)
	devices := [2]*verbstest.MemoryDevice{new(verbstest.MemoryDevice), new(verbstest.MemoryDevice)}
	var flows []*stagedFlow
	for range 1 + rng.IntN(6) {
		cqa, cqb := newCQ(t, r.ca, 256), newCQ(t, r.cb, 256)
		qa, qb := r.pair(verbs.RC, cqa, cqb, 64)
		for side := range 2 {
			f := &stagedFlow{q: qa, peer: qb, cq: cqa, peerCQ: cqb}
			pd, far := r.pa, r.pb
			if side == 1 {
				f.q, f.peer, f.cq, f.peerCQ, pd, far = qb, qa, cqb, cqa, r.pb, r.pa
			}
			d := devices[rng.IntN(2)]
			f.own = [2]devicePiece{hostPiece(t, pd, stagedSize), bigPiece(t, pd, d, stagedSize)}
			f.far = [2]devicePiece{hostPiece(t, far, stagedSize), bigPiece(t, far, devices[rng.IntN(2)], stagedSize)}
			flows = append(flows, f)
		}
	}
	for round := range 3 {
		for _, f := range flows {
			f.start(t, rng)
		}
		stagedPost(t, rng, flows)
		for _, f := range flows {
			f.check(t, round)
		}
	}
}

func hostPiece(tb testing.TB, pd verbs.PD, n int) devicePiece {
	tb.Helper()
	m, err := verbs.AllocMemory(n, nil)
	must(tb, err)
	tb.Cleanup(func() { must(tb, m.Free()) })
	mr, err := pd.RegisterMemory(m, verbs.AccessAll)
	must(tb, err)
	tb.Cleanup(func() { must(tb, mr.Close()) })
	return devicePiece{m, mr}
}

// start fills the memory and creates the requests of a round.
func (f *stagedFlow) start(t *testing.T, rng *rand.Rand) {
	var src [2][]byte
	for k := range 2 {
		src[k] = f.own[k].fill(t, rng.IntN(256))
		f.got[k] = bytes.Clone(src[k])
		f.want[k] = f.far[k].fill(t, rng.IntN(256))
	}
	f.sent, f.done, f.expected, f.received = nil, 0, 0, 0
	word := f.want[0][stagedSize-8:]
	f.adds = binary.NativeEndian.Uint64(word)
	var recvs []verbs.RecvWR
	for i := range stagedSlots {
		from, to := rng.IntN(2), rng.IntN(2)
		n := 1 + rng.IntN(stagedSlot)
		if rng.IntN(3) == 0 {
			n = 1 + rng.IntN(200)
		}
		at := i * stagedSlot
		op := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd}[rng.IntN(5)]
		cut := rng.IntN(n + 1)
		other := rng.IntN(2)
		wr := f.far[to].request(op, at, f.own[from].sge(at, cut), f.own[other].sge(at+cut, n-cut))
		switch op {
		case verbs.OpRDMARead:
			copy(f.got[from][at:at+cut], f.want[to][at:])
			copy(f.got[other][at+cut:at+n], f.want[to][at+cut:])
			if i > 0 && rng.IntN(2) == 0 && f.sent[i-1].Opcode == verbs.OpRDMAWrite { // the data written by the preceding WRITE
				last := &f.sent[i-1]
				wr.RemoteAddr, wr.RKey = last.RemoteAddr, last.RKey
				n = int(last.SGE[0].Length + last.SGE[1].Length)
				wr.NumSGE, wr.SGE[0] = 1, f.own[from].sge(at, n)
				base := at - stagedSlot
				for k := range 2 {
					copy(f.got[k][at:at+stagedSlot], src[k][at:at+stagedSlot])
				}
				brought := f.want[farKind(f, last.RKey)]
				copy(f.got[from][at:at+n], brought[base:base+n])
			}
		case verbs.OpAtomicFetchAndAdd:
			wr = f.far[0].request(op, stagedSize-8, f.own[from].sge(at, 8))
			wr.CompareAdd = 1
			binary.NativeEndian.PutUint64(f.got[from][at:], f.adds)
			f.adds++
			binary.NativeEndian.PutUint64(word, f.adds)
		default:
			copy(f.want[to][at:at+cut], src[from][at:])
			copy(f.want[to][at+cut:at+n], src[other][at+cut:at+n])
			if op != verbs.OpRDMAWrite {
				recv := verbs.RecvWR{WRID: uint64(f.expected), NumSGE: 1}
				recv.SGE[0] = f.far[to].sge(at, n)
				recvs = append(recvs, recv)
				f.expected++
			}
		}
		if rng.IntN(4) == 0 {
			wr.Flags |= verbs.SendFence
		}
		wr.WRID = uint64(i)
		f.sent = append(f.sent, wr)
	}
	must2(t)(f.peer.PostRecv(recvs))
}

// farKind returns which of far has a key.
func farKind(f *stagedFlow, key uint32) int {
	if key == f.far[1].mr.RKey() {
		return 1
	}
	return 0
}

// stagedPost posts the requests of all flows in batches, alternately, and waits for all completions.
func stagedPost(t *testing.T, rng *rand.Rand, flows []*stagedFlow) {
	next := make([]int, len(flows))
	for left := len(flows) * stagedSlots; left > 0; {
		i := rng.IntN(len(flows))
		f := flows[i]
		n := min(1+rng.IntN(5), stagedSlots-next[i])
		if n == 0 {
			continue
		}
		must2(t)(f.q.PostSend(f.sent[next[i] : next[i]+n]))
		next[i] += n
		left -= n
	}
	for {
		open := false
		for _, f := range flows {
			open = open || f.done < stagedSlots || f.received < f.expected
			var wcs [8]verbs.WC
			n, err := f.cq.Poll(wcs[:])
			must(t, err)
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.StatusSuccess {
					t.Fatalf("completion %+v, want success", wc)
				}
				if owner := recvOwner(flows, f, &wc); owner != nil {
					if wc.WRID != uint64(owner.received) {
						t.Fatalf("receive %d after %d of them", wc.WRID, owner.received)
					}
					owner.received++
				} else {
					if wc.WRID != uint64(f.done) {
						t.Fatalf("completion %d after %d of them", wc.WRID, f.done)
					}
					f.done++
				}
			}
		}
		if !open {
			return
		}
	}
}

// recvOwner returns the flow that owns the receive completed by wc, or nil for a send.
func recvOwner(flows []*stagedFlow, f *stagedFlow, wc *verbs.WC) *stagedFlow {
	if wc.Opcode != verbs.WCRecv && wc.Opcode != verbs.WCRecvRDMAWithImm {
		return nil
	}
	for _, o := range flows {
		if o.peer == f.q {
			return o
		}
	}
	return nil
}

// check compares a flow's memory with the expected result of its requests.
func (f *stagedFlow) check(t *testing.T, round int) {
	for k := range 2 {
		for i := range stagedSlots {
			at := i * stagedSlot
			if got, want := f.far[k].read(t, at, stagedSlot), f.want[k][at:at+stagedSlot]; !bytes.Equal(got, want) {
				t.Fatalf("round %d: %v %d (previous %v) leaves wrong bytes at the peer, kind %d", round, f.sent[i].Opcode, i, f.sent[max(i-1, 0)].Opcode, k)
			}
			if got, want := f.own[k].read(t, at, stagedSlot), f.got[k][at:at+stagedSlot]; !bytes.Equal(got, want) {
				t.Fatalf("round %d: %v %d (previous %v) leaves wrong bytes here, kind %d", round, f.sent[i].Opcode, i, f.sent[max(i-1, 0)].Opcode, k)
			}
		}
	}
}
