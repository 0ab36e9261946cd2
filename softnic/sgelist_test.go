//go:build linux

package softnic_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"
	"unsafe"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// listMost is softnic's MaxSGE.
const listMost = 16

// listed returns an array of n SGEs of uneven lengths that cover a region from its start, and their length in bytes.
func listed(mr verbs.MR, n int) ([]verbs.SGE, int) {
	sges, at := make([]verbs.SGE, n), uint64(0)
	for i := range sges {
		k := uint32(i*37%11) * 51 // some are empty
		sges[i] = verbs.SGE{Addr: mr.Addr() + at, Length: k, LKey: mr.LKey()}
		at += uint64(k) + 1 // a gap behind each
	}
	total := 0
	for _, s := range sges {
		total += int(s.Length)
	}
	return sges, total
}

// pinned returns a copy of a list in pinned memory, valid until the end of the test.
func pinned(t *testing.T, sges []verbs.SGE) []verbs.SGE {
	t.Helper()
	m, err := verbs.AllocMemory(len(sges)*int(unsafe.Sizeof(verbs.SGE{})), nil)
	must(t, err)
	t.Cleanup(func() { must(t, m.Free()) })
	array := unsafe.Slice((*verbs.SGE)(unsafe.Pointer(unsafe.SliceData(m.Bytes()))), len(sges))
	copy(array, sges)
	return array
}

// listAddr returns the SGE[0] that points to a list. The list is pinned.
func listAddr(sges []verbs.SGE) [verbs.MaxSGE]verbs.SGE {
	return [verbs.MaxSGE]verbs.SGE{{Addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(sges))))}}
}

// listBytes returns the bytes covered by a list.
func listBytes(m *verbs.Memory, mr verbs.MR, sges []verbs.SGE) (b []byte) {
	for _, s := range sges {
		b = append(b, m.Bytes()[s.Addr-mr.Addr():][:s.Length]...)
	}
	return b
}

// listRig has a QP pair that accepts lists, and a region on each side.
type listRig struct {
	*rig
	qa, qb   verbs.QP
	cqa, cqb verbs.CQ
	ma, mb   *verbs.Memory
	ra, rb   verbs.MR
	// srq holds the receives of qb, nil if qb has its own receive queue.
	srq verbs.SRQ
}

func newListRig(t *testing.T, on *rig, typ verbs.QPType) *listRig {
	return (&listRig{rig: on}).furnish(t, typ)
}

func (r *listRig) furnish(t *testing.T, typ verbs.QPType) *listRig {
	r.cqa, r.cqb = newCQ(t, r.ca, 64), newCQ(t, r.cb, 64)
	r.ma, r.ra = memory(t, r.pa, 1<<14)
	r.mb, r.rb = memory(t, r.pb, 1<<14)
	for i := range r.ma.Bytes() {
		r.ma.Bytes()[i], r.mb.Bytes()[i] = byte(i*7), 0xee
	}
	create := func(pd verbs.PD, cq verbs.CQ, srq verbs.SRQ) verbs.QP {
		cfg := verbs.QPConfig{
			Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: listMost, MaxRecvSGE: listMost, MaxInline: 1024, SRQ: srq,
		}
		if srq != nil {
			cfg.MaxRecvWR = 0
		}
		qp, err := pd.CreateQP(cfg)
		must(t, err)
		t.Cleanup(func() { must(t, qp.Close()) })
		return qp
	}
	r.qa, r.qb = create(r.pa, r.cqa, nil), create(r.pb, r.cqb, r.srq)
	connect(t, r.qa, r.qb)
	return r
}

// ended polls one completion and checks its status.
func (r *listRig) ended(t *testing.T, cq verbs.CQ, what string) {
	t.Helper()
	if wcs := await(t, cq, 1); wcs[0].Status != verbs.StatusSuccess {
		t.Fatalf("%s ended with %v", what, wcs[0].Status)
	}
}

