package interop_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// host is one side of a VirtualQP on the two wires of a world.
type host struct {
	*enginetest.Host
	// got holds polled completions that complete has not returned yet.
	got []ibverbx.WC
}

// newHosts connects a VirtualQP on softnic with one on rxe: a is on the side asker. Each has a
// control channel to the other if cfg has a deadline.
func newHosts(t *testing.T, w *world, family, asker int, cfg ibverbx.Config) (a, b *host) {
	t.Helper()
	t.Cleanup(func() { w.tell(t, family) })
	var controls [2]ibverbx.Control
	if cfg.Deadline != 0 {
		controls[0], controls[1] = ibverbx.ControlPair()
	}
	var hosts [2]*host
	for side := range sides {
		var rails []ibverbx.RailConfig
		for i := range w.wires {
			ctx, row := w.wires[i].open(t, family, side)
			rails = append(rails, ibverbx.RailConfig{Context: ctx, GID: row.GID})
		}
		cfg.Control = controls[side]
		hosts[side] = &host{Host: enginetest.NewRailsOn(t, rails...)}
		hosts[side].NewCQ(ibverbx.CQConfig{Depth: 4096})
		hosts[side].NewQP(cfg)
	}
	enginetest.Connect(t, hosts[0].QP, hosts[1].QP)
	return hosts[asker], hosts[1-asker]
}

// region returns n registered bytes, filled with bytes that depend on the seed.
func (h *host) region(n int, seed uint64) *ibverbx.Region {
	r := h.Region(n)
	enginetest.Fill(r.Bytes(), seed)
	return r
}

// drive polls both hosts until done returns true. All completions must be successful, in order of IDs.
func drive(t *testing.T, what string, done func() bool, hosts ...*host) {
	t.Helper()
	wcs := make([]ibverbx.WC, 64)
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s, want it within that time; %+v", patience, what, hosts[0].QP.Stats())
		}
		some := 0
		for i, h := range hosts {
			n, err := h.CQ.Poll(wcs)
			enginetest.Must(t, err)
			for _, wc := range wcs[:n] {
				if wc.Err() != nil {
					t.Fatalf("%s: host %d has the completion %v (%v), want success", what, i, wc.Err(), h.QP.Err())
				}
			}
			h.got = append(h.got, wcs[:n]...)
			some += n
		}
		if some == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

// complete waits for asked completions on a and told completions on b, and returns them.
func complete(t *testing.T, what string, a, b *host, asked, delivered int) (ofA, ofB []ibverbx.WC) {
	t.Helper()
	drive(t, what, func() bool { return len(a.got) >= asked && len(b.got) >= delivered }, a, b)
	ofA, ofB = a.got, b.got
	if len(ofA) != asked || len(ofB) != delivered {
		t.Fatalf("%s: %d and %d completions, want %d and %d", what, len(ofA), len(ofB), asked, delivered)
	}
	a.got, b.got = nil, nil
	return ofA, ofB
}

// post posts a signaled request.
func (h *host) post(wr ibverbx.SendWR) {
	wr.Flags |= verbs.SendSignaled
	h.PostSend(wr)
}

// virtual tests all operations of a VirtualQP with a scheme.
func virtual(scheme ibverbx.Scheme) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		a, b := newHosts(t, w, family, asker, ibverbx.Config{Scheme: scheme, Lanes: 4, FragmentSize: 8192})
		const size = 120_000
		local, remote := a.region(size, 1), b.region(size, 2)
		want := bytes.Clone(remote.Bytes())
		off := 0
		for i, n := range []int{1, 4096, 8193, 40_000} {
			b.PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
			for k, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
				wr := ibverbx.SendWR{WRID: uint64(k), Opcode: op, Imm: uint32(1000 + i), Remote: remote.Remote(), RemoteOffset: uint64(off)}
				wr.SetSGE(local.SGE(uint64(off), uint32(n)))
				a.post(wr)
				off += copy(want[off:], local.Bytes()[off:off+n])
			}
			_, delivered := complete(t, "writes", a, b, 2, 1)
			if wc := delivered[0]; wc.WRID != uint64(i) || wc.Flags&ibverbx.WCHasImm != 0 && wc.Imm != uint32(1000+i) {
				t.Fatalf("the receiver was told %+v, want receive %d with %d", wc, i, 1000+i)
			}
			if !bytes.Equal(remote.Bytes(), want) {
				t.Fatalf("the responder's bytes differ after writes of %d, want those of the requester", n)
			}
		}
		read := ibverbx.SendWR{WRID: 7, Opcode: verbs.OpRDMARead, Remote: remote.Remote()}
		read.SetSGE(local.SGE(0, size))
		a.post(read)
		complete(t, "read", a, b, 1, 0)
		if !bytes.Equal(local.Bytes(), want) {
			t.Fatal("the bytes that were read differ, want those of the responder")
		}
		talkBack(t, a, b, local, remote, want)
	}
}

