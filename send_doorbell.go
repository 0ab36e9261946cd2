package ibverbx

import (
	"errors"

	"ibverbx/verbs"
)

// stage adds a request to the ledger of a lane that is not full.
func (s *sender) stage(l *lane, head, off, bytes, imm uint32) {
	l.put(head, off, bytes, imm)
	s.inflight++
	if !l.listed {
		s.markStaged(l)
	} else if l.full() {
		s.ringLane(l)
	}
}

// markStaged adds the lane to sender.staged. Callers check listed first, so that it can be inlined.
func (s *sender) markStaged(l *lane) {
	l.listed = true
	s.staged = append(s.staged, l)
}

// full reports whether a full chain is staged; it is posted immediately.
func (l *lane) full() bool { return l.tail-l.posted >= chainMax }

// ring rings the doorbells of all lanes with staged entries, except lanes whose NIC refused a post in this call.
func (s *sender) ring() {
	s.picker.runLeft = 0
	keep := s.staged[:0]
	for _, l := range s.staged {
		if l.blocked&blockJustRefused == 0 && l.posted != l.tail && !l.out() {
			s.ringLane(l)
		}
		l.blocked &^= blockJustRefused
		if l.posted != l.tail && s.failover.state == stateConnected && !l.out() {
			keep = append(keep, l)
		} else {
			l.listed = false
		}
	}
	s.staged = keep
	if len(keep) > 0 {
		s.setup.queueReport()
	}
}

// ringLane posts a lane's staged entries in chains. Refused requests stay staged. An unusable lane becomes
// brokenLane, which dispatch handles at its end.
func (s *sender) ringLane(l *lane) {
	l.blocked &^= blockRefused
	for l.posted != l.tail {
		// Entries moved here from another lane may exceed the NIC's queue. A chain that it accepted in part would
		// leave unsignaled requests at the end.
		room := l.depth - min(l.depth, l.posted-l.head)
		if room == 0 {
			return
		}
		chain := s.chain[:min(l.tail-l.posted, chainMax, room)]
		bytes, consuming := s.render(l, chain)
		if !s.postChain(l, chain, bytes) {
			return
		}
		l.recovery.sent += consuming
	}
	l.counts.highWater.Raise(uint64(l.tail - l.head))
}

// send posts a chain that was built together with its ledger entries on a lane without staged entries. Requests that
// the NIC refuses are staged, and not retried in this call.
func (s *sender) send(l *lane, chain []verbs.SendWR, bytes uint64, consuming uint32) {
	s.inflight += len(chain)
	s.signal(l, chain, bytes, consuming)
	if s.postChain(l, chain, bytes) {
		l.recovery.sent += consuming
	} else {
		s.markStaged(l)
	}
	l.counts.highWater.Raise(uint64(l.load()))
}

// postChain posts a chain of bytes bytes, built from a lane's entries starting at posted. It reports whether the NIC
// accepted all of it.
func (s *sender) postChain(l *lane, chain []verbs.SendWR, bytes uint64) bool {
	n, err := l.qp.PostSend(chain)
	if n < len(chain) {
		if err = l.handleRefusal(chain, n, err); err != nil && s.brokenLane == nil {
			s.brokenLane, s.brokenErr = l, err
		}
		return false
	}
	l.posted += uint32(n)
	l.unsignaledTail = false
	if l.capacity < min(l.depth, l.load()+chainMax) { // grow the ledger here, so that room need not
		l.move(newLedger(int(l.index), int(l.depth)))
	}
	l.counts.doorbells.Add(1)
	l.counts.fragments.Add(uint64(n))
	l.counts.bytes.Add(bytes)
	return true
}

// handleRefusal handles a post of which the NIC accepted only n requests. If the last of them is unsignaled, the next
// request will be signaled, so that no request waits forever. It returns err if the lane is unusable.
func (l *lane) handleRefusal(chain []verbs.SendWR, n int, err error) error {
	l.counts.refusals.Add(1)
	if n > 0 {
		l.unsignaledTail = chain[n-1].Flags&verbs.SendSignaled == 0
		l.counts.doorbells.Add(1)
		l.counts.fragments.Add(uint64(n))
	}
	for range n {
		e := l.at(l.posted)
		l.counts.bytes.Add(uint64(e.bytes))
		l.recovery.sent += e.head >> 31
		l.posted++
	}
	l.blocked |= blockRefused | blockJustRefused
	if isBackPressure(err) {
		return nil
	}
	return err
}

// isBackPressure reports whether a NIC refused a post because its queue is full.
func isBackPressure(err error) bool { return errors.Is(err, verbs.ErrQueueFull) }

// postMarker posts a marker behind unsignaled requests: once it is flushed, they have completed. The lane must be
// in ERR with nothing staged. If the NIC's queue is full, a later call retries.
func (s *sender) postMarker(l *lane) {
	if !l.unsignaledTail || l.load() >= uint32(len(l.ledger)) {
		return
	}
	if l.postControl(s.chain, kindControl, verbs.OpSend) == nil {
		l.put(entryHead(0, kindControl, 0), 0, 0, 0)
		l.posted++
		s.inflight++
		l.unsignaledTail = false
	}
}