// TestListedRequests: requests with too many SGEs refer to a list, on both sides and for every
// operation. The array can be reused once the post returns.
func TestListedRequests(t *testing.T) {
	links := map[string]func(t *testing.T) *rig{
		"memory": func(t *testing.T) *rig { return newRig(t, softnic.NewMemoryLink(nil)) },
		"udp":    func(t *testing.T) *rig { return newUDPRig(t, softnic.UDPConfig{}).rig },
		"shm":    func(t *testing.T) *rig { return shmRig(t) },
	}
	for name, link := range links {
		t.Run(name, func(t *testing.T) {
			r := newListRig(t, link(t), verbs.RC)
			for n := verbs.MaxSGE + 1; n <= listMost; n++ {
				src, length := listed(r.ra, n)
				want := listBytes(r.ma, r.ra, src)
				post := func(wr verbs.SendWR, sges []verbs.SGE) {
					t.Helper()
					array := pinned(t, sges)
					wr.NumSGE, wr.Listed, wr.SGE = uint8(n), 1, listAddr(array)
					wr.RemoteAddr, wr.RKey, wr.Flags = r.rb.Addr(), r.rb.RKey(), wr.Flags|verbs.SendSignaled
					_, err := r.qa.PostSend([]verbs.SendWR{wr})
					must(t, err)
					clear(array)
				}
				_, err := r.qb.PostRecv([]verbs.RecvWR{{}})
				must(t, err)
				post(verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm}, src)
				r.ended(t, r.cqa, "WRITE")
				r.ended(t, r.cqb, "WRITE at the peer")
				if !bytes.Equal(r.mb.Bytes()[:length], want) {
					t.Fatalf("%d elements: the WRITE placed other bytes", n)
				}
				into, _ := listed(r.ra, n)
				for i := range into {
					into[i].Addr += 8192
				}
				post(verbs.SendWR{Opcode: verbs.OpRDMARead}, into)
				r.ended(t, r.cqa, "READ")
				if !bytes.Equal(listBytes(r.ma, r.ra, into), want) {
					t.Fatalf("%d elements: the READ placed other bytes", n)
				}
				dst, _ := listed(r.rb, n)
				for i := range dst {
					dst[i].Addr += 8192
				}
				array := pinned(t, dst)
				_, err = r.qb.PostRecv([]verbs.RecvWR{{NumSGE: uint8(n), Listed: 1, SGE: listAddr(array)}, {}})
				must(t, err)
				clear(array)
				post(verbs.SendWR{Opcode: verbs.OpSend}, src)
				r.ended(t, r.cqa, "SEND")
				r.ended(t, r.cqb, "receive")
				if !bytes.Equal(listBytes(r.mb, r.rb, dst), want) {
					t.Fatalf("%d elements: the SEND placed other bytes", n)
				}
				_, err = r.qa.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
				must(t, err)
				r.ended(t, r.cqb, "receive behind a list")
			}
		})
	}
}

// TestListedInParts: messages from and to lists that span many packets, which may get lost, on RC, on
// UC and with an SRQ.
func TestListedInParts(t *testing.T) {
	for name, v := range map[string]struct {
		typ  verbs.QPType
		loss float64
		srq  bool
	}{"rc": {verbs.RC, 0.1, false}, "uc": {verbs.UC, 0, false}, "srq": {verbs.RC, 0.1, true}} {
		t.Run(name, func(t *testing.T) {
			link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 7, Impairment: softnic.Impairment{Loss: v.loss}, ProbeAfter: time.Millisecond})
			must(t, err)
			r := &listRig{rig: &rig{tb: t}}
			r.a, r.ca, r.pa = plugConfig(t, link, softnic.Config{MTU: verbs.MTU256})
			r.b, r.cb, r.pb = plugConfig(t, link, softnic.Config{MTU: verbs.MTU256})
			t.Cleanup(func() { must(t, errors.Join(r.a.Close(), r.b.Close())) })
			if v.srq {
				r.srq, err = r.pb.CreateSRQ(verbs.SRQConfig{MaxWR: 32, MaxSGE: listMost})
				must(t, err)
			}
			r.furnish(t, v.typ)
			for n := verbs.MaxSGE + 1; n <= listMost; n++ {
				r.exchange(t, v.typ, n)
			}
			if s := r.a.Stats(); v.loss > 0 && s.Retransmits == 0 {
				t.Error("nothing was sent again")
			}
		})
	}
}

