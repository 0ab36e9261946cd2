package softnic_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// raised returns a rig on w whose QP b, in SQD, may serve 16 concurrent READs and atomics after it was
// connected for fewer.
func raised(t *testing.T, w *world, from uint8) (r *rig, qa verbs.QP, cqA verbs.CQ) {
	t.Helper()
	r = newRig(t, w.link)
	cqA, cqB := newCQ(t, r.ca, 64), newCQ(t, r.cb, 64)
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: cqA, RecvCQ: cqA, MaxSendWR: 32}
	qa, err := r.pa.CreateQP(cfg)
	must(t, err)
	cfg.SendCQ, cfg.RecvCQ = cqB, cqB
	qb, err := r.pb.CreateQP(cfg)
	must(t, err)
	ea, err := qa.Endpoint()
	must(t, err)
	eb, err := qb.Endpoint()
	must(t, err)
	at, bt := verbs.ConnectAttr(ea, eb, 1, 1), verbs.ConnectAttr(eb, ea, 1, 1)
	at.PathMTU, bt.PathMTU = verbs.MTU256, verbs.MTU256
	bt.MaxDestRdAtomic = from
	must(t, verbs.ConnectWith(qa, at))
	must(t, verbs.ConnectWith(qb, bt))
	must(t, qb.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.AttrState))
	must(t, qb.Modify(verbs.QPAttr{MaxDestRdAtomic: 16}, verbs.AttrMaxDestRdAtomic))
	return r, qa, cqA
}

func allSucceeded(t *testing.T, wcs []verbs.WC, n int) {
	t.Helper()
	if len(wcs) != n {
		t.Fatalf("%d completions, want %d", len(wcs), n)
	}
	for i, wc := range wcs {
		if wc.Status != verbs.StatusSuccess || wc.WRID != uint64(i) {
			t.Fatalf("completion %d is of request %d: %v", i, wc.WRID, wc.Status)
		}
	}
}

// TestRaiseMaxDestRdAtomic: raising the limit on READs and atomics in SQD takes effect immediately. The full
// number is served concurrently, each with its own response.
func TestRaiseMaxDestRdAtomic(t *testing.T) {
	for _, from := range []uint8{0, 1} {
		t.Run(fmt.Sprintf("atomics from %d", from), func(t *testing.T) {
			w := newWorld(t, softnic.FaultConfig{Queue: 4, Window: 1000})
			r, qa, cqA := raised(t, w, from)
			results, resultMR := memory(t, r.pa, 16*8)
			sum, sumMR := memory(t, r.pb, 8)
			clear(sum.Bytes())
			wrs := make([]verbs.SendWR, 16)
			for i := range wrs {
				wrs[i] = verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 1, Flags: verbs.SendSignaled, RemoteAddr: sum.Addr(), RKey: sumMR.RKey()}
				wrs[i].SetSGE(verbs.SGE{Addr: results.Addr() + uint64(8*i), Length: 8, LKey: resultMR.LKey()})
			}
			if n, err := qa.PostSend(wrs); n != len(wrs) || err != nil {
				t.Fatalf("PostSend = %d, %v", n, err)
			}
			w.settle(t)
			allSucceeded(t, poll(t, cqA), 16)
			for i := range 16 {
				if got := binary.NativeEndian.Uint64(results.Bytes()[8*i:]); got != uint64(i) {
					t.Errorf("atomic %d returned %d", i, got)
				}
			}
			if got := binary.NativeEndian.Uint64(sum.Bytes()); got != 16 {
				t.Errorf("sum = %d, want 16", got)
			}
		})
		t.Run(fmt.Sprintf("READs from %d", from), func(t *testing.T) {
			w := newWorld(t, softnic.FaultConfig{Queue: 4, Window: 1000})
			r, qa, cqA := raised(t, w, from)
			const reads, size = 12, 4 * kib
			dst, dstMR := memory(t, r.pa, reads*size)
			src, srcMR := memory(t, r.pb, reads*size)
			wrs := make([]verbs.SendWR, reads)
			for i := range wrs {
				binary.NativeEndian.PutUint64(src.Bytes()[i*size:], uint64(i+1)<<32)
				wrs[i] = verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: src.Addr() + uint64(i*size), RKey: srcMR.RKey()}
				wrs[i].SetSGE(verbs.SGE{Addr: dst.Addr() + uint64(i*size), Length: size, LKey: dstMR.LKey()})
			}
			if n, err := qa.PostSend(wrs); n != reads || err != nil {
				t.Fatalf("PostSend = %d, %v", n, err)
			}
			w.settle(t)
			allSucceeded(t, poll(t, cqA), reads)
			if at := firstDifference(dst.Bytes(), src.Bytes()); at >= 0 {
				t.Errorf("the READs brought wrong data from byte %d on", at)
			}
		})
	}
}

