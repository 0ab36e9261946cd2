package verbstest

import (
	"slices"

	"ibverbx/verbs"
)

var manyTests = []test{
	{"QPs", manyQPs},
	{"Loopback", manyLoopback},
	{"SameNumbers", manySameNumbers},
	{"MRs", manyMRs},
}

// crowd is many connections with one queue on each side.
type crowd struct {
	conns    []*conn
	cqA, cqB verbs.CQ
	batch    int // connections that may be busy concurrently without an overrun
}

// maxConns is the number of connections of a test: 1,024, or the device limit.
func (e *env) maxConns() int {
	n := e.rounds(1024)
	for _, s := range []*side{e.a, e.b} {
		n = min(n, s.attr.MaxQP/4) // others may use the device too
	}
	return max(n, 2)
}

// newCrowd returns n pairs of QPs, not connected yet.
func (e *env) newCrowd(a, b *side, n int) *crowd {
	e.Helper()
	depth := min(4*n, a.attr.MaxCQE, b.attr.MaxCQE)
	w := &crowd{cqA: e.newCQ(a, depth, nil), cqB: e.newCQ(b, depth, nil), batch: max(depth/4, 1)}
	for range n {
		cfg := verbs.QPConfig{Type: verbs.RC, MaxSendWR: 4, MaxRecvWR: 2, SendCQ: w.cqA, RecvCQ: w.cqA}
		qa := e.newQP(a, cfg)
		cfg.SendCQ, cfg.RecvCQ = w.cqB, w.cqB
		w.conns = append(w.conns, &conn{a: qa, b: e.newQP(b, cfg)})
	}
	return w
}

// ends returns the QPs of both sides.
func (w *crowd) ends() (as, bs []*end) {
	for _, c := range w.conns {
		as, bs = append(as, c.a), append(bs, c.b)
	}
	return as, bs
}

func numbers(ends []*end) (nums []uint32) {
	for _, q := range ends {
		nums = append(nums, q.Num())
	}
	return nums
}

// verifyCrowd makes each connection write distinct content to a separate range and then send a
// message with a distinct immediate, and checks all ranges and messages.
func (e *env) verifyCrowd(w *crowd, seed uint64) {
	e.Helper()
	const size = 96
	n := len(w.conns)
	src, dst := e.filled(w.conns[0].a.side, seed, n*size), e.painted(w.conns[0].b.side, n*size)
	for from := 0; from < n; from += w.batch {
		part := &crowd{conns: w.conns[from:min(from+w.batch, n)]}
		for i, c := range part.conns {
			at := (from + i) * size
			e.postRecv(c.b, recv(uint64(from+i)))
			e.post(c.a, write(0, dst, at, src.sge(at, size)), sendImm(1, uint32(from+i)))
		}
		as, bs := part.ends()
		e.pollInterleaved(as, 2, func(wc verbs.WC, i int, id uint64) {
			e.ok(wc, as[i], id, []verbs.WCOpcode{verbs.WCRDMAWrite, verbs.WCSend}[id])
		})
		e.pollInterleaved(bs, 1, func(wc verbs.WC, i int, _ uint64) {
			e.receivedImm(wc, bs[i], uint64(from+i), verbs.WCRecv, 0, uint32(from+i))
		})
	}
	e.same(dst.bytes(), payload(seed, n*size))
	e.expectEmpty(w.cqA, w.cqB)
}

// A device supports many QPs with distinct numbers, all working with one CQ per side.
func manyQPs(e *env) {
	w := e.newCrowd(e.a, e.b, e.maxConns())
	as, bs := w.ends()
	e.distinct("numbers of QPs on A", numbers(as))
	e.distinct("numbers of QPs on B", numbers(bs))
	for _, c := range w.conns {
		e.connect(c, connConfig{})
	}
	for seed := range uint64(3) {
		e.verifyCrowd(w, seed)
	}
	slices.Reverse(w.conns) // not in creation order
	e.verifyCrowd(w, 4)
}

// Many QPs of one context can be connected to each other, in both directions (IBTA 9.2.1.1,
// loopback).
func manyLoopback(e *env) {
	w := e.newCrowd(e.a, e.a, max(e.maxConns()/4, 2))
	as, bs := w.ends()
	e.distinct("numbers of QPs", numbers(append(as, bs...)))
	for _, c := range w.conns {
		e.connect(c, connConfig{})
	}
	e.verifyCrowd(w, 1)
	back := &crowd{cqA: w.cqB, cqB: w.cqA, batch: w.batch}
	for _, c := range w.conns {
		back.conns = append(back.conns, c.back())
	}
	e.verifyCrowd(back, 2)
}

// A QP number is local to its device: QPs with equal numbers on two devices, connected crosswise,
// do not get each other's traffic.
func manySameNumbers(e *env) {
	w := e.newCrowd(e.a, e.b, max(e.maxConns()/8, 2))
	_, bs := w.ends()
	twins := 0
	for i, c := range w.conns {
		if slices.ContainsFunc(bs, func(q *end) bool { return q.Num() == c.a.Num() }) {
			twins++
		}
		c.b = bs[len(bs)-1-i]
	}
	if twins == 0 {
		e.Skip("no QP number was assigned twice, by two devices or by two contexts of one")
	}
	for _, c := range w.conns {
		e.connect(c, connConfig{})
	}
	e.verifyCrowd(w, 1)
	e.verifyCrowd(w, 2)
}

// Thousands of regions have distinct keys, and each key leads to its region's memory.
func manyMRs(e *env) {
	const size, batch = 64, 32
	n := max(min(e.rounds(1000), e.a.attr.MaxMR/4, e.b.attr.MaxMR/4), 2)
	c := e.rc()
	srcs, dsts := e.registerSlices(e.a, n, size), e.registerSlices(e.b, n, size)
	for i := range n {
		srcs[i].put(0, payload(uint64(i), size))
	}
	for from := 0; from < n; from += batch {
		ids := min(batch, n-from)
		for i := from; i < from+ids; i++ {
			j := n - 1 - i // the keys are not used in the order of registration
			e.post(c.a, write(uint64(i), dsts[j], 0, srcs[i].sge(0, size)))
		}
		e.doneFrom(c.a, uint64(from), ids, verbs.WCRDMAWrite)
	}
	for i := range n {
		e.same(dsts[n-1-i].bytes(), payload(uint64(i), size))
	}
	// A key covers one region: the neighbor's bytes are out of reach.
	wrong := write(1, dsts[0], 0, srcs[0].sge(0, size))
	wrong.RKey = dsts[1].mr.RKey()
	e.failsRemotely(c, wrong, verbs.StatusRemAccessErr)
	e.same(dsts[0].bytes(), payload(uint64(n-1), size))
}

// registerSlices registers n slices of one memory and checks that all keys differ.
func (e *env) registerSlices(s *side, n, size int) []*buf {
	e.Helper()
	whole := e.memory(n * size)
	bufs, mrs := make([]*buf, n), make([]verbs.MR, n)
	for i := range bufs {
		view, err := whole.Slice(i*size, size)
		e.must(err, "Slice")
		mrs[i] = e.register(s.pd, view, verbs.AccessAll)
		bufs[i] = &buf{mem: view, mr: mrs[i]}
	}
	e.distinctKeys(mrs)
	return bufs
}