// exchange sends from a list into a list of n elements, and reads it back into another one on RC.
func (r *listRig) exchange(t *testing.T, typ verbs.QPType, n int) {
	t.Helper()
	src, length := listed(r.ra, n)
	dst, _ := listed(r.rb, n)
	slices.Reverse(dst)
	recv := []verbs.RecvWR{{NumSGE: uint8(n), Listed: 1, SGE: listAddr(pinned(t, dst))}}
	post := r.qb.PostRecv
	if r.srq != nil {
		post = r.srq.PostRecv
	}
	_, err := post(recv)
	must(t, err)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, NumSGE: uint8(n), Listed: 1, SGE: listAddr(pinned(t, src))}
	_, err = r.qa.PostSend([]verbs.SendWR{wr})
	must(t, err)
	r.ended(t, r.cqa, "SEND")
	r.ended(t, r.cqb, "receive")
	want := listBytes(r.ma, r.ra, src)
	if !bytes.Equal(listBytes(r.mb, r.rb, dst), want) {
		t.Fatalf("%d elements: the SEND placed other bytes", n)
	}
	if typ != verbs.RC {
		return
	}
	copy(r.mb.Bytes()[8192:], want)
	for i := range dst {
		dst[i].Addr, dst[i].LKey = dst[i].Addr-r.rb.Addr()+r.ra.Addr()+8192, r.ra.LKey()
	}
	wr.Opcode, wr.SGE, wr.RemoteAddr, wr.RKey = verbs.OpRDMARead, listAddr(pinned(t, dst)), r.rb.Addr()+8192, r.rb.RKey()
	_, err = r.qa.PostSend([]verbs.SendWR{wr})
	must(t, err)
	r.ended(t, r.cqa, "READ")
	if !bytes.Equal(listBytes(r.ma, r.ra, dst), want) || len(want) != length {
		t.Fatalf("%d elements: the READ placed other bytes", n)
	}
}

// TestListedInline: the data of an inline request can be described by a list, and is copied at post
// time.
func TestListedInline(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.RC)
	sges := make([]verbs.SGE, 10)
	for i := range sges {
		sges[i] = verbs.SGE{Addr: r.ra.Addr() + uint64(i*100), Length: uint32(i)}
	}
	want := listBytes(r.ma, r.ra, sges)
	wr := verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, Flags: verbs.SendInline | verbs.SendSignaled, NumSGE: 10, Listed: 1, SGE: listAddr(pinned(t, sges)),
		RemoteAddr: r.rb.Addr(), RKey: r.rb.RKey(),
	}
	_, err := r.qa.PostSend([]verbs.SendWR{wr})
	must(t, err)
	r.ended(t, r.cqa, "WRITE")
	if !bytes.Equal(r.mb.Bytes()[:len(want)], want) {
		t.Error("the WRITE placed other bytes")
	}
}

