package verbstest

import "ibverbx/verbs"

var retryTests = []test{
	{"PeerInReset", retryPeerInReset},
	{"PeerClosed", retryPeerClosed},
	{"PeerInErr", retryPeerInErr},
	{"PeerNotConnected", retryPeerNotConnected},
	{"OneSided", retryOneSided},
	{"RNRExceeded", retryRNRExceeded},
	{"RNRExceededOnImm", retryRNRExceededOnImm},
}

// shortRetries makes a QP fail soon: 1 ms timeout, one retry. It is for peers that never respond,
// so the device's speed does not matter.
func shortRetries(a *verbs.QPAttr) { a.Timeout, a.RetryCount = 8, 1 }

// unanswered posts requests to a peer that does not respond.
func (e *env) unanswered(c *conn) {
	e.Helper()
	e.post(c.a, send(1), silent(send(2)), send(3))
	e.breaks(c.a, []verbs.Status{verbs.StatusRetryExcErr}, 1, 2, 3)
}

// A QP in RESET drops packets (IBTA 10.3.1.1).
func retryPeerInReset(e *env) {
	c := e.conn(connConfig{tweakA: shortRetries})
	e.move(c.b, verbs.StateReset)
	e.unanswered(c)
	e.expectEmpty(c.b.cq)
}

// A closed QP drops packets, on either side: its peer's requests fail with RETRY_EXC_ERR.
func retryPeerClosed(e *env) {
	for _, turn := range []func(c *conn) *conn{func(c *conn) *conn { return c }, (*conn).back} {
		c := turn(e.conn(connConfig{tweak: shortRetries}))
		e.postRecv(c.b, recv(11))
		e.must(c.b.Close(), "Close of the peer")
		e.unanswered(c)
		e.must(c.a.Close(), "Close of the other side")
		e.expectEmpty(c.a.cq, c.b.cq)
	}
}

// A QP in the error state drops packets (IBTA 10.3.1.7).
func retryPeerInErr(e *env) {
	c := e.conn(connConfig{tweakA: shortRetries})
	e.postRecv(c.b, recv(11))
	e.move(c.b, verbs.StateErr)
	e.flushed(c.b.cq, c.b, 11)
	e.unanswered(c)
	e.expectEmpty(c.b.cq)
}

// A QP in INIT drops packets even if it has receives (IBTA 10.3.1.2).
func retryPeerNotConnected(e *env) {
	c := e.unconnected(connConfig{})
	e.must(verbs.InitQP(c.b.QP, e.b.port), "InitQP")
	e.postRecv(c.b, recv(11))
	e.join(c.a, e.endpoint(c.b), shortRetries)
	e.unanswered(c)
	e.expectEmpty(c.b.cq)
	e.inState(c.b, verbs.StateInit)
}

// One-sided requests also time out, and memory is unchanged on both sides.
func retryOneSided(e *env) {
	for name, op := range map[string]verbs.Opcode{"Read": verbs.OpRDMARead, "Atomic": verbs.OpAtomicFetchAndAdd, "Write": verbs.OpRDMAWrite} {
		e.sub(name, func(e *env) {
			if op == verbs.OpAtomicFetchAndAdd {
				e.needAtomics()
			}
			c := e.conn(connConfig{tweakA: shortRetries})
			local, remote := e.painted(e.a, 8), e.filled(e.b, 1, 8)
			e.move(c.b, verbs.StateReset)
			e.post(c.a, oneSided(op, 1, remote, 0, local.sge(0, 8)))
			e.fails(c.a, 1, verbs.StatusRetryExcErr)
			e.inState(c.a, verbs.StateErr)
			e.untouched(local)
			e.same(remote.bytes(), payload(1, 8))
		})
	}
}

// shortRNR limits a QP to one RNR retry after 10 µs.
func shortRNR(a *verbs.QPAttr) { a.RNRRetry, a.MinRNRTimer = 1, 1 }

// postWithoutReceive posts a request to a peer without a receive.
func (e *env) postWithoutReceive(wr func(target *buf) verbs.SendWR) {
	e.Helper()
	c := e.conn(connConfig{sges: 2, tweak: shortRNR})
	target := e.buf(e.b, 64)
	e.post(c.a, wr(target), send(2))
	e.breaks(c.a, e.orRetryExc(verbs.StatusRNRRetryExcErr), 1, 2)
	// A missing receive is not an error of the receiver.
	e.inState(c.b, verbs.StateRTS)
	e.expectEmpty(c.b.cq)
}

// A sender with an RNR retry limit fails with RNR_RETRY_EXC_ERR if its peer posts no receive.
func retryRNRExceeded(e *env) {
	e.postWithoutReceive(func(*buf) verbs.SendWR { return send(1) })
}

// WRITE_WITH_IMM needs a receive and fails the same way without one, with any number of elements.
func retryRNRExceededOnImm(e *env) {
	src := e.buf(e.a, 64)
	e.postWithoutReceive(func(target *buf) verbs.SendWR { return writeImm(1, 5, target, 0, src.sge(0, 64)) })
	e.postWithoutReceive(func(target *buf) verbs.SendWR { return writeImm(1, 5, target, 0, src.sge(0, 24), src.sge(24, 40)) })
	e.postWithoutReceive(func(target *buf) verbs.SendWR { return writeImm(1, 5, target, 0) })
}
