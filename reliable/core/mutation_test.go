package core

import (
	"testing"

	"ibverbx/internal/mutant"
)

// mutations are changes that break the protocol, beyond those of TestExploreFinds.
var mutations = []mutant.Change{
	{
		Name: "a READ completes without its answer", Tests: "Read|TestMovesMessages", File: "send.go",
		Old: " || m.refs != 0 || m.waits {", New: " || m.refs != 0 {",
	},
	{
		Name: "an answer is taken twice", Tests: "Answer", File: "fetch.go",
		Old: "if number-q.answered >= q.asked-q.answered {", New: "if q.asked == 0 {",
	},
	{
		Name: "an answer may be longer than was asked for", Tests: "Answer", File: "fetch.go",
		Old: "end > uint64(m.Answer) || last", New: "end <= uint64(m.Answer) && last",
	},
	{
		Name: "a fetch is carried out twice", Tests: "Fetch", File: "fetch.go",
		Old: "case int32(number-a.taken) < 0:", New: "case false:",
	},
	{
		Name: "a peer may ask for any number of answers", Tests: "Fetch", File: "fetch.go",
		Old: "case number-a.done >= a.limit:", New: "case false:",
	},
	{
		Name: "a table that grows keeps its entries where they were", Tests: "TestTablesGrow", File: "path.go",
		Old: "wide[i&N(len(wide)-1)] = ", New: "wide[i&N(len(table)-1)] = ",
	},
	{
		Name: "a ledger grows although the NIC needs none of its entries", Tests: "TestTablesGrow", File: "path.go",
		Old: "if first := p.oldest(); p.next-first == uint32(len(p.ledger)) {", New: "if first := uint32(0); p.next-first >= uint32(len(p.ledger)) {",
	},
	{
		Name: "any number of READs wait", Tests: "Fetch", File: "fetch.go",
		Old: "return q.asked-q.answered >= q.limit", New: "return q.asked-q.answered >= 4*q.limit",
	},
	{
		Name: "an answer waits behind a message that waits", Tests: "Answers", File: "chunking.go",
		Old: "	if !a.waiting() || a.own {\n		if m := f.pickUserMessage(ch); m != nil || !a.waiting() {",
		New: "	if !a.waiting() || a.own || f.send.noRecv {\n		if m := f.pickUserMessage(ch); m != nil || !a.waiting() || f.send.noRecv {",
	},
	{
		Name: "answers go before everything else", Tests: "TestMessagesTakeTurns", File: "send.go",
		Old: "	f.answers.own = m.Kind == MsgAnswer\n", New: "",
	},
	{
		Name: "a fault ends the READs before it", Tests: "Fault", File: "ack.go",
		Old: "!waits && i&answerBit == 0", New: "false",
	},
	{
		Name: "a fault ends answers", Tests: "Fault", File: "receive.go",
		Old: "f.recv.faultDue && f.answers.done == f.answers.taken", New: "f.recv.faultDue",
	},
	{
		Name: "a READ without an answer waits forever", Tests: "Answer", File: "timer.go",
		Old: " || f.fetches.waiting()", New: "",
	},
	{
		Name: "a responder that fails says nothing", Tests: "Responder", File: "fetch.go",
		Old: "	if a.done != a.taken {\n		f.recv.ackNow = true\n	}\n", New: "",
	},
	{
		Name: "an acknowledgement that is owed is not flushed", Tests: "Owed", File: "recvcredit.go",
		Old: "return len(c.owing) > 0", New: "return false",
	},
	{
		Name: "the timer of a path is forgotten", Tests: "Path", File: "timer.go",
		Old: "if len(c.up) < len(c.paths) {", New: "if len(c.up) == 0 {",
	},
	{
		Name: "an answer makes no room", Tests: "Answer", File: "fetch.go",
		Old: "		c.sweep()\n", New: "",
	},
	{
		Name: "a WRITE overtakes the one before the READ", Tests: "Read", File: "chunking.go",
		Old: "ch.op == 0 && s.una < s.barrier", New: "false",
	},
	{
		Name: "a peer is asked once for shared receives", Tests: "Shared", File: "recvcredit.go",
		Old: "		return s.recvCredit.resendAt\n", New: "		return never\n",
	},
	{
		Name: "a peer that is slow to answer has no receive", Tests: "Shared", File: "recvcredit.go",
		Old: " && (s.recvCredit.denied || !s.recvCredit.shared)", New: "",
	},
	{
		Name: "a peer gets as many shared receives as it names", Tests: "Want", File: "recvcredit.go",
		Old: "messages-r.nextRecv > maxSendDepth+uint32(len(r.early))", New: "false",
	},
	{
		Name: "no memory for an answer fails the message before", Tests: "Memory", File: "fetch.go",
		Old: "		m.Status = ev.Status\n		return StatusNoRecv\n", New: "		f.fail(ev.Status)\n		return StatusNoRecv\n",
	},
	{
		Name: "an old limit replaces a new one", Tests: "Credit", File: "credit.go",
		Old: "	if int32(r.Nonce-*last) <= 0 {\n		return\n	}\n", New: "",
	},
	{
		Name: "a lost end of NoLimit is not told again", Tests: "Limit|Credit", File: "credit.go",
		Old: "		k.sendLimit() // the peer does not know its limit\n", New: "",
	},
	{
		Name: "the answer to a request keeps its route", Tests: "Credit", File: "credit.go",
		Old: "		k.c.control.lostAckHints++ // the response may be lost\n", New: "",
	},
	{
		Name: "credit for a part of a chunk is not used", Tests: "Credit", File: "credit.go",
		Old: "n > 0 && k.sent >= k.limit", New: "n > 0 && k.sent+uint64(n) > k.limit",
	},
	{
		Name: "a demand counts as in flight", Tests: "Demand", File: "credit.go",
		Old: "used := max(min(k.peerDemand, k.granted), k.arrived)", New: "used := max(k.peerDemand, k.arrived)",
	},
	{
		Name: "a demand below what has arrived stops the peer", Tests: "Demand", File: "credit.go",
		Old: "k.peerDemand <= max(k.granted, k.arrived)", New: "k.peerDemand <= k.granted",
	},
	{
		Name: "unused credit is never forgotten", Tests: "Pacer", File: "pacer.go",
		Old: "c.flying > 0 && now-c.usedAt >= patience", New: "c.flying > 0 && false",
	},
	{
		Name: "the first that asks is taken for the only one", Tests: "Pacer", File: "port.go",
		Old: " && p.topPeer == from && p.topLead >= aloneLead", New: "",
	},
	{
		Name: "a window never shrinks", Tests: "Port", File: "port.go",
		Old: "p.window*(1-1.0/32)", New: "p.window",
	},
	{
		Name: "a best rate is kept forever", Tests: "Port", File: "port.go",
		Old: "		p.best = min(p.best, max(rate, before))\n", New: "		_ = before\n",
	},
	{
		Name: "a chunk that is 65,536 chunks late is taken", Tests: "Datagram", File: "receive.go",
		Old: "ev.Header.Lap != lapOf(csn)", New: "false",
	},
	{
		Name: "a path that reorders loses what is overtaken once", Tests: "Datagram", File: "loss.go",
		Old: "last -= min(lossDistance, last-p.low)", New: "last -= 0",
	},
	{
		Name: "a flow fails while shared QPs refer to its memory", Tests: "Datagram", File: "path.go",
		Old: "	a := p.c.act(ActReset)\n	a.Path, a.Epoch = p.index, p.epoch\n	for p.done", New: "	for p.done",
	},
	{
		Name: "a path of shared QPs that is down refers to no memory", Tests: "Datagram", File: "pathrecovery.go",
		Old: "!c.cfg.Carrier.Shared && p.done != p.next", New: "p.done != p.next",
	},
	{
		Name: "a failed path keeps its route", Tests: "Datagram", File: "pathrecovery.go",
		Old: "	a := p.c.act(ActConnect)\n	a.Path, a.Epoch = p.index, uint16(p.pingNonce+1)\n	p.tries, p.pongs", New: "	p.tries, p.pongs",
	},
	{
		Name: "bytes without credit do not count", Tests: "Port", File: "port.go",
		Old: "+debtPerByte*float64(beyond)", New: "",
	},
	{
		Name: "a window ignores the queue", Tests: "Congestion", File: "congestion.go",
		Old: "w := flightBefore - queue + target", New: "w := flightBefore + target",
	},
	{
		Name: "a window grows that is not needed", Tests: "Congestion", File: "congestion.go",
		Old: "		if a.limited() {\n			a.set(2 * a.window)\n		}\n", New: "		a.set(2 * a.window)\n",
	},
	{
		Name: "a timeout before any answer shrinks the window", Tests: "Congestion", File: "congestion.go",
		Old: "if a.base != 0 && a.c.cfg.Adapt {", New: "if a.window /= 2; a.c.cfg.Adapt {",
	},
	{
		Name: "a drain has no timer", Tests: "Congestion", File: "timer.go",
		Old: ", c.congestion.drain.until)", New: ")",
	},
	{
		Name: "a drain without samples forgets the base", Tests: "Congestion", File: "queuedrain.go",
		Old: "case d.least == 0:", New: "case d.least == 1:",
	},
	{
		Name: "another route counts as a queue", Tests: "Congestion", File: "queuedrain.go",
		Old: "	case moved:", New: "	case moved && false:",
	},
	{
		Name: "a drain holds nothing", Tests: "Congestion", File: "congestion.go",
		Old: "		w = min(w, a.drain.hold)\n", New: "",
	},
}

// TestMutations breaks the protocol in one place at a time and wants the tests to notice.
func TestMutations(t *testing.T) { mutant.Run(t, mutations) }
