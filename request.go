package ibverbx

import "ibverbx/verbs"

// This file builds all physical send requests: fragments of one piece of memory (dataWR), records of Tally (recordWR), the user's
// other requests (otherWR), and the engine's own (postControl). Chains reuse their memory, so each function sets every field that its
// opcode needs.

// dataWR makes a fragment: n bytes at offset off of one piece of memory. The batch makers call it once per fragment, so it must be inlined.
func dataWR(to *verbs.SendWR, id uint64, op verbs.Opcode, flags verbs.SendFlags, imm, off, n uint32, local uint64, lkey uint32, remote uint64, rkey uint32) {
	to.WRID, to.Opcode, to.Flags, to.NumSGE, to.Imm = id, op, flags, 1, imm
	to.RemoteAddr, to.RKey = remote+uint64(off), rkey
	g := &to.SGE[0]
	g.Addr, g.Length, g.LKey = local+uint64(off), n, lkey
}

// recordWR makes the record of Tally whose ledger entry has this head and number.
func (s *sender) recordWR(to *verbs.SendWR, l *lane, head, n uint32) {
	to.WRID = uint64(l.base | kindRecord.tag() | tag(n))
	to.Opcode, to.NumSGE, to.Imm = verbs.OpSend, 1, 0
	to.Flags = verbs.SendFlags(head>>24&0x7f) | s.records.flags
	g := &to.SGE[0]
	g.Addr, g.Length, g.LKey = s.records.addr+uint64(uint16(head))*recordSize, recordSize, s.records.lkeys[l.rail&(MaxRails-1)]
}

// otherWR makes a request that is neither a plain fragment nor a record, with all bytes of sges and without remote memory or operands: the
// caller adds these, and cuts the request if it is a fragment.
func otherWR(to *verbs.SendWR, id uint64, op verbs.Opcode, flags verbs.SendFlags, imm uint32, sges []SGE, rail uint8) {
	to.WRID, to.Opcode, to.Flags, to.Imm = id, op, flags, imm
	to.RemoteAddr, to.RKey = 0, 0
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

// postControl posts a request of the engine without bytes: a mark behind the entries of a lane, or a probe of its path.
func (l *lane) postControl(chain []verbs.SendWR, k kind, op verbs.Opcode) error {
	chain[0] = verbs.SendWR{WRID: uint64(l.base | k.tag() | tag(l.tail)), Opcode: op, Flags: verbs.SendSignaled}
	_, err := l.qp.PostSend(chain[:1])
	return err
}
