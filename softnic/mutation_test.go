package softnic_test

import (
	"testing"

	"ibverbx/internal/mutant"
)

// mutations break softnic, each in one place. tests is a pattern of tests that detect the
// change.
var mutations = []struct {
	name, tests, file, old, new string
}{
	{"a duplicate READ that was not served is answered", "TestKeyGuessingRC", "qp_rdatomic.go", "(q.core.traits.immediate || q.wasServed(p)) && ", ""},
	{"wrong keys of UC peers are not limited", "TestKeyGuessingUC", "seal_keys.go", "			q.pd.keyGuesses.count(q.core)\n", ""},
	{"wrong keys of sealed peers end nothing", "TestSealedWrongKeys", "seal_keys.go", "s.wrongKeys == maxWrongKeys", "s.wrongKeys == 0"},
	{"a plain packet reaches a sealed QP", "TestSealedDrops", "nic.go", "if (p.assoc != nil || q.sealing != nil) && ", "if p.assoc != nil && "},
	{"a packet of another session is accepted", "TestSealedDrops", "seal_keys.go", "	case a == q.assoc, q.typ == verbs.UD && (a.of == q.sealing || q.sealing.any()):\n", "	case a != nil:\n"},
	{"a datagram has the Seal of its claimed sender", "TestAnySealReceives", "qp_unreliable.go", "wc.Seal = p.assoc.of.greeting.Number()", "wc.Seal = q.nic.sealings.items[0].num"},
	{"a QP with AnySeal takes plain datagrams", "TestAnySealReceives", "seal_keys.go", "		q.nic.stats.Seals.Plain++\n", "		q.nic.stats.Seals.Plain++\n		return q.sealing.any()\n"},
	{"a QP with AnySeal sends plain datagrams", "TestAnySealSends", "seal_keys.go", "g.any() && p.sealing != nil", "g.any()"},
	{"a sealed QP is connected to a plain one", "TestSealDisagreement", "udp_peer.go", "	case s == nil && q.sealing != nil:\n		return verbs.Invalidf", "	case false:\n		return verbs.Invalidf"},
	{"a second NIC of the peer takes over its QPs", "TestSealedConnectBinds", "udp_peer.go", "if a == nil || !a.at(to) {", "if true {"},
	{"the keys of a closed Seal stay", "TestSealClose", "seal_keys.go", "		clear(g.peers[:])\n", ""},
	{"a datagram has the source of its IP header", "TestSealedSourceOfDatagrams", "seal_udp.go", "p.path = &p.assoc.from", "p.path = &path{sgid: from.gid, dgid: p.assoc.from.dgid}"},
	{"a damaged seal is counted as a replay", "TestSealedDrops", "seal_udp.go", "stats.Seals.Bad++", "stats.Seals.Replayed++"},
	{"a stale or guessed key is accepted", "TestConformance$/keys", "mem_region.go", "m.key == key {", "m.key != 0 {"},
	{"a region of another PD is accepted", "TestConformance$/localerror", "mem_region.go", "m.pd == d && ", "m.pd != nil && "},
	{"access flags are not looked at", "TestConformance$/memory", "mem_region.go", "m.access&need == need && ", ""},
	{"remote access flags of the QP are not looked at", "TestConformanceSegmented/state", "qp_place.go", "if q.attr.Access&verbs.AccessRemoteWrite == 0 {", "if false {"},
	{"a plain WRITE completes without copying", "TestConformance$/write", "direct_run.go", "			ntcopy.Copy(dst, src)\n", "			_, _ = dst, src\n"},
	{"a plain WRITE_WITH_IMM needs no receive", "TestConformance$/retry", "direct_run.go", "\n				if recv = peer.nextRecv(); recv == nil {", "\n				if recv = peer.nextRecv(); false {"},
	{"a WRITE_WITH_IMM of several pieces needs no receive", "TestConformance$/retry", "direct_run.go", "\n		if recv = peer.nextRecv(); recv == nil {", "\n		if recv = peer.nextRecv(); recv == nil && wr.Opcode != verbs.OpRDMAWriteWithImm {"},
	{"a plain WRITE ignores the QP's access flags", "TestConformance$/state", "direct_run.go", "	writes := peer.attr.Access&verbs.AccessRemoteWrite != 0\n", "	writes := true\n"},
	{"a plain SEND writes past the first SGE of its receive", "TestConformance$", "direct_run.go", "recv.numSGE == 0 || recv.sge[0].Length < s.Length {", "recv.numSGE == 0 {"},
	{"a plain SEND completes without copying", "TestConformance$/send", "direct_run.go", "	in.leaveFor(s.Length)\n	ntcopy.Copy(dst, src)\n	return recv\n", "	in.leaveFor(s.Length)\n	_ = src\n	return recv\n"},
	{"a gate opens while something is under way", "TestChaos/memory", "direct_pair.go", "return a.idle(b) && b.idle(a)", "return a.state == b.state"},
	{"requests without a completion are forgotten", "TestChaos/memory,overrun", "direct_run.go", "	q.sqMax = q.sqTail\n", "	q.sqHead, q.sqNext, q.sqMax = q.sqTail, q.sqTail, q.sqTail\n"},
	{"a request on UC or UD whose completion has no room is sent again", "TestFullCQSendsOnce", "direct_run.go", "	if q.typ != verbs.RC {\n		q.sqNext = q.sqTail\n	}\n", ""},
	{"gates let WRITEs pass that too many wrong keys block", "TestGatesOfUC", "direct_run.go", "peer.pd.keyGuesses.wrong >= maxKeyGuesses", "false"},
	{"a datagram inside of no gate skips the Q_Key", "TestConformance$/ud", "direct_datagram.go", "peer.attr.QKey != key || ", ""},
	{"counters of open gates are missing", "TestGatesOpen", "nic.go", "		p.fold()\n", ""},
	{
		"a duplicate atomic is executed again", "TestDuplicateAtomic", "qp_rdatomic.go", "		for i := range q.replay { // newest",
		"		if mem, ok := q.nic.mrs.get(p.RKey).find(q.pd, p.VA, 8, 0); ok && op == roce.OpFetchAdd {\n" +
			"			*wordAt(mem) += p.SwapAdd\n		}\n		for i := range q.replay { // newest",
	},
	{"a misaligned atomic is executed", "TestAtomicMisaligned", "qp_rdatomic.go", "p.VA%8 != 0 || ", ""},
	{"an atomic on misaligned memory is executed", "TestAtomicMisaligned", "qp_rdatomic.go", "if !isAligned(mem) {", "if false {"},
	{"completions come out of order", "TestConformance$/order", "qp_cq.go", "i := (head + k) & mask", "i := (head + n - 1 - k) & mask"},
	{"unsignaled requests complete loudly", "TestChaos/memory", "qp_completer.go", "w.flags&verbs.SendSignaled == 0 && ", "false && "},
	{"slots of unsignaled requests are not given back", "TestChaos/memory", "qp_completer.go", "q.sendCQ.push(q.sqUsed, q.withoutCQE,", "q.sendCQ.push(q.sqUsed, 1,"},
	{"receives are not flushed", "TestConformance$/flush", "qp_flush.go", "	q.flushSends()\n	q.flushReceives()\n", "	q.flushSends()\n"},
	{"FENCE is ignored", "TestConformanceShm$/read/Fence", "qp_requester.go", "if w.flags&verbs.SendFence != 0 && (q.reads > 0 || q.landings.oldest(asRequester) != nil) {", "if false {"},
	{"the READ limit is ignored", "TestConformanceSegmented/read", "qp_requester.go", "if w.isRequest() && q.reads >= q.attr.MaxRdAtomic {", "if w.isRequest() && q.attr.MaxRdAtomic == 0 {"},
	{"the send queue takes one too many", "TestConformance$/limits", "qp_post.go", "if i >= free {", "if i > free {"},
	{"the send queue loses its requests when it grows", "TestQueuesGrow", "qp.go", "		*s.wqe(i) = old[from]\n", ""},
	{"the send queue loses inline bytes when it grows", "TestQueuesGrow", "qp.go", "			copy(s.inlineOf(i), bytes[from*int(s.maxInline):][:s.maxInline])\n", ""},
	{"the receive queue takes one too many", "TestConformance$/limits", "qp_srq.go", "if i >= free {", "if i > free {"},
	{"inline bytes are not taken at post time", "TestConformance$/send", "qp_post.go", "			q.copyInline(sges)\n", "			q.inline = make([]byte, len(q.sq)*int(q.maxInline))\n"},
	{"a request after the refused one is posted", "TestConformance$/limits", "qp_post.go", "return i, q.explainSend(i, wr)", "continue"},
	{"the immediate is turned around", "TestConformanceSegmented/send", "qp_place.go", "wc.Flags, wc.Imm = verbs.WCWithImm, p.Imm", "wc.Flags, wc.Imm = verbs.WCWithImm, p.Imm>>8|p.Imm<<24"},
	{"a WRITE_WITH_IMM needs no receive", "TestConformanceSegmented/(rnr|retry)", "qp_place.go", "	if t&opHasImm != 0 && !q.claimRecv() {\n", "	if false {\n"},
	{"a gap is not noticed", "ExampleFaultLink", "qp_responder.go", "			q.sequenceGap()\n		} else {", "			q.epsn = p.PSN\n			q.receiveRequest(p, op)\n		} else {"},
	{
		"an acknowledgement passes for the answer to a READ", "TestConformanceOverFaults/read", "qp_completer.go",
		"		if w.isRequest() {\n			gap = psn.Sub(q.una) >= 0", "		if false {\n			gap = psn.Sub(q.una) >= 0",
	},
	{"an acknowledgement names an atomic", "TestAckNamesNoAnswer", "qp_responder.go", "q.epsn.Add(roce.PSNMask - q.unackedPSNs)", "q.epsn.Add(roce.PSNMask)"},
	{"a QP does not wait for a slow reader", "TestUDPUnreported", "qp_cq.go", "		w.readArrived()\n", ""},
	{"a stranger is sent all that the link has room for", "TestUDPStrangerWindow", "udp_peer.go", "route.window = unknownPeerWindow", "route.window = maxWindow"},
	{"a peer that waits for a receive is not told of it", "TestUDPReady", "qp_post.go", "		q.announceReceive()\n", ""},
	{"the end of a datagram is taken for a part of its packet", "TestUDPFill", "udp_receive.go", "b = roce.Trim(b)", ""},
	{"a peer that wants full ICRCs gets others", "TestICRCAgreement", "udp_peer.go", "mine != ICRCFull && peer.onHost", "mine != ICRCFull"},
	{"a NIC that wants full ICRCs accepts others", "TestICRCReceive", "udp_receive.go", "u.packet.HeaderICRC && u.udpNIC.link.cfg.ICRC != ICRCFull", "u.packet.HeaderICRC"},
	{"captures have the ICRC of the wire", "TestUDPCapture$", "udp_nic.go", "		flow.Restore(b, id)\n", ""},
	{"a packet between Cork and Uncork refers to memory that may be freed", "TestUDPZeroCopyUntilPosted", "nic_core.go", "w.corks == 0 || w.zeroCopy", "w.corks == 0"},
	{"a packet that continues a run is not checked against the rest of its WRITE", "TestUDPRun$", "udp_run.go", "if len(payload) > len(r.dst) {", "if false {"},
	{"a run goes on behind other packets", "TestUDPRunEnds$", "udp_receive.go", "			u.run.q = nil\n			u.serveDatagram", "			u.serveDatagram"},
	{"a damaged packet continues a run", "TestUDPRun$", "udp_run.go", "r.covered, r.id+1, e); !ok {", "r.covered, r.id+1, e); false {"},
	{"QPs to one NIC do not share its buffer", "TestUDPPeerBudget$", "qp_window.go", "if b := q.to; b != nil &&", "if b := q.to; b == nil &&"},
	{"a QP that is held back does not ask for an acknowledgement", "TestUDPPeerBudget$", "qp_requester.go", " || (n.budget.limit > 0 && q.holder(q.inFlight()+1, size == q.seg) != nil)", ""},
	{"going back forgets how far a READ was", "ExampleFaultLink", "qp_completer.go", "q.sqOff = uint32(psn.Sub(w.first)) * q.seg", "q.sqOff = 0"},
	{"a late packet of a broken UC message is placed", "TestUCDropsBrokenMessages", "qp_unreliable.go", "} else if p.PSN != q.epsn || ", "} else if "},
	{"a late packet passes a port before earlier ones", "TestInTurn", "fault_layer.go", "min(now+1, l.flights.Next())", "now+1"},
	{"the Q_Key is not checked", "TestConformanceSegmented/ud", "qp_unreliable.go", "if p.QKey != q.attr.QKey {", "if false {"},
	{"the GRH does not count", "TestConformanceSegmented/ud", "qp_unreliable.go", "verbs.GRHLen+p.length, p.SrcQPN", "p.length, p.SrcQPN"},
	{"the limit event of an SRQ does not disarm", "TestConformance$/srq", "qp_srq.go", "		s.limit = 0\n		s.pd", "		s.pd"},
	{"a CQ overruns silently", "TestChaos/overrun", "qp_cq.go", "		c.overrun = true\n", ""},
	{"no event tells that communication is established", "TestConformance$/events/CommEst", "qp_responder.go", "		q.raise(verbs.EventCommEst)\n", ""},
	{"no event tells that the last WQE is reached", "TestConformance$/srq/LastWQE", "qp_flush.go", "		q.raise(verbs.EventLastWQEReached)\n", ""},
	{"a PD closes with regions in it", "TestConformance$/close", "mem_pd.go", "n := d.mrs.len() + d.qps.len()", "n := d.qps.len()"},
	{"a deregistered region keeps its memory", "TestConformance$/memory", "mem_region.go", "		m.stager.deregister()\n	}\n	m.release()\n", "		m.stager.deregister()\n	}\n"},
	{"a region of a ShmLink is taken back while the peer is in it", "TestShmRegionClose", "shm_reader.go", "in&1 == 1 && b.peerEpoch.Load() == in && !b.gone", "in&1 == 2 && b.peerEpoch.Load() == in && !b.gone"},
	{"a grant is taken back and the lines under it are not served", "TestShmLinesSurvive/shm/ERR", "shm_grant.go", "Credit(q)\n	b.grace()\n	if b.ring != nil {\n		b.ring.serveAll()\n	}\n", "Credit(q)\n	b.grace()\n"},
	{"a region is closed before the lines that use it are served", "TestShmLinesRegion", "shm_credit.go", "			b.ring.serveAll()\n", ""},
	{"a packet behind a line is a gap", "TestNeighborOrder", "qp_responder.go", "q.nic.serveRings() && ", ""},
	{"the lines of a neighbor that has ended are lost", "TestNeighborLeavesLines", "shm_ring.go", "	b.ring.serveAll()\n	b.ring = nil", "	b.ring = nil"},
	{"peers do not see that nobody reads the rings", "TestNeighborAsleep", "shm_ring.go", "				r.bell.Doze()\n", ""},
	{"a line to a neighbor that falls asleep is not announced", "TestNeighborLook", "shm_line.go", "	r.announce()\n", ""},
	{"an announced line is not served", "TestNeighborLook", "shm_neighbor.go", "		b.serveAnnounced()\n", ""},
	{"a NIC with a capture takes lines", "TestNeighborLines", "udp_link.go", "cfg.Capture == nil && cfg.CapturePlain == nil && ", ""},
	{"a line is sent without a credit", "TestShmLines(Scarce|Random)", "shm_line.go", "return p.hasCredit(q) && r.free()", "return r.free()"},
	{"a line overtakes packets", "TestShmLinesRandom", "shm_line.go", "case q.sqHead != q.sqNext:", "case false:"},
	{"a line with another PSN is accepted", "TestShmLineRefused", "shm_line_serve.go", "roce.PSN(m.PSN) != q.epsn || ", ""},
	{"a direct request overtakes one that is not acknowledged", "TestConformanceShmGranted$/order", "shm_direct.go", "case (q.sqHead != q.sqNext && !b.batch.busy) || q.landings.oldest(asRequester) != nil:", "case false:"},
	{"a direct request ignores the protection domain", "TestConformanceShmGranted$/remoteerror", "shm_grant.go", "r.domain != domain ||", "r.domain+domain == 0 ||"},
	{"a direct request ignores the access flags of the region", "TestConformanceShmGranted$/(remoteerror|memory)", "shm_grant.go", "r.access&need != need ||", "r.access == 0 ||"},
	{
		"a direct request ignores the PSN of the connection", "TestShmNotGranted", "../internal/shm/segment.go",
		"&^(3<<31) != 0", "&127 != 0",
	},
	{
		"a QP that has failed still grants direct requests", "TestShmNotGranted", "qp_flush.go",
		"	q.revoke()\n	q.state, q.failing", "	q.state, q.failing",
	},
	{"a packet of a list begins at the start of the list", "TestListed", "qp_requester.go", "verbs.PartOf(sges, off, n)", "verbs.PartOf(sges, 0, n)"},
	{"the lists of receives are taken in the wrong order", "TestListed", "qp_srq.go", "**list = r.lists.Pop()", "**list = *r.lists.At(r.lists.Tail() - 1)\n		r.lists.Drop(1)"},
	{"a neighbor gets a region with the key of an earlier one", "TestShmReregister", "mem_region.go", "m.key, m.mem = old.key, nil", "m.key = old.key"},
	{"a QP is drained in the middle of a direct request", "TestShmTurnDrain$", "qp_state.go", " || (q.path != nil && q.path.movedBytes > 0)", ""},
	{"a long direct request leaves others no turn", "TestShmTurns", "shm_direct.go", "part = min(part, left<<shift)", "part += 0"},
	{"a QP that is attached twice gets two copies", "TestMulticast$", "udp_multicast.go", "case slices.Contains(g.members, q):", "case false:"},
	{"a sealed QP joins a group", "TestMulticastRefused", "udp_multicast.go", "	case q.sealing != nil:", "	case false:"},
	{"a NIC stays in a group without members", "TestMulticastClose", "udp_multicast.go", "empty := len(g.members) == 0 && !n.closed", "empty := false"},
	{"completions of a closed QP stay", "TestConformance$/close", "qp_flush.go", "	q.sendCQ.discard(q)\n", ""},
	{"an illegal transition is taken", "TestConformance$/state", "qp_state.go", "	if err := verbs.CheckTransition(q.typ, q.state, to, mask); err != nil {\n		return err\n	}\n", ""},
}

