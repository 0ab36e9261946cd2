package ibverbx

import "ibverbx/verbs"

// render makes the physical requests of what a lane has staged: chain[i] of the ledger's
// entry posted+i. Only the last of a chain, and every SignalInterval-th before it, asks for
// a completion; so does the first if the lane is silent. It returns the bytes of the
// chain, and how many receives of the peer it uses up.
func (q *VirtualQP) render(l *lane, chain []verbs.SendWR) (bytes uint64, consuming uint32) {
	sends, ledger, base := q.sends, l.ledger, l.base
	rail, remoteRail := l.rail&(MaxRails-1), l.remoteRail&(MaxRails-1)
	interval := q.cfg.SignalInterval
	left := interval
	if l.silent {
		left = 1
	}
	n := l.posted
	for i := range chain {
		e, wr := &ledger[int(n)&(len(ledger)-1)], &chain[i]
		head := e.head
		wr.WRID = uint64(base | tag(head>>16&0xff)<<44 | tag(n))
		wr.Flags = verbs.SendFlags(head >> 24 & 0x7f)
		consuming += head >> 31
		if left--; left == 0 {
			wr.Flags |= verbs.SendSignaled
			left = interval
		}
		n++
		wr.Imm = e.imm
		bytes += uint64(e.bytes)
		s := &sends[uint16(head)]
		if k := kind(head >> 16); k != kindPlain {
			if k == kindRecord {
				wr.Opcode, wr.NumSGE = verbs.OpSend, 1
				inlineRecord(wr, s)
				continue
			}
			q.renderOther(l, s, e, wr)
			continue
		}
		off := uint64(e.off)
		wr.Opcode, wr.NumSGE = s.wire, 1
		wr.RemoteAddr, wr.RKey = s.target+off, s.keys[remoteRail].remote
		g := &wr.SGE[0]
		g.Addr, g.Length, g.LKey = s.local+off, e.bytes, s.keys[rail].local
	}
	chain[len(chain)-1].Flags |= verbs.SendSignaled
	return bytes, consuming
}

// renderOther makes what is not a plain fragment.
func (q *VirtualQP) renderOther(l *lane, s *sendSlot, e *entry, wr *verbs.SendWR) {
	wr.NumSGE, wr.RemoteAddr, wr.RKey = 0, 0, 0
	switch e.kind() {
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
	if !isMessage(s.op) {
		wr.RemoteAddr, wr.RKey = s.target+uint64(e.off), s.keys[l.remoteRail].remote
	}
	switch {
	case s.flags&verbs.SendInline != 0:
		inlineBytes(wr, q.inlineOf(uint32(e.slot()))[e.off:][:e.bytes])
	case s.plain:
		wr.NumSGE = 1
		wr.SGE[0] = verbs.SGE{Addr: s.local + uint64(e.off), Length: e.bytes, LKey: s.keys[l.rail].local}
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
