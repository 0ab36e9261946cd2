package softnic_test

import (
	"fmt"
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// watched is a rig whose NICs are observed, with regions on both sides.
type watched struct {
	*rig
	link     softnic.Link
	src, dst verbs.MR
	touches  []string
}

// see records an access by NIC, kind, offset in its region and length.
func (w *watched) see(x softnic.MemoryAccess) {
	name, base := "a", w.src.Addr()
	if x.NIC == w.b {
		name, base = "b", w.dst.Addr()
	}
	w.touches = append(w.touches, fmt.Sprintf("%s %s %d+%d", name, x.Kind, x.Addr-base, x.Length))
}

// TestObserver: every access to registered memory is reported, on both sides, with its range.
func TestObserver(t *testing.T) {
	for name, link := range map[string]softnic.Link{
		"memory": virtualLink(), "fault": newWorld(t, softnic.FaultConfig{}).link,
	} {
		t.Run(name, func(t *testing.T) {
			w := &watched{rig: newRig(t, link), link: link}
			_, w.src = memory(t, w.pa, 256)
			_, w.dst = memory(t, w.pb, 256)
			qa, qb := w.pair(verbs.RC, newCQ(t, w.ca, 64), newCQ(t, w.cb, 64), 16)
			w.a.Observe(w.see)
			w.b.Observe(w.see)
			recv := verbs.RecvWR{}
			recv.SetSGE(verbs.SGE{Addr: w.dst.Addr() + 200, Length: 32, LKey: w.dst.LKey()})
			if _, err := qb.PostRecv([]verbs.RecvWR{recv}); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				op    verbs.Opcode
				flags verbs.SendFlags
				n     uint32
				want  []string
			}{
				{verbs.OpRDMAWrite, 0, 24, []string{"a gather 8+24", "b remote-write 16+24"}},
				{verbs.OpRDMAWrite, verbs.SendInline, 24, []string{"a inline 8+24", "b remote-write 16+24"}},
				{verbs.OpRDMARead, 0, 24, []string{"b remote-read 16+24", "a scatter 8+24"}},
				{verbs.OpAtomicFetchAndAdd, 0, 8, []string{"b remote-atomic 16+8", "a scatter 8+8"}},
				{verbs.OpSend, 0, 24, []string{"a gather 8+24", "b scatter 200+24"}},
				{verbs.OpRDMAWrite, 0, 101, []string{"a gather 8+16", "a gather 64+85", "b remote-write 16+101"}},
				{verbs.OpRDMAWrite, 0, 0, nil},
			} {
				w.touches = nil
				w.post(t, qa, c.op, c.flags, c.n)
				if !slices.Equal(w.touches, c.want) {
					t.Errorf("%v of %d bytes, flags %v: touches %q, want %q", c.op, c.n, c.flags, w.touches, c.want)
				}
			}
			w.a.Observe(nil)
			w.b.Observe(nil)
			w.touches = nil
			w.post(t, qa, verbs.OpRDMAWrite, 0, 24)
			if w.touches != nil {
				t.Errorf("touches without an observer: %q", w.touches)
			}
		})
	}
}

// post posts a request of n bytes from offset 8 of the source, in two SGEs if long, to offset 16 of the
// destination, and waits for it.
func (w *watched) post(t *testing.T, q verbs.QP, op verbs.Opcode, flags verbs.SendFlags, n uint32) {
	t.Helper()
	wr := verbs.SendWR{Opcode: op, Flags: flags, RemoteAddr: w.dst.Addr() + 16, RKey: w.dst.RKey()}
	piece := func(off uint64, n uint32) verbs.SGE {
		return verbs.SGE{Addr: w.src.Addr() + off, Length: n, LKey: w.src.LKey()}
	}
	switch {
	case n > 100: // two separate SGEs
		wr.SetSGE(piece(8, 16), piece(64, n-16))
	case n > 0:
		wr.SetSGE(piece(8, n))
	}
	if _, err := q.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	w.link.Step()
}