// talkBack tests SENDs in both directions, and atomics.
func talkBack(t *testing.T, a, b *host, local, remote *ibverbx.Region, want []byte) {
	t.Helper()
	for i, h := range []*host{a, b} {
		peer, from, to := []*host{b, a}[i], []*ibverbx.Region{local, remote}[i], []*ibverbx.Region{remote, local}[i]
		recv := ibverbx.RecvWR{WRID: 5}
		recv.SetSGE(to.SGE(1000, 9000))
		peer.PostRecv(recv)
		send := ibverbx.SendWR{WRID: 6, Opcode: verbs.OpSendWithImm, Imm: 77}
		send.SetSGE(from.SGE(50_000, 9000))
		h.post(send)
		_, delivered := complete(t, "send", h, peer, 1, 1)
		if wc := delivered[0]; wc.WRID != 5 || wc.ByteLen != 9000 || wc.Imm != 77 || !bytes.Equal(to.Bytes()[1000:10_000], want[50_000:59_000]) {
			t.Fatalf("received %+v, want receive 5 with 9000 bytes, all the same, and 77", wc)
		}
	}
	old := binary.NativeEndian.Uint64(remote.Bytes())
	for range 10 {
		add := ibverbx.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 3, Remote: remote.Remote()}
		add.SetSGE(local.SGE(0, 8))
		a.post(add)
	}
	complete(t, "atomics", a, b, 10, 0)
	if sum, last := binary.NativeEndian.Uint64(remote.Bytes())-old, binary.NativeEndian.Uint64(local.Bytes())-old; sum != 30 || last != 27 {
		t.Fatalf("the counter went up by %d, and by %d before the last, want 30 and 27", sum, last)
	}
}

// notified sends notified WRITEs and calls disturb in the middle. All must arrive once and in order. Then all
// lanes must be up, and disturb must have hit one.
func notified(t *testing.T, w *world, family, asker int, scheme ibverbx.Scheme, disturb func(a, b *host) (restore func())) {
	a, b := newHosts(t, w, family, asker, ibverbx.Config{Scheme: scheme, Lanes: 4, FragmentSize: 8192, Deadline: patience})
	const count, size = 8, 60_000
	local, remote := a.region(count*size, 1), b.region(count*size, 2)
	restore := func() {}
	for i := range count {
		b.PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(i), Remote: remote.Remote(), RemoteOffset: uint64(i * size)}
		wr.SetSGE(local.SGE(uint64(i*size), size))
		a.post(wr)
		if i == count/2 {
			restore = disturb(a, b)
		}
	}
	asked, delivered := complete(t, "all arrive", a, b, count, count)
	for i := range count {
		if asked[i].WRID != uint64(i) || delivered[i].WRID != uint64(i) {
			t.Fatalf("completion %d is of requests %d and %d, want the order of posting", i, asked[i].WRID, delivered[i].WRID)
		}
	}
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		t.Fatal("the bytes differ, want them all to have arrived")
	}
	restore()
	drive(t, "all lanes are up", func() bool {
		deaths := uint64(0)
		for _, h := range []*host{a, b} {
			for _, l := range h.QP.Stats().Lanes {
				if l.State != "up" {
					return false
				}
				deaths += l.Deaths
			}
		}
		return deaths > 0
	}, a, b)
}

// loseLanes moves a lane to ERR on either side; the control channel recovers it.
func loseLanes(scheme ibverbx.Scheme) func(t *testing.T, w *world, family, asker int) {
	return func(t *testing.T, w *world, family, asker int) {
		notified(t, w, family, asker, scheme, func(a, b *host) func() {
			enginetest.Must(t, a.QP.KillLane(1))
			enginetest.Must(t, b.QP.KillLane(2))
			return func() {}
		})
	}
}

// cutRail loses all packets of one of two rails.
func cutRail(t *testing.T, w *world, family, asker int) {
	notified(t, w, family, asker, ibverbx.Tally, func(*host, *host) func() { return w.impair(t, 1, "loss", "100%") })
}
