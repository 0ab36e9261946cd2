package verbstest

import (
	"cmp"
	"slices"

	"ibverbx/verbs"
)

// end is a QP with its side and its CQs.
type end struct {
	verbs.QP
	side *side
	// cq completes the receives, and also the sends unless sendCQ is a different one.
	cq, sendCQ verbs.CQ
}

// conn is a pair of connected QPs.
type conn struct{ a, b *end }

// back is the same connection seen from the other end.
func (c *conn) back() *conn { return &conn{a: c.b, b: c.a} }

// connConfig describes a conn. The zero value is RC with queues of 64 requests of one
// element, a CQ on each side, and the defaults of Connect.
type connConfig struct {
	typ            verbs.QPType
	sends, recvs   int // depths of the work queues
	sges           int
	inline         int
	signalAll      bool
	cqA, cqB       verbs.CQ // used instead of new ones
	sendA          verbs.CQ // completes the sends of A
	srqB           verbs.SRQ
	pathA, pathB   verbs.PathConfig
	tweak          func(attr *verbs.QPAttr) // changes the attributes of both ends
	tweakA, tweakB func(attr *verbs.QPAttr) // changes the attributes of one end
}

// rc returns a connected pair of RC QPs with the defaults.
func (e *env) rc() *conn {
	e.Helper()
	return e.conn(connConfig{})
}

// conn returns a connected pair of QPs, a on side A and b on side B.
func (e *env) conn(cfg connConfig) *conn {
	e.Helper()
	c := e.unconnected(cfg)
	e.connect(c, cfg)
	return c
}

// unconnected returns the QPs of a conn in RESET.
func (e *env) unconnected(cfg connConfig) *conn {
	e.Helper()
	q := verbs.QPConfig{
		Type: cmp.Or(cfg.typ, verbs.RC), MaxSendWR: cmp.Or(cfg.sends, 64), MaxRecvWR: cmp.Or(cfg.recvs, 64),
		MaxSendSGE: cfg.sges, MaxRecvSGE: cfg.sges, MaxInline: cfg.inline, SignalAll: cfg.signalAll,
		SendCQ: cfg.sendA, RecvCQ: cfg.cqA, Path: cfg.pathA,
	}
	a := e.newQP(e.a, q)
	q.SendCQ, q.RecvCQ, q.SRQ, q.Path = cfg.cqB, cfg.cqB, cfg.srqB, cfg.pathB
	if cfg.srqB != nil {
		q.MaxRecvWR = 0
	}
	return &conn{a: a, b: e.newQP(e.b, q)}
}

// newQP returns a QP on s. It creates the CQs that cfg lacks.
func (e *env) newQP(s *side, cfg verbs.QPConfig) *end {
	e.Helper()
	if cfg.RecvCQ == nil {
		cfg.RecvCQ = e.newCQ(s, 2*(cfg.MaxSendWR+cfg.MaxRecvWR)+64, nil)
	}
	if cfg.SendCQ == nil {
		cfg.SendCQ = cfg.RecvCQ
	}
	if cfg.Port = s.port; cfg.Path.GIDIndex == 0 {
		cfg.GID = s.gid
	}
	qp, err := s.pd.CreateQP(cfg)
	e.must(err, "CreateQP of type %v on %s", cfg.Type, s.name)
	e.closeLater("QP", qp)
	return &end{QP: qp, side: s, cq: cfg.RecvCQ, sendCQ: cfg.SendCQ}
}

// connect moves both QPs from RESET or INIT to RTS.
func (e *env) connect(c *conn, cfg connConfig) {
	e.Helper()
	a, b := e.endpoint(c.a), e.endpoint(c.b)
	e.join(c.a, b, cfg.tweak, cfg.tweakA)
	e.join(c.b, a, cfg.tweak, cfg.tweakB)
}

func (e *env) endpoint(q *end) verbs.Endpoint {
	e.Helper()
	ep, err := q.Endpoint()
	e.must(err, "Endpoint of QP %#x on %s", q.Num(), q.side.name)
	return ep
}

// lasting makes a QP retry for 15 seconds, because with the defaults (half a second) a busy machine
// could fail a test.
func lasting(a *verbs.QPAttr) { a.Timeout = 19 }