// render builds a lane's staged requests: chain[i] from entry posted+i. It returns the chain's bytes and the number
// of receives that it consumes at the peer.
func (s *sender) render(l *lane, chain []verbs.SendWR) (bytes uint64, consuming uint32) {
	sends, ledger, base := s.sends.slots, l.ledger, l.base
	rail, remoteRail := l.rail&(MaxRails-1), l.remoteRail&(MaxRails-1)
	n := l.posted
	for i := range chain {
		e, wr := &ledger[int(n)&(len(ledger)-1)], &chain[i]
		head := e.head
		id, flags := uint64(base|tag(head>>16&0xff)<<44|tag(n)), verbs.SendFlags(head>>24&0x7f)
		consuming += head >> 31
		bytes += uint64(e.bytes)
		r := &sends[int(uint16(head))&(len(sends)-1)]
		switch k := kind(head >> 16); k {
		case kindPlain:
			dataWR(wr, id, r.wire, flags, e.imm, e.off, e.bytes, r.local, r.keys[rail].local, r.target, r.keys[remoteRail].remote)
		case kindRecord:
			s.recordWR(wr, l, head, n)
		case kindNotify:
			emptyWR(wr, id, verbs.OpRDMAWriteWithImm, flags, e.imm)
		default:
			wr.CompareAdd, wr.Swap = r.compareAdd, r.swap
			if e.bytes == 0 {
				emptyWR(wr, id, r.wire, flags, e.imm)
				break
			}
			otherWR(wr, id, r.wire, flags, e.imm, r.sge[:r.numSGE], rail)
			if e.bytes < r.length {
				wr.NumSGE = uint8(verbs.CutSGE(wr.SGE[:], wr.SGE[:wr.NumSGE], e.off, e.bytes))
			}
			if !isMessage(r.op) {
				wr.RemoteAddr, wr.RKey = r.target+uint64(e.off), r.keys[remoteRail].remote
			}
			if r.flags&verbs.SendInline != 0 {
				wr.SetInline(s.inlineOf(uint32(e.slot()))[e.off:][:e.bytes])
			}
		}
		n++
	}
	s.signal(l, chain, bytes, consuming)
	return bytes, consuming
}

// A completion costs as much as several short requests, so a chain shares one. In a chain longer than signalBytes or
// with messages, every signalRequests-th request is signaled, so that the sender can refill its window before the
// whole chain has arrived.
const (
	signalBytes    = 8 << 10
	signalRequests = 16
)

// signal sets SendSignaled on the chain's last request, at intervals before it, and on the first one behind an
// unsignaled tail. bytes is the chain's length, consuming the number of receives that it consumes at the peer.
func (s *sender) signal(l *lane, chain []verbs.SendWR, bytes uint64, consuming uint32) {
	interval := s.setup.cfg.SignalInterval
	if interval == 0 {
		if interval = signalRequests; bytes <= signalBytes && consuming == 0 {
			interval = chainMax
		}
	}
	if consuming > 0 { // a peer with few receives limits the messages between two completions
		interval = min(interval, s.setup.remoteRecvs)
	}
	first := interval - 1
	if l.unsignaledTail {
		first = 0
	}
	for i := first; i < len(chain); i += interval {
		chain[i].Flags |= verbs.SendSignaled
	}
	chain[len(chain)-1].Flags |= verbs.SendSignaled
}

// The functions below build all physical send requests: fragments of contiguous memory (dataWR), records of Tally
// (recordWR), requests without bytes (emptyWR), the user's other requests (otherWR), and the engine's own
// (postControl). Chains reuse their memory, so each function sets every field that its opcode needs.

// dataWR builds a fragment: n bytes at offset off. It is called once per fragment and must be inlined.
func dataWR(to *verbs.SendWR, id uint64, op verbs.Opcode, flags verbs.SendFlags, imm, off, n uint32, local uint64, lkey uint32, remote uint64, rkey uint32) {
	to.WRID, to.Opcode, to.Flags, to.NumSGE, to.Imm = id, op, flags, 1, imm
	to.RemoteAddr, to.RKey = remote+uint64(off), rkey
	g := &to.SGE[0]
	g.Addr, g.Length, g.LKey = local+uint64(off), n, lkey
}

// recordWR builds the Tally record of ledger entry n, which has this head.
func (s *sender) recordWR(to *verbs.SendWR, l *lane, head, n uint32) {
	to.WRID = uint64(l.base | kindRecord.tag() | tag(n))
	to.Opcode, to.NumSGE, to.Imm = verbs.OpSend, 1, 0
	to.Flags = verbs.SendFlags(head>>24&0x7f) | s.records.flags
	g := &to.SGE[0]
	g.Addr, g.Length, g.LKey = s.records.addr+uint64(uint16(head))*recordSize, recordSize, s.records.lkeys[l.rail&(MaxRails-1)]
}

// emptyWR builds an empty request, which does not refer to memory (IBTA C9-88).
func emptyWR(to *verbs.SendWR, id uint64, op verbs.Opcode, flags verbs.SendFlags, imm uint32) {
	to.WRID, to.Opcode, to.Flags, to.NumSGE, to.Imm = id, op, flags, 0, imm
	to.RemoteAddr, to.RKey = 0, 0
}

// otherWR builds any other request with all bytes of sges. The caller adds remote memory and operands, and cuts the
// request if it is a fragment.
func otherWR(to *verbs.SendWR, id uint64, op verbs.Opcode, flags verbs.SendFlags, imm uint32, sges []SGE, rail uint8) {
	emptyWR(to, id, op, flags, imm)
	k := uint8(0)
	for i := range sges {
		if e := &sges[i]; e.Length > 0 {
			g := &to.SGE[k]
			g.Addr, g.Length, g.LKey = e.Region.addr+e.Offset, e.Length, e.Region.lkeys[rail]
			k++
		}
	}
	to.NumSGE = k
}

// postControl posts an engine request without bytes: a marker behind a lane's entries, or a probe of its path.
func (l *lane) postControl(chain []verbs.SendWR, k kind, op verbs.Opcode) error {
	chain[0] = verbs.SendWR{WRID: uint64(l.base | k.tag() | tag(l.tail)), Opcode: op, Flags: verbs.SendSignaled}
	_, err := l.qp.PostSend(chain[:1])
	return err
}