// raceMutations break the gates. Only the race detector detects most of them.
var raceMutations = []mutant.Change{
	{Name: "gates of pairs are not shut", File: "nic_gate.go", Old: "	for _, p := range l.open {\n		p.open.Store(false)\n	}\n"},
	{Name: "shutting does not wait for who is inside a pair", File: "nic_gate.go", Old: "		p.Lock()\n		p.fold()\n		done += p.done\n		p.done = 0\n		p.Unlock()\n", New: "		p.fold()\n		done += p.done\n		p.done = 0\n"},
	{Name: "gates of CQs are not shut", File: "nic_gate.go", Old: "			q.sendCQ.shut()\n			q.recvCQ.shut()\n"},
	{Name: "shutting does not wait for who is inside a CQ", File: "nic_gate.go", Old: "		g.Lock()\n		g.Unlock() //nolint", New: "		//nolint"},
	{Name: "gates of SRQs are not shut", File: "nic_gate.go", Old: "				q.srq.shut()\n", Tests: "^TestTorture$", Race: true},
	{
		Name: "sends complete without the gate of their CQ", File: "direct_run.go", Old: "	c.Lock()\n	for i := range wrs {", New: "	for i := range wrs {",
		Also: []mutant.Edit{{File: "direct_run.go", Old: "			break\n		}\n		wc := c.push(q.sqUsed", New: "			return\n		}\n		wc := c.push(q.sqUsed"}, {File: "direct_run.go", Old: "	}\n	c.Unlock()\n}", New: "	}\n}"}},
	},
	{
		Name: "receives complete without the gate of their CQ", File: "direct_run.go", Old: "		in.inside = true\n		c.Lock()\n", New: "		in.inside = true\n",
		Also: []mutant.Edit{{File: "direct_run.go", Old: "		in.cq.Unlock()\n", New: ""}},
	},
	{Name: "receives are taken without the gate of their SRQ", File: "direct_run.go", Old: "		s.Lock()\n		defer s.Unlock()\n"},
	{Name: "a post looks at the slots of a CQ without its gate", File: "qp_cq.go", Old: "		s.cq.Lock()\n		s.seen = s.freed\n		s.cq.Unlock()\n", New: "		s.seen = s.freed\n"},
	{Name: "slots of an SRQ come back without an atomic", File: "qp_cq.go", Old: "		s.shared.Add(n)\n", New: "		s.shared.Store(s.shared.Load() + n)\n"},
	{Name: "pairs add without an atomic instruction", File: "qp_rdatomic.go", Old: "original = atomic.AddUint64(word, swapAdd) - swapAdd", New: "original = *word\n\t\t*word += swapAdd"},
	{Name: "more atomics are done at once than are remembered", File: "direct_run.go", Old: "n < len(wrs) && atomics < maxRdAtomic", New: "n < len(wrs)"},
	{Name: "deregistering does not wait for copies", File: "mem_region.go", Old: "	m.pd.ctx.core.mu.drain() // a copy may be in progress\n"},
	{Name: "a call that waited does not see that the gate opened", File: "direct_pair.go", Old: "	if p := q.pair.Load(); p != nil && p.enter() { // it opened while this call waited\n		q.core.mu.Unlock()\n		return p\n	}\n"},
}