// join connects q to remote: with Connect, or with the attributes changed by tweaks. RC QPs get
// long timeouts, unless the path is lossy and depends on them.
func (e *env) join(q *end, remote verbs.Endpoint, tweaks ...func(*verbs.QPAttr)) {
	e.Helper()
	tweaks = slices.DeleteFunc(tweaks, func(f func(*verbs.QPAttr)) bool { return f == nil })
	if len(tweaks) == 0 && (e.pair.Lossy || q.Type() != verbs.RC) {
		e.must(q.Connect(remote), "Connect on %s", q.side.name)
		return
	}
	if len(tweaks) == 0 {
		tweaks = append(tweaks, lasting)
	}
	attr := e.connectAttr(q, remote)
	for _, tweak := range tweaks {
		tweak(&attr)
	}
	e.must(verbs.ConnectWith(q.QP, attr), "ConnectWith on %s", q.side.name)
}

func (e *env) connectAttr(q *end, remote verbs.Endpoint) verbs.QPAttr {
	e.Helper()
	local := e.endpoint(q)
	return verbs.ConnectAttr(local, remote, q.side.port, e.gidIndex(q.side, local.GID))
}

// move modifies q to a state that does not require attributes.
func (e *env) move(q *end, to verbs.QPState) {
	e.Helper()
	e.must(q.Modify(verbs.QPAttr{State: to}, verbs.AttrState), "Modify from %v to %v", q.State(), to)
}

// moveBoth moves both ends of c to the state, one after the other.
func (e *env) moveBoth(c *conn, to verbs.QPState) {
	e.Helper()
	e.move(c.a, to)
	e.move(c.b, to)
	e.bothIn(c, to)
}

// gidIndex finds gid in the port's table; a RoCE v2 row wins over others.
func (e *env) gidIndex(s *side, gid verbs.GID) int {
	e.Helper()
	found := -1
	for _, g := range e.gids(s) {
		if g.GID == gid && (found < 0 || g.Type == verbs.GIDTypeRoCEv2) {
			found = g.Index
		}
	}
	if found < 0 {
		e.Fatalf("the GID %v of %s is not in the table of port %d", gid, s.name, s.port)
	}
	return found
}

// gids returns the non-empty rows of the GID table.
func (e *env) gids(s *side) []verbs.GIDEntry {
	e.Helper()
	var rows []verbs.GIDEntry
	for i := range e.queryPort(s).GIDs {
		if row, err := s.ctx.QueryGID(int(s.port), i); err == nil && !row.GID.IsZero() {
			rows = append(rows, row)
		}
	}
	return rows
}

func (e *env) queryPort(s *side) verbs.PortAttr {
	e.Helper()
	port, err := s.ctx.QueryPort(int(s.port))
	e.must(err, "QueryPort(%d) of %s", s.port, s.name)
	return port
}

// ah returns an address handle on from's side for the port of to.
func (e *env) ah(from, to *end) verbs.AH {
	e.Helper()
	attr := e.connectAttr(from, e.endpoint(to)).AH
	ah, err := from.side.pd.CreateAH(attr)
	e.must(err, "CreateAH on %s", from.side.name)
	e.closeLater("AH", ah)
	return ah
}

// inlineSize is the number of inline bytes requested by the tests.
func (e *env) inlineSize() int {
	e.Helper()
	e.needHost("the CPU copies INLINE bytes")
	if n := e.a.attr.MaxInline; n > 0 {
		return min(n, 256)
	}
	return 64 // unknown before a QP exists; every available device supports it
}

// sgeLimit is the number of elements that both devices accept in a flat request.
func (e *env) sgeLimit() int { return min(e.a.attr.MaxSGE, e.b.attr.MaxSGE, verbs.MaxSGE) }

// Work requests. All are signaled; silent returns an unsignaled copy.

