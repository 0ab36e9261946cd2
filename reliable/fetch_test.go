package reliable_test

import (
	"encoding/binary"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestReadTakesAllPaths reads 4 MiB: every path of the responder carries a part of it, and the handshake QP
// carries the card that follows the first request.
func TestReadTakesAllPaths(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to count")
	const size = 4 << 20
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	c := newCounted()
	cfg := w.config(reliable.Config{Paths: 8})
	a := newSideOver(t, w.link, cfg, size, c.over)
	d := newCounted()
	b := newSideOver(t, w.link, cfg, size, d.over)
	connect(t, a, b)
	b.fill(9)
	for i := range 16 {
		a.post(t, a.read(b, i*size/16, size/16))
	}
	w.polled(t, a, 16, verbs.StatusSuccess, a, b)
	if string(a.mem.Bytes()) != string(b.mem.Bytes()) {
		t.Fatalf("the bytes of the READs differ")
	}
	for i, q := range d.paths[len(d.paths)-8:] { // Wrap has tried others
		if q.requests == 0 {
			t.Errorf("path %d of the responder has carried nothing, want a part of 128 chunks", i)
		}
	}
	if c, d := sent(c.sides...), sent(d.sides...); c > 1 || d > 1 {
		t.Errorf("the handshake QPs have carried %d and %d requests, want a card at most", c, d)
	}
}

// TestAtomicsOnceOverLoss adds to a word over a network that loses 5 % of all packets and duplicates some,
// while paths occasionally fail: each atomic executes once, in order.
func TestAtomicsOnceOverLoss(t *testing.T) {
	const adds = 600
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond, Loss: 0.05, Duplicate: 0.02})
	cfg := w.config(reliable.Config{Paths: 4, MinProbe: 50_000})
	a, b := newSide(t, w.link, cfg, 8*adds), newSide(t, w.link, cfg, 64)
	connect(t, a, b)
	for i := range adds {
		wr := verbs.SendWR{WRID: uint64(i), Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 3}
		wr.SetSGE(a.sge(8*i, 8))
		a.post(t, wr)
		if i%40 != 39 {
			continue
		}
		if p := b.qp.(reliable.StatsReader).Paths()[i/40%4]; p.QPN != 0 {
			must(t, b.nic.FailQP(p.QPN)) // while its responses are in flight
		}
		w.polled(t, a, 40, verbs.StatusSuccess, a, b)
	}
	for i := range adds {
		if got := binary.NativeEndian.Uint64(a.mem.Bytes()[8*i:]); got != uint64(3*i) {
			t.Fatalf("atomic %d has fetched %d, want %d", i, got, 3*i)
		}
	}
	if got := binary.NativeEndian.Uint64(b.mem.Bytes()[8:]); got != 3*adds {
		t.Fatalf("the word is %d after %d atomics, want %d", got, adds, 3*adds)
	}
}

// TestReadsPassWaitingSends fills the queues of both ends with READs and with SENDs that wait for a receive.
// The READs before them complete, and the rest once receives are posted.
func TestReadsPassWaitingSends(t *testing.T) {
	const reads, sends, size = 30, 30, 100_000
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond, Loss: 0.01})
	cfg := w.config(reliable.Config{Paths: 4, MinProbe: 50_000})
	a, b := newSide(t, w.link, cfg, size), newSide(t, w.link, cfg, size)
	connect(t, a, b)
	for _, s := range [][2]*side{{a, b}, {b, a}} {
		for range reads {
			s[0].post(t, s[0].read(s[1], 1000, size-1000))
		}
		for range sends {
			wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			wr.SetSGE(s[0].sge(0, 500))
			s[0].post(t, wr)
		}
		s[0].post(t, s[0].read(s[1], 1000, 1000))
	}
	w.polled(t, a, reads, verbs.StatusSuccess, a, b)
	w.polled(t, b, reads, verbs.StatusSuccess, a, b)
	for _, s := range []*side{a, b} {
		for range sends {
			s.recv(t, 1, 0, 500)
		}
	}
	w.polled(t, a, 2*sends+1, verbs.StatusSuccess, a, b)
	w.polled(t, b, 2*sends+1, verbs.StatusSuccess, a, b)
}

// TestReadsNotServed reads without MaxRdAtomic at one end or the other.
func TestReadsNotServed(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit func(a, b *verbs.QPAttr)
		want  verbs.Status
	}{
		{"asked for", func(a, _ *verbs.QPAttr) { a.MaxRdAtomic = 0 }, verbs.StatusLocQPOpErr},
		{"answered", func(_, b *verbs.QPAttr) { b.MaxDestRdAtomic = 0 }, verbs.StatusRemInvReqErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
			a, b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096), newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
			ea, err := a.qp.Endpoint()
			must(t, err)
			eb, err := b.qp.Endpoint()
			must(t, err)
			attrA, attrB := verbs.ConnectAttr(ea, eb, 1, 1), verbs.ConnectAttr(eb, ea, 1, 1)
			tt.limit(&attrA, &attrB)
			must(t, verbs.ConnectWith(a.qp, attrA))
			must(t, verbs.ConnectWith(b.qp, attrB))
			a.post(t, a.read(b, 0, 100))
			w.polled(t, a, 1, tt.want, a, b)
		})
	}
}

// TestResponderOutlivesRequester closes a QP while the peer responds to its READ. The responder's QP is
// unaffected, as on a NIC. Its next request detects the closed peer.
func TestResponderOutlivesRequester(t *testing.T) {
	const size = 1 << 20
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond, Rate: 1e9})
	cfg := w.config(reliable.Config{Paths: 2})
	a, b := newSide(t, w.link, cfg, size), newSide(t, w.link, cfg, size)
	connect(t, a, b)
	a.post(t, a.read(b, 0, size))
	for limit := w.now + int64(100*time.Microsecond); w.now < limit; {
		w.step(limit, []*side{a, b})
	}
	must(t, a.qp.Close())
	for limit := w.now + int64(20*time.Second); w.now < limit; {
		w.step(limit, []*side{a, b})
	}
	if s := b.qp.State(); s != verbs.StateRTS {
		t.Fatalf("the responder's QP is %v after the requester has gone, want RTS", s)
	}
	b.post(t, b.read(a, 0, 100))
	w.polled(t, b, 1, verbs.StatusRetryExcErr, a, b)
}

// TestHandshakeQPFails: a QP moves to the error state when its handshake QP fails, even without traffic.
func TestHandshakeQPFails(t *testing.T) {
	w := newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond})
	a, b := newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096), newSide(t, w.link, w.config(reliable.Config{Paths: 2}), 4096)
	connect(t, a, b)
	must(t, a.nic.FailQP(a.qp.Num()))
	for limit := w.now + int64(10*time.Millisecond); w.now < limit; {
		w.step(limit, []*side{a, b})
	}
	if s := a.qp.State(); s != verbs.StateErr {
		t.Fatalf("the QP is %v 10 ms after its handshake QP has failed, want %v", s, verbs.StateErr)
	}
}
