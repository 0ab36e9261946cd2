package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/internal/seqnum"
)

// roce.Header and packet are the same headers: one as package roce has them for the wire, one
// as the requester and the responder use them. FETCH_ADD has its addend where CMP_SWAP has
// what it compares with, in one, and what it stores, in the other.

// headerOf makes h the headers of p.
func headerOf(h *roce.Header, p *packet) {
	h.Opcode, h.Solicited, h.AckReq = p.opcode, p.solicited, p.ackReq
	h.DestQPN, h.PSN = p.destQPN, uint32(p.psn)
	h.QKey, h.SrcQPN = p.qkey, p.srcQPN
	h.VA, h.RKey, h.DMALen = p.va, p.rkey, p.dmaLen
	h.Syndrome, h.MSN, h.Original, h.Imm = p.syndrome, p.msn, p.original, p.imm
	if p.opcode == transportRC|opFetchAdd {
		h.SwapAdd, h.Compare = p.compare, 0
	} else {
		h.SwapAdd, h.Compare = p.swap, p.compare
	}
}

// packetOf makes p the packet with headers h.
func packetOf(p *packet, h *roce.Header) {
	p.opcode, p.solicited, p.ackReq = h.Opcode, h.Solicited, h.AckReq
	p.destQPN, p.psn = h.DestQPN, seqnum.PSN(h.PSN)
	p.qkey, p.srcQPN = h.QKey, h.SrcQPN
	p.va, p.rkey, p.dmaLen = h.VA, h.RKey, h.DMALen
	p.syndrome, p.msn, p.original, p.imm = h.Syndrome, h.MSN, h.Original, h.Imm
	if h.Opcode == transportRC|opFetchAdd {
		p.compare = h.SwapAdd
	} else {
		p.compare, p.swap = h.Compare, h.SwapAdd
	}
}