// TestListedSurvivesGrowth: lists stay with their requests when the queues grow and when receives are flushed.
func TestListedSurvivesGrowth(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.RC)
	const n = 20 // more than a queue's initial size
	var arrays [n][]verbs.SGE
	for i := range arrays {
		sges := make([]verbs.SGE, verbs.MaxSGE+1)
		for k := range sges {
			sges[k] = verbs.SGE{Addr: r.rb.Addr() + uint64(i*100+k), Length: 1, LKey: r.rb.LKey()}
		}
		arrays[i] = sges
		_, err := r.qb.PostRecv([]verbs.RecvWR{{NumSGE: verbs.MaxSGE + 1, Listed: 1, SGE: listAddr(pinned(t, sges))}})
		must(t, err)
	}
	for i := range n / 2 {
		wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline}
		wr.SetSGE(verbs.SGE{Addr: r.ra.Addr() + uint64(i), Length: verbs.MaxSGE + 1})
		_, err := r.qa.PostSend([]verbs.SendWR{wr})
		must(t, err)
		r.ended(t, r.cqb, "receive")
		if got, want := listBytes(r.mb, r.rb, arrays[i]), r.ma.Bytes()[i:][:verbs.MaxSGE+1]; !bytes.Equal(got, want) {
			t.Fatalf("receive %d has % x, want % x", i, got, want)
		}
	}
	must(t, r.qb.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	for _, wc := range await(t, r.cqb, n/2) {
		if wc.Status != verbs.StatusWRFlushErr {
			t.Fatalf("a waiting receive ended with %v", wc.Status)
		}
	}
}

// TestListedRefused: lists require a QP created for them, and more than MaxSGE SGEs require a list.
func TestListedRefused(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.RC)
	small, _ := r.pair(verbs.RC, r.cqa, r.cqb, 8)
	sges, _ := listed(r.ra, listMost)
	for what, f := range map[string]func() error{
		"a list on a QP for one element": func() error {
			_, err := small.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, NumSGE: listMost, Listed: 1, SGE: listAddr(pinned(t, sges))}})
			return err
		},
		"more elements than the QP allows": func() error {
			_, err := r.qa.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, NumSGE: listMost + 1, Listed: 1, SGE: listAddr(pinned(t, sges))}})
			return err
		},
		"elements that are not in a list": func() error {
			wr := verbs.SendWR{Opcode: verbs.OpSend}
			wr.SetSGE(sges...)
			_, err := r.qa.PostSend([]verbs.SendWR{wr})
			return err
		},
		"a list with an opcode that does not exist": func() error {
			_, err := r.qa.PostSend([]verbs.SendWR{{Opcode: 99, NumSGE: listMost, Listed: 1, SGE: listAddr(pinned(t, sges))}})
			return err
		},
		"a receive with more elements than the QP allows": func() error {
			_, err := r.qb.PostRecv([]verbs.RecvWR{{NumSGE: listMost + 1, Listed: 1, SGE: listAddr(pinned(t, sges))}})
			return err
		},
		"a receive whose elements are not in a list": func() error {
			wr := verbs.RecvWR{}
			wr.SetSGE(sges...)
			_, err := r.qb.PostRecv([]verbs.RecvWR{wr})
			return err
		},
	} {
		if err := f(); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v, want %v", what, err, verbs.ErrInvalid)
		}
	}
	sges[7].LKey++
	_, err := r.qa.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpRDMAWrite, NumSGE: listMost, Listed: 1, SGE: listAddr(pinned(t, sges)), RemoteAddr: r.rb.Addr(), RKey: r.rb.RKey(),
	}})
	must(t, err)
	if wcs := await(t, r.cqa, 1); wcs[0].Status != verbs.StatusLocProtErr {
		t.Errorf("a list with a wrong key ended with %v, want %v", wcs[0].Status, verbs.StatusLocProtErr)
	}
}