// eventTypes drains the events of a context and returns their types.
func eventTypes(t *testing.T, ctx verbs.Context) []verbs.EventType {
	t.Helper()
	var types []verbs.EventType
	for buf := make([]verbs.Event, 64); ; {
		n, err := ctx.Events(buf)
		must(t, err)
		if n == 0 {
			return types
		}
		for _, e := range buf[:n] {
			types = append(types, e.Type)
		}
	}
}

// TestSQDrainedEvent: EventSQDrained is raised once per transition to SQD that requested it, and not for a
// later one that did not.
func TestSQDrainedEvent(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	qa, _ := r.pair(verbs.RC, newCQ(t, r.ca, 4), newCQ(t, r.cb, 4), 4)
	eventTypes(t, r.ca)
	for i, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
		want []verbs.EventType
	}{
		{verbs.QPAttr{State: verbs.StateSQD, SQDNotify: true}, verbs.AttrState | verbs.AttrSQDNotify, []verbs.EventType{verbs.EventSQDrained}},
		{verbs.QPAttr{State: verbs.StateSQD, Timeout: 10}, verbs.AttrState | verbs.AttrTimeout, nil},
		{verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState, nil},
		{verbs.QPAttr{State: verbs.StateSQD}, verbs.AttrState, nil},
		{verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState, nil},
		{verbs.QPAttr{State: verbs.StateSQD, SQDNotify: true}, verbs.AttrState | verbs.AttrSQDNotify, []verbs.EventType{verbs.EventSQDrained}},
	} {
		must(t, qa.Modify(step.attr, step.mask))
		if got := eventTypes(t, r.ca); !slices.Equal(got, step.want) {
			t.Errorf("step %d, to %v: events %v, want %v", i, step.attr.State, got, step.want)
		}
	}
}

// TestOldPeerAfterAddressChange: after its address vector was changed in SQD, a QP rejects packets from its
// former peer, even if it accepted some before.
func TestOldPeerAfterAddressChange(t *testing.T) {
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return 0 }})
	r := newRig(t, link)
	_, other, _ := plug(t, link)
	cqA, cqB := newCQ(t, r.ca, 8), newCQ(t, r.cb, 8)
	qa, qb := r.pair(verbs.RC, cqA, cqB, 8)
	postRecv(t, qb, make([]verbs.RecvWR, 4))
	send := func() {
		t.Helper()
		if _, err := qa.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}); err != nil {
			t.Fatal(err)
		}
	}
	send()
	if got := len(poll(t, cqB)); got != 1 {
		t.Fatalf("%d receives before the change, want 1", got)
	}
	gid, err := other.QueryGID(1, 1)
	must(t, err)
	must(t, qb.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.AttrState))
	must(t, qb.Modify(verbs.QPAttr{AH: verbs.AHAttr{DGID: gid.GID, SGIDIndex: 1}}, verbs.AttrAV))
	before := r.b.Stats().WrongSource
	send()
	if got := len(poll(t, cqB)); got != 0 {
		t.Errorf("%d receives from the old peer, want none", got)
	}
	if got := r.b.Stats().WrongSource - before; got == 0 {
		t.Error("the packet of the old peer was not counted as one of a wrong source")
	}
}