// stagedMutations break the handling of packets that wait for device memory.
var stagedMutations = []mutant.Change{
	{Name: "completions do not wait for a device", File: "dev_landing.go", Old: "func (q *qp) awaitsLanding() bool { return q.landings != nil &&", New: "func (q *qp) awaitsLanding() bool { return q == nil &&"},
	{Name: "an acknowledgement does not wait for a device", File: "qp_responder.go", Old: "if p := q.landings.oldest(asResponder); p != nil {", New: "if p := q.landings.oldest(asResponder); false {"},
	{Name: "an acknowledgement covers what has not landed", File: "dev_landing.go", Old: "a := q.newResponse(p.ack)", New: "a := q.newResponse(q.ackPSN())"},
	{Name: "the answer to a READ does not wait for a device", File: "dev_landing.go", Old: "return d != nil && d.pending.Len() > 0 && int32(after-d.pending.Head()) > 0", New: "return false"},
	{Name: "bytes behind a fence are fetched", File: "dev_prefetch.go", Old: "if w.flags&verbs.SendFence != 0 && f.seq != q.sqNext {", New: "if false {"},
	{Name: "a prefetcher keeps its data when the QP retransmits", File: "dev_prefetch.go", Old: "		f.seq, f.off = seq, packet\n"},
	{Name: "nothing is fetched ahead", File: "dev_prefetch.go", Old: "	maxBatches = 4\n", New: "	maxBatches = 1\n"},
	{Name: "a QP that cannot send keeps its buffers", File: "dev_prefetch.go", Old: "		oldest.prefetcher.evict(oldest)\n"},
	{Name: "deregistering does not wait for landings", File: "dev_stager.go", Old: "	d.submitOpen(true)\n	d.lander.drain()\n"},
	{Name: "bytes of a packet are overwritten before it leaves", File: "dev_prefetch.go", Old: "if s == fetchMissing && f.busy.before(seq, packet, off) {", New: "if s == fetchMissing && false {"},
	{Name: "a QP whose bytes were displaced is not scheduled", File: "dev_prefetch.go", Old: "			d.waiting.push(f.q)\n			return\n", New: "			_ = d\n			return\n"},
	{Name: "the last landing that failed decides what is refused", File: "dev_landing.go", Old: "case !receivable[q.state], q.failingNAK && q.nakPSN.Sub(p.psn) <= 0:", New: "case !receivable[q.state]:"},
	{Name: "bytes land after the reset of their QP", File: "dev_landing.go", Old: "	if q.awaitsLanding() {\n		for _, d", New: "	if false {\n		for _, d"},
	{Name: "deregistering does not wait for fetches", File: "dev_stager.go", Old: "	d.fetcher.drain()\n	d.notify()\n"},
	{Name: "a landing that failed is a success", File: "dev_landing.go", Old: "p.done, p.failed = true, r.failed", New: "p.done = true"},
	{Name: "a failed landing ends the QPs beside it", File: "dev_copier.go", Old: "len(g.landings) == 1 || device.Copy(g.copies[p.from:end]) != nil", New: "true || end == 0"},
	{Name: "a READ that failed keeps silent", File: "dev_landing.go", Old: "h.wc.Status, h.silent, h.solicited = status, false, true", New: "h.wc.Status, h.solicited = status, true"},
	{Name: "a failed fetch is sent", File: "dev_prefetch.go", Old: "			case g.failed:\n				return nil, fetchRefused\n"},
	{Name: "a buffer that a device may still use is used again", File: "dev_copier.go", Old: "	g.stuck = err != nil &&", New: "	g.stuck = err == nil &&"},
	{Name: "a batch of copies is not waited for", File: "direct_operand.go", Old: "c.submitted(c.device.Copy(c.list))", New: "c.submitted(c.device.Start(c.list))"},
	{Name: "a slice of a batch that failed counts as done", File: "direct_operand.go", Old: "c.submitted(c.device.Start(c.list))", New: "_ = c.device.Start(c.list)\n\t\tc.submitted(nil)"},
	{Name: "a host WRITE overtakes a device copy", File: "direct_run.go", Old: "wr.Opcode < verbs.OpRDMARead && !queued {", New: "wr.Opcode < verbs.OpRDMARead {"},
	{Name: "requests behind a copy that failed count as done", File: "direct_run.go", Old: "n, reads, signaled = placed, 0,", New: "n, reads, signaled = max(n, placed), 0,"},
	{Name: "staging is not bounded", File: "dev_stager.go", Old: "if len(p.all) == p.limit {", New: "if false {"},
}

