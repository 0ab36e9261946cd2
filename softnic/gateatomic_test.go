package softnic

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"ibverbx/verbs"
)

// TestGatesAtomics: two pairs with open gates add to one word and swap another. Each atomic executes once,
// and no two fetch the same sum.
func TestGatesAtomics(t *testing.T) {
	const rounds, chain = 200, 40
	link := NewMemoryLink(nil)
	SetLoose(link, 0)
	a, b := pairOn(t, link, 512)
	var qps [2]*qp
	var found [2][]uint64
	var runs [2]func()
	for i := range found {
		cq, err := a.ctx.CreateCQ(verbs.CQConfig{Depth: chain})
		check(t, err)
		v, err := a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: chain})
		check(t, err)
		qps[i] = v.(*qp)
		join(t, qps[i], b.qp(verbs.RC, 1))
		wrs := make([]verbs.SendWR, chain)
		for k := range wrs {
			wr := a.to(b, verbs.OpAtomicFetchAndAdd)
			wr.CompareAdd = 1
			wr.SetSGE(a.sge(uint64(i*chain+k)*8, 8))
			wrs[k] = wr
		}
		swap := &wrs[chain/2]
		swap.Opcode, swap.RemoteAddr = verbs.OpAtomicCmpAndSwp, swap.RemoteAddr+8
		runs[i] = func() { found[i] = addRounds(t, v, cq, a.mem.Bytes()[i*chain*8:], wrs, rounds) }
	}
	var wg sync.WaitGroup
	for _, run := range runs { // after both are connected, which shuts gates
		wg.Go(run)
	}
	wg.Wait()
	all := slices.Sorted(slices.Values(slices.Concat(found[0], found[1])))
	if want := 2 * rounds * (chain - 1); len(all) != want {
		t.Fatalf("%d sums were found, want %d", len(all), want)
	}
	for i, sum := range all {
		if sum != uint64(i) {
			t.Fatalf("sum %d was found at place %d", sum, i)
		}
	}
	for i, q := range qps {
		if p := q.pair.Load(); p == nil || !p.open.Load() {
			t.Errorf("the gate of pair %d is shut after atomics, want it open", i)
		}
	}
}

// addRounds posts a chain of atomics repeatedly and returns the sums they fetched. The middle one is a
// compare-and-swap that expects a value from the last round, so it succeeds at times.
func addRounds(t *testing.T, q verbs.QP, cq verbs.CQ, results []byte, wrs []verbs.SendWR, rounds int) (found []uint64) {
	wcs := make([]verbs.WC, len(wrs))
	for range rounds {
		if n, err := q.PostSend(wrs); n != len(wrs) {
			t.Error(n, err)
			return nil
		}
		for got := 0; got < len(wrs); {
			n, err := cq.Poll(wcs)
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.StatusSuccess || wc.ByteLen != 8 {
					t.Error(wc)
				}
			}
			if got += n; err != nil {
				t.Error(err)
				return nil
			}
		}
		for k := range wrs {
			value := binary.NativeEndian.Uint64(results[k*8:])
			if wrs[k].Opcode == verbs.OpAtomicFetchAndAdd {
				found = append(found, value)
			} else {
				wrs[k].CompareAdd, wrs[k].Swap = value, value+1
			}
		}
	}
	return found
}

// TestGatesAtomicsWithoutRoom: atomics that exceed their CQ's depth execute exactly once each. The first one
// that does not fit is answered from the responder's replay cache and overruns the CQ immediately.
func TestGatesAtomicsWithoutRoom(t *testing.T) {
	const posted = 3 * maxRdAtomic
	for _, depth := range []int{1, 4, maxRdAtomic + 1, 2 * maxRdAtomic} {
		link := NewMemoryLink(nil)
		SetLoose(link, 0)
		a, b := pairOn(t, link, depth)
		qa := a.qp(verbs.RC, posted)
		join(t, qa, b.qp(verbs.RC, 1))
		wrs := make([]verbs.SendWR, posted)
		for i := range wrs {
			wrs[i] = a.to(b, verbs.OpAtomicFetchAndAdd)
			wrs[i].CompareAdd = 1
		}
		post(t, qa, wrs...)
		if sum := binary.NativeEndian.Uint64(b.mem.Bytes()); sum <= uint64(depth) || sum > posted {
			t.Errorf("CQ of %d: %d atomics were executed, want more than that and at most %d", depth, sum, posted)
		}
		var events [8]verbs.Event
		n, err := a.ctx.Events(events[:])
		check(t, err)
		if !slices.ContainsFunc(events[:n], func(e verbs.Event) bool { return e.Type == verbs.EventCQErr }) {
			t.Errorf("CQ of %d: events %v, want one that says that the CQ overran", depth, events[:n])
		}
	}
}