func send(id uint64, sges ...verbs.SGE) verbs.SendWR {
	w := verbs.SendWR{WRID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	w.SetSGE(sges...)
	return w
}

func sendImm(id uint64, imm uint32, sges ...verbs.SGE) verbs.SendWR {
	w := send(id, sges...)
	w.Opcode, w.Imm = verbs.OpSendWithImm, imm
	return w
}

func oneSided(op verbs.Opcode, id uint64, target *buf, off int, sges ...verbs.SGE) verbs.SendWR {
	w := send(id, sges...)
	w.Opcode, w.RemoteAddr, w.RKey = op, target.at(off), target.mr.RKey()
	return w
}

func write(id uint64, target *buf, off int, sges ...verbs.SGE) verbs.SendWR {
	return oneSided(verbs.OpRDMAWrite, id, target, off, sges...)
}

func writeImm(id uint64, imm uint32, target *buf, off int, sges ...verbs.SGE) verbs.SendWR {
	w := oneSided(verbs.OpRDMAWriteWithImm, id, target, off, sges...)
	w.Imm = imm
	return w
}

func read(id uint64, source *buf, off int, sges ...verbs.SGE) verbs.SendWR {
	return oneSided(verbs.OpRDMARead, id, source, off, sges...)
}

func fetchAdd(id uint64, target *buf, off int, add uint64, result verbs.SGE) verbs.SendWR {
	w := oneSided(verbs.OpAtomicFetchAndAdd, id, target, off, result)
	w.CompareAdd = add
	return w
}

func compareSwap(id uint64, target *buf, off int, compare, swap uint64, result verbs.SGE) verbs.SendWR {
	w := oneSided(verbs.OpAtomicCmpAndSwp, id, target, off, result)
	w.CompareAdd, w.Swap = compare, swap
	return w
}

// chain returns n requests, created by index.
func chain(n int, wr func(i int) verbs.SendWR) []verbs.SendWR {
	wrs := make([]verbs.SendWR, n)
	for i := range wrs {
		wrs[i] = wr(i)
	}
	return wrs
}

func silent(w verbs.SendWR) verbs.SendWR {
	w.Flags &^= verbs.SendSignaled
	return w
}

func flagged(w verbs.SendWR, f verbs.SendFlags) verbs.SendWR {
	w.Flags |= f
	return w
}

func recv(id uint64, sges ...verbs.SGE) verbs.RecvWR {
	w := verbs.RecvWR{WRID: id}
	w.SetSGE(sges...)
	return w
}

// poster is a QP or an SRQ.
type poster interface {
	PostRecv(wrs []verbs.RecvWR) (n int, err error)
}

// post posts sends, which must all be accepted.
func (e *env) post(q *end, wrs ...verbs.SendWR) {
	e.Helper()
	if n, err := q.PostSend(wrs); n != len(wrs) || err != nil {
		e.Fatalf("PostSend on %s = %d, %v, want %d, nil", q.side.name, n, err, len(wrs))
	}
}

// postRecv posts receives, which must all be accepted.
func (e *env) postRecv(q poster, wrs ...verbs.RecvWR) {
	e.Helper()
	if n, err := q.PostRecv(wrs); n != len(wrs) || err != nil {
		e.Fatalf("PostRecv = %d, %v, want %d, nil", n, err, len(wrs))
	}
}

// stock posts n receives without buffers whose wr_ids count from 0.
func (e *env) stock(q poster, n int) {
	e.Helper()
	for id := range n {
		e.postRecv(q, recv(uint64(id)))
	}
}

// do posts requests as one chain and takes the successes of the signaled ones, in order.
func (e *env) do(q *end, wrs ...verbs.SendWR) {
	e.Helper()
	e.post(q, wrs...)
	for _, w := range wrs {
		if w.Flags&verbs.SendSignaled != 0 {
			e.done(q, w.WRID, w.Opcode.WC())
		}
	}
}

// carry executes w at c.a. The message consumes the receive id of c.b, whose completion must report
// the length and the immediate of w.
func (e *env) carry(c *conn, w verbs.SendWR, id uint64) {
	e.Helper()
	e.do(c.a, w)
	n := 0
	for _, s := range w.SGE[:w.NumSGE] {
		n += int(s.Length)
	}
	switch w.Opcode {
	case verbs.OpSend:
		e.gets(c.b, id, n)
	case verbs.OpSendWithImm:
		e.getsImm(c.b, id, verbs.WCRecv, n, w.Imm)
	default:
		e.getsImm(c.b, id, verbs.WCRecvRDMAWithImm, n, w.Imm)
	}
}

// message posts the receive r at c.b and carries w into it.
func (e *env) message(c *conn, r verbs.RecvWR, w verbs.SendWR) {
	e.Helper()
	e.postRecv(c.b, r)
	e.carry(c, w, r.WRID)
}