// farMutations break device copies to and from the peer's memory.
var farMutations = []mutant.Change{
	{Name: "a direct copy of a device that failed is a success", File: "shm_device.go", Old: "	if u.copies.flush() {\n", New: "	if u.copies.flush() || true {\n"},
	{Name: "a request completes before the device has copied", File: "shm_direct.go", Old: "		if !b.batch.busy {\n", New: "		if true {\n"},
	{Name: "an immediate does not wait for the device", File: "shm_direct.go", Old: "		if t := b.finishBatch(q); t != directDone {\n			return t\n		}\n		if b.ring != nil", New: "		if b.ring != nil"},
	{Name: "a request on host memory passes copies of a device", File: "shm_direct.go", Old: "	if !device || w.flags&verbs.SendFence != 0 {", New: "	if w.flags&verbs.SendFence != 0 {"},
	{Name: "a fence does not end a batch", File: "shm_direct.go", Old: "	if !device || w.flags&verbs.SendFence != 0 {", New: "	if !device {"},
	{Name: "memory of a region that is gone stays open", File: "shm_grant.go", Old: "	s.closeDeviceMem(old.deviceMem)\n"},
	{Name: "memory of the peer stays open on a device that is not used", File: "dev_stager.go", Old: "		b.files.closeOn(d.device)\n", New: "		_ = b\n"},
	{Name: "a request goes on where a failed copy ended", File: "shm_device.go", Old: "	q.sqNext, q.path.movedBytes = u.first, u.moved\n", New: "	q.path.movedBytes = u.moved\n"},
}

