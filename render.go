package ibverbx

import "ibverbx/verbs"

// render makes the physical requests of what a lane has staged: chain[i] of the ledger's
// entry posted+i. Only the last of a chain, and every SignalInterval-th before it, asks for
// a completion; so does the first if the lane is silent. It returns the bytes of the chain.
func (q *VirtualQP) render(l *lane, chain []verbs.SendWR) (bytes uint64) {
	sends, rail, remoteRail := q.sends, l.rail, int(l.remoteRail)
	left := q.cfg.SignalInterval
	if l.silent {
		left = 1
	}
	for i := range chain {
		n := l.posted + uint32(i)
		e, wr := l.at(n), &chain[i]
		wr.WRID = uint64(l.base | e.kind.tag() | tag(n))
		wr.Flags = e.flags
		if left--; left == 0 || i == len(chain)-1 {
			wr.Flags |= verbs.SendSignaled
			left = q.cfg.SignalInterval
		}
		wr.Imm = e.imm
		bytes += uint64(e.bytes)
		s := &sends[e.slot]
		if e.kind != kindData || !s.plain {
			q.renderOther(l, s, e, wr)
			continue
		}
		wr.Opcode = s.wire
		wr.NumSGE = 1
		wr.SGE[0] = verbs.SGE{Addr: s.local + uint64(e.off), Length: e.bytes, LKey: s.region.lkeys[rail]}
		wr.RemoteAddr = s.target + uint64(e.off)
		wr.RKey = s.remote.RKeys[remoteRail]
	}
	return bytes
}

// renderOther makes what is not a plain fragment.
func (q *VirtualQP) renderOther(l *lane, s *sendSlot, e *entry, wr *verbs.SendWR) {
	wr.NumSGE, wr.RemoteAddr, wr.RKey = 0, 0, 0
	switch e.kind {
	case kindRecord:
		wr.Opcode = verbs.OpSend
		inlineBytes(wr, s.record[:])
		return
	case kindNotify:
		wr.Opcode = verbs.OpRDMAWriteWithImm
		return
	case kindAtomic:
		wr.CompareAdd, wr.Swap = s.compareAdd, s.swap
	default:
	}
	wr.Opcode = s.wire
	if e.bytes == 0 {
		return
	}
	if s.remote != nil {
		wr.RemoteAddr = s.target + uint64(e.off)
		wr.RKey = s.remote.RKeys[l.remoteRail]
	}
	switch {
	case s.flags&verbs.SendInline != 0:
		inlineBytes(wr, q.inlineOf(uint32(e.slot))[e.off:][:e.bytes])
	case s.plain:
		wr.NumSGE = 1
		wr.SGE[0] = verbs.SGE{Addr: s.local + uint64(e.off), Length: e.bytes, LKey: s.region.lkeys[l.rail]}
	default:
		gather(wr, s, l.rail, e.off, e.bytes)
	}
}

// gather makes n bytes of a request from off on the local pieces of a physical request.
func gather(wr *verbs.SendWR, s *sendSlot, rail uint8, off, n uint32) {
	k := uint8(0)
	for i := range s.numSGE {
		e := &s.sge[i]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		take := min(n, e.Length-off)
		wr.SGE[k] = verbs.SGE{Addr: e.Region.addr + e.Offset + uint64(off), Length: take, LKey: e.Region.lkeys[rail]}
		k++
		if n -= take; n == 0 {
			break
		}
		off = 0
	}
	wr.NumSGE = k
}