// TestListedDatagram: a datagram is gathered from a list and scattered into one, the GRH first.
func TestListedDatagram(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.UD)
	src, length := listed(r.ra, 8)
	peer, err := r.cb.QueryGID(1, 1)
	must(t, err)
	ah, err := r.pa.CreateAH(verbs.AHAttr{DGID: peer.GID, SGIDIndex: 1})
	must(t, err)
	t.Cleanup(func() { must(t, ah.Close()) })
	dst := make([]verbs.SGE, listMost)
	for i := range dst {
		dst[i] = verbs.SGE{Addr: r.rb.Addr() + uint64(i*1000), Length: 512, LKey: r.rb.LKey()}
	}
	_, err = r.qb.PostRecv([]verbs.RecvWR{{NumSGE: listMost, Listed: 1, SGE: listAddr(pinned(t, dst))}})
	must(t, err)
	_, err = r.qa.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSend, NumSGE: 8, Listed: 1, SGE: listAddr(pinned(t, src)), AH: ah.Handle(), RemoteQPN: r.qb.Num(), RemoteQKey: verbs.DefaultQKey,
	}})
	must(t, err)
	r.ended(t, r.cqb, "receive")
	if got := listBytes(r.mb, r.rb, dst)[verbs.GRHLen:][:length]; !bytes.Equal(got, listBytes(r.ma, r.ra, src)) {
		t.Error("the datagram placed other bytes")
	}
}

// TestListedSendsSurviveGrowth: lists stay with their requests when the send queue grows.
func TestListedSendsSurviveGrowth(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.RC)
	const n, k = 20, verbs.MaxSGE + 1
	for i := range n { // they wait for receives
		sges := make([]verbs.SGE, k)
		for j := range sges {
			sges[j] = verbs.SGE{Addr: r.ra.Addr() + uint64(i*100+j*3), Length: 1, LKey: r.ra.LKey()}
		}
		_, err := r.qa.PostSend([]verbs.SendWR{{
			Opcode: verbs.OpSend, Flags: verbs.SendSignaled, NumSGE: k, Listed: 1, SGE: listAddr(pinned(t, sges)),
		}})
		must(t, err)
	}
	for i := range n {
		wr := verbs.RecvWR{}
		wr.SetSGE(verbs.SGE{Addr: r.rb.Addr() + uint64(i*k), Length: k, LKey: r.rb.LKey()})
		_, err := r.qb.PostRecv([]verbs.RecvWR{wr})
		must(t, err)
	}
	for _, wc := range append(await(t, r.cqa, n), await(t, r.cqb, n)...) {
		if wc.Status != verbs.StatusSuccess {
			t.Fatalf("a %v ended with %v", wc.Opcode, wc.Status)
		}
	}
	for i := range n {
		for j := range k {
			if got, want := r.mb.Bytes()[i*k+j], r.ma.Bytes()[i*100+j*3]; got != want {
				t.Fatalf("byte %d of message %d is %d, want %d", j, i, got, want)
			}
		}
	}
}

// TestListedReset: resetting a QP discards its receives with their lists.
func TestListedReset(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.RC)
	const k = verbs.MaxSGE + 1
	receive := func(at uint64) {
		sges := make([]verbs.SGE, k)
		for j := range sges {
			sges[j] = verbs.SGE{Addr: r.rb.Addr() + at + uint64(j), Length: 1, LKey: r.rb.LKey()}
		}
		_, err := r.qb.PostRecv([]verbs.RecvWR{{NumSGE: k, Listed: 1, SGE: listAddr(pinned(t, sges))}})
		must(t, err)
	}
	receive(1000)
	receive(2000)
	for _, qp := range []verbs.QP{r.qa, r.qb} {
		must(t, qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	}
	connect(t, r.qa, r.qb)
	receive(3000)
	wr := verbs.SendWR{Opcode: verbs.OpSend}
	wr.SetSGE(verbs.SGE{Addr: r.ra.Addr() + 50, Length: k, LKey: r.ra.LKey()})
	_, err := r.qa.PostSend([]verbs.SendWR{wr})
	must(t, err)
	r.ended(t, r.cqb, "receive")
	if got, want := r.mb.Bytes()[3000:][:k], r.ma.Bytes()[50:][:k]; !bytes.Equal(got, want) {
		t.Errorf("the receive after the reset has % x, want % x", got, want)
	}
}