// watchMutations break the limit on polling goroutines.
var watchMutations = []mutant.Change{
	{Name: "more goroutines look for packets than may", File: "udp_reader.go", Old: "		if n >= w.limit {", New: "		if false {"},
	{Name: "a goroutine that stops looking wakes nobody", File: "udp_reader.go", Old: "		if o.background.waiting.Load() {", New: "		if false {"},
	{Name: "nobody reads a port whose goroutine stays away", File: "udp_reader.go", Old: "s.add(o.result(o.readLocked()))", New: "s.add(pollResult{})"},
}

// TestMutations breaks softnic in one place at a time and expects the tests to detect it.
func TestMutations(t *testing.T) {
	var changes []mutant.Change
	for _, m := range mutations {
		changes = append(changes, mutant.Change{Name: m.name, Tests: m.tests, File: m.file, Old: m.old, New: m.new})
	}
	for _, c := range raceMutations {
		c.Race, c.Tests = true, "Gate|Torture"
		changes = append(changes, c)
	}
	for _, c := range stagedMutations {
		c.Tests = "Staged|DeviceCopyFails|DeviceSlice"
		changes = append(changes, c)
	}
	for _, c := range farMutations {
		c.Tests = "FarDevice"
		changes = append(changes, c)
	}
	for _, c := range watchMutations {
		c.Tests = "UDPWatch"
		changes = append(changes, c)
	}
	mutant.Run(t, changes)
}
