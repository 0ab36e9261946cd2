package reliable_test

import (
	"testing"

	"ibverbx/internal/mutant"
)

// mutations are changes that break the driver, or what the driver's tests see of the core. The core has its
// own.
var mutations = []mutant.Change{
	{
		Name: "a repeated piece of a WRITE is not copied", Tests: "TestTransfer", File: "receive.go",
		Old: "			to.SetSGE(verbs.SGE{Addr: h.Addr, Length: h.Len, LKey: r.lkey})\n", New: "			_ = r\n",
	},
	{
		Name: "a peer's datagram counts under the Seal of another", Tests: "TestDatagramSeals", File: "datagram.go",
		Old: "seal != c.seal || ", New: "seal|c.seal >= 1<<30 || ",
	},
	{
		Name: "the number of an old Seal counts for a plain datagram", Tests: "TestDatagramSeals", File: "datagram.go",
		Old: "if wc.Flags&verbs.WCSealed != 0 {", New: "if true {",
	},
	{
		Name: "the Seal of a peer stays in use after its QPs", Tests: "TestSealedPeers", File: "udqp.go",
		Old: "sharedPath(cfg.Path)", New: "cfg.Path",
	},
	{
		Name: "every chunk of a SEND lands at the start", Tests: "TestTransfer", File: "receive.go",
		Old: "q.recvs.At(h.Message)\n		to.NumSGE = uint8(verbs.CutSGE(to.SGE[:], wr.SGE[:wr.NumSGE], h.Offset,", New: "q.recvs.At(h.Message)\n		to.NumSGE = uint8(verbs.CutSGE(to.SGE[:], wr.SGE[:wr.NumSGE], 0,",
	},
	{
		Name: "a piece of a WRITE is placed without a key", Tests: "TestConformance/(keys|remoteerror)", File: "receive.go",
		Old: "if r == nil {\n		return uint8(verbs.StatusRemAccessErr)\n", New: "if r == nil {\n		return 0\n",
	},
	{
		Name: "a copy into a dma-buf goes on after the end of its QP", Tests: "TestDMABufCopyEndsWithQP", File: "qp.go",
		Old: "		q.engine.resources.copier.abandon(q.conn, q.flow)\n", New: "",
	},
	{
		Name: "a chunk for a dma-buf is placed when its copy begins", Tests: "TestTransferDMABuf", File: "copier.go",
		Old: "		from.Addr += uint64(from.Length)\n",
		New: "		from.Addr += uint64(from.Length)\n		if job.parts == 1 {\n			q.conn.queue = append(q.conn.queue, c.jobs.At(n).placed(0))\n		}\n",
	},
	{
		Name: "a SEND may be longer than its receive", Tests: "TestConformance/(send|localerror|remoteerror)", File: "receive.go",
		Old: "uint64(h.Offset)+uint64(h.Len) > wr.Length()", New: "false",
	},
	{
		Name: "receives of a QP that ends are lost", Tests: "TestSRQ", File: "connection.go",
		Old: "		q.shared.srq.releaseGrants(q)\n", New: "",
	},
	{
		Name: "shared receives go to the QP that waits last", Tests: "TestSRQ", File: "srq.go",
		Old: "n > 0 && s.ungranted() > 0; n--", New: "n > 0; n--",
	},
	{
		Name: "granted receives do not count for the limit", Tests: "TestSRQ", File: "srq.go",
		Old: "	if s.ungranted() < s.limit {", New: "	if s.recvs.Len() < s.limit {",
	},
	{
		Name: "a message consumes a receive that was not granted", Tests: "TestSRQHostile", File: "srq.go",
		Old: "n >= q.shared.granted-q.recvs.Head()", New: "n >= uint32(q.recvs.Cap()) || s.recvs.Len() == 0",
	},
	{
		Name: "local keys are not looked at", Tests: "TestConformance/(keys|localerror)", File: "send.go",
		Old: "q.engine.regions.covers(wr.SGE[:wr.NumSGE], fetch); !ok {", New: "q.engine.regions.covers(wr.SGE[:wr.NumSGE], fetch); !ok && false {",
	},
	{
		Name: "inline bytes are not taken at post time", Tests: "TestConformance/(send|write)", File: "send.go",
		Old: "		q.copyInline(s, int(token)&(q.sends.Cap()-1))\n", New: "",
	},
	{
		Name: "unsignaled requests complete loudly", Tests: "TestConformance/order", File: "send.go",
		Old: "s.wr.Flags&verbs.SendSignaled == 0 && !q.cfg.SignalAll", New: "false",
	},
	{
		Name: "the inner provider's word is lost", Tests: "TestTransfer/udp", File: "connect.go",
		Old: "	remote.Extra = inner\n", New: "	_, remote.Extra = inner, nil\n",
	},
	{
		Name: "an end sends chunks that its peer has no room for", Tests: "TestSmallerChunkCounts", File: "connection.go",
		Old: "min(c.engine.resources.chunk, int(c.peer.chunk))", New: "c.engine.resources.chunk",
	},
	{
		Name: "every request rings the bell", Tests: "TestOneDoorbell", File: "send.go",
		Old: "		q.enqueue(&wrs[i])\n", New: "		q.enqueue(&wrs[i])\n		e.flush()\n",
	},
	{
		Name: "every control packet rings the bell", Tests: "TestAcknowledgements", File: "connection.go",
		Old: "c.engine.resources.control[i].stage(b, c.ahs[i], c.peer.control[i], c.peer.qkey)",
		New: "c.engine.resources.control[i].stage(b, c.ahs[i], c.peer.control[i], c.peer.qkey)\n		c.engine.resources.control[i].ring()",
	},
	{
		Name: "a handshake QP that fails is not noticed", Tests: "TestHandshakeQPFails", File: "handshake.go",
		Old: "		q.fail() // the QP or the device has failed\n", New: "",
	},
	{
		Name: "a READ is answered without the right", Tests: "TestConformance/(keys|remoteerror|atomic)", File: "fetch.go",
		Old: "q.access&access == 0 || ", New: "",
	},
	{
		Name: "a region is read without the right", Tests: "TestConformance/(keys|remoteerror|atomic)", File: "region.go",
		Old: "r == nil || r.access&access == 0", New: "r == nil",
	},
	{
		Name: "an answer from a closed region ends its QP", Tests: "TestReadRegionCloses", File: "send.go",
		Old: "		owner = answerChunk\n", New: "",
	},
	{
		Name: "an answer is repeated from a closed region", Tests: "TestReadRegionCloses", File: "send.go",
		Old: "h.Xmit > 0 && !q.readable", New: "false && !q.readable",
	},
	{
		Name: "an atomic fetches the new value", Tests: "TestConformance/atomic", File: "fetch.go",
		Old: "f.CompareAdd) - f.CompareAdd", New: "f.CompareAdd)",
	},
	{
		Name: "an atomic at any address", Tests: "TestConformance/atomic", File: "fetch.go",
		Old: " || f.Addr%8 != 0)", New: ")",
		Also: []mutant.Edit{{File: "memory_unsafe.go", Old: " || uintptr(unsafe.Pointer(&b[0]))%8 != 0", New: ""}},
	},
	{
		Name: "an answer goes to memory that is gone", Tests: "TestConformance/close", File: "fetch.go",
		Old: "		return uint8(verbs.StatusLocProtErr)\n	}\n	return q.engine.resources.placement(dmaBuf)\n", New: "		return 0\n	}\n	return q.engine.resources.placement(dmaBuf)\n",
	},
	{
		Name: "every piece of an answer is the first", Tests: "TestTransfer", File: "fetch.go",
		Old: "Addr: s.Addr + uint64(off)", New: "Addr: s.Addr + uint64(off)*0",
	},
	{
		Name: "Modify in RTR does not reach a QP that has answered early", Tests: "TestServesInRTR|TestPatienceOfRTS", File: "earlyrts.go",
		Old: "		s.deferred.Set(&attr, mask&rtsAttrs)\n", New: "",
	},
	{
		Name: "a QP in RTR answers no card", Tests: "TestServesInRTR", File: "handshake.go",
		Old: "		s.enterRTSEarly(c.psn)\n", New: "",
	},
	{
		Name: "READs that are not served are answered", Tests: "TestReads", File: "fetch.go",
		Old: " || q.maxServed == 0", New: "",
	},
	{
		Name: "a rebuilt path keeps its route", Tests: "TestFlowLabels|TestRebuiltPath", File: "flowlabel.go",
		Old: " + uint32(epoch)*uint32(len(c.paths)|1)", New: "",
	},
	{
		Name: "the wait of a completion counts as a round trip", Tests: "TestLateHosts", File: "connectionstep.go",
		Old: "	ev.Age = c.engine.age\n", New: "",
	},
	{
		Name: "a loss counts for no path", Tests: "TestStatsFindBadPath", File: "core/loss.go",
		Old: "	p.stats.Lost++\n", New: "",
	},
	{
		Name: "a path forgets its least round trip time", Tests: "TestStatsFindBadPath", File: "core/path.go",
		Old: "r.least = min(r.least, sample)", New: "r.least = sample",
	},
	{
		Name: "sends overrun the CQ of their engine", Tests: "TestCQBudgetForSends", File: "cqbudget.go",
		Old: "return r.sendLimit() - r.sends", New: "return r.depth",
	},
	{
		Name: "receives overrun the CQ of their engine", Tests: "TestCQBudgetForQPs", File: "cqbudget.go",
		Old: "r.reserved+n > most", New: "n > most",
	},
	{
		Name: "sends that have completed keep their CQ entries", Tests: "TestCQBudgetForSends", File: "path.go",
		Old: "	p.holdEntries(-min(int(int32(n-p.done)), p.cqEntries))\n", New: "",
	},
	{
		Name: "a handshake QP keeps its CQ entries", Tests: "TestCQBudgetForQPs", File: "handshake.go",
		Old: "		s.user.engine.inbox.entries.release(s.entries)\n", New: "",
	},
	{
		Name: "every engine has the well-known Q_Key", Tests: "TestQKeys", File: "engineresources.go",
		Old: "res.id, res.qkey = (res.id+1)&maxConn, newQKey()", New: "res.id, res.qkey = (res.id+1)&maxConn, verbs.DefaultQKey",
	},
	{
		Name: "datagrams of paths have the own Q_Key", Tests: "TestDatagramTransfer", File: "path.go",
		Old: "p.conn.peer.paths[p.index].qpn, p.conn.peer.qkey", New: "p.conn.peer.paths[p.index].qpn, p.conn.engine.resources.qkey",
	},
	{
		Name: "a control QP that failed stays in error", Tests: "TestControlQPsReturn", File: "udqp.go",
		Old: "		u.failed = true\n", New: "",
	},
	{
		Name: "a revived control QP takes completions of its former life", Tests: "TestControlSlots", File: "control.go",
		Old: "	e.inbox.discard(c.qp.Num())\n", New: "",
	},
	{
		Name: "a follower sends before the confirm", Tests: "TestNothingIsSentBeforeConfirm", File: "flowhandshake.go",
		Old: "	h.offer = offer\n	h.sendPhaseCard()\n", New: "	h.offer = offer\n	h.sendPhaseCard()\n	q.conn.confirm()\n	q.startSending()\n",
	},
	{
		Name: "all QPs are in one engine", Tests: "TestEngineOfQP", File: "pd.go",
		Old: "		case send.isUsedBy(e):\n", New: "		case send != nil:\n",
	},
	{
		Name: "a new engine does not know the regions", Tests: "TestRegionsOfSeveralEngines", File: "engine.go",
		Old: "regions: p.regions.clone()", New: "regions: regions{}",
	},
	{
		Name: "an engine keeps a closed region", Tests: "TestRegionsOfSeveralEngines", File: "region.go",
		Old: "	p.each(func(e *engine) { e.regions.remove(r) })\n", New: "",
	},
	{
		Name: "a connection forgets the engine of its peer", Tests: "TestFlowsOfSeveralEngines", File: "flowhandshake.go",
		Old: "	c.to.control = answer.control // unknown after Modify\n", New: "",
	},
	{
		Name: "a leader takes an accept of another proposal", Tests: "TestStaleAccept", File: "flowhandshake.go",
		Old: " && c.echo == q.conn.id && c.flow == q.flow:\n		err = h.confirm(c)", New: ":\n		err = h.confirm(c)",
	},
	{
		Name: "a leader stays on a connection of another peer", Tests: "TestFlowsToSeveralPeers", File: "flowhandshake.go",
		Old: "c.peer != nil && !c.connectedTo(answer, &attr)", New: "c.connectedTo(answer, &attr) && false",
	},
	{
		Name: "a flow is used again", Tests: "TestProposalOnUsedFlow", File: "connection.go",
		Old: "flow >= len(c.usedFlows) || !c.usedFlows[flow]", New: "flow >= len(c.flows) || c.flows[flow] == nil",
	},
	{
		Name: "data before the confirm is dropped", Tests: "TestDataBeforeConfirm", File: "path.go",
		Old: "		c.confirm() // only its peer sends there\n", New: "",
	},
}

// TestMutations breaks the driver in one place at a time and wants the tests to notice.
func TestMutations(t *testing.T) { mutant.Run(t, mutations) }
