package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// passDown posts the requests of a VirtualQP with one lane: no tracking, no cutting, the
// user's ID as wr_id.
func (q *VirtualQP) passDown(wrs []SendWR) (n int, err error) {
	if q.state != stateConnected && q.state != stateFailed {
		return 0, q.opError("post send", q.notConnected())
	}
	l := q.lanes[0]
	for n < len(wrs) {
		chain := q.chain[:min(len(wrs)-n, len(q.chain))]
		var bytes uint64
		for i := range chain {
			wr := &wrs[n+i]
			if q.isPlain(wr) {
				passPlain(wr, l, &chain[i])
				bytes += uint64(wr.SGE[0].Length)
				continue
			}
			if err := q.translate(wr, l, &chain[i]); err != nil {
				return q.postDirect(l, chain[:i], n, 0, q.opError("post send", fmt.Errorf("request %d of the chain: %w", n+i, err)))
			}
			bytes += wr.Length()
		}
		k, err := q.postDirect(l, chain, n, bytes, nil)
		if k < n+len(chain) || err != nil {
			return k, err
		}
		n = k
	}
	return n, nil
}

// postDirect posts a chain that begins at n and returns how many requests were taken in
// all, with the error of the NIC or, if it took all of them, bad. bytes is what the chain
// carries, 0 if that must be counted.
func (q *VirtualQP) postDirect(l *lane, chain []verbs.SendWR, n int, bytes uint64, bad error) (int, error) {
	if len(chain) == 0 {
		return n, bad
	}
	k, err := l.qp.PostSend(chain)
	if k < len(chain) || bytes == 0 {
		bytes = 0
		for i := range chain[:k] {
			bytes += chain[i].Length()
		}
	}
	if k > 0 {
		l.counts.Doorbells++
		l.counts.Fragments += uint64(k)
		l.counts.Bytes += bytes
		q.counted.posted += uint64(k)
		q.counted.highWater = max(q.counted.highWater, min(int(q.counted.posted-q.counted.passed), q.cfg.LaneDepth))
	}
	if err != nil {
		l.counts.Refusals++
		return n + k, err
	}
	return n + k, bad
}

// passPlain makes a physical request of a plain one.
func passPlain(wr *SendWR, l *lane, p *verbs.SendWR) {
	e, m := &wr.SGE[0], wr.Remote
	p.WRID, p.Opcode, p.Flags, p.NumSGE, p.Imm = wr.WRID, wr.Opcode, wr.Flags, 1, wr.Imm
	p.RemoteAddr, p.RKey = m.Addr+wr.RemoteOffset, m.RKeys[l.remoteRail]
	g := &p.SGE[0]
	g.Addr, g.Length, g.LKey = e.Region.addr+e.Offset, e.Length, e.Region.lkeys[l.rail]
}

// translate makes a physical request of a virtual one.
func (q *VirtualQP) translate(wr *SendWR, l *lane, p *verbs.SendWR) error {
	if wr.NumSGE > MaxSGE {
		return verbs.Invalidf("%d SGEs, at most %d are allowed", wr.NumSGE, MaxSGE)
	}
	p.WRID, p.Opcode, p.Flags, p.NumSGE, p.Imm = wr.WRID, wr.Opcode, wr.Flags, wr.NumSGE, wr.Imm
	var length uint64
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		if err := q.checkLocal(e); err != nil {
			return fmt.Errorf("SGE %d: %w", i, err)
		}
		length += uint64(e.Length)
		p.SGE[i] = verbs.SGE{Addr: e.Region.addr + e.Offset, Length: e.Length, LKey: e.Region.lkeys[l.rail]}
	}
	if wr.Opcode == verbs.OpSend || wr.Opcode == verbs.OpSendWithImm || (length == 0 && wr.Opcode == verbs.OpRDMAWriteWithImm) {
		p.RemoteAddr, p.RKey = 0, 0
		return nil // nothing at the other side is named
	}
	if err := q.checkRemote(wr, length); err != nil {
		return err
	}
	p.RemoteAddr, p.RKey = wr.Remote.Addr+wr.RemoteOffset, wr.Remote.RKeys[l.remoteRail]
	p.CompareAdd, p.Swap = wr.CompareAdd, wr.Swap
	return nil
}

// passUp makes a virtual completion of a physical one.
func (q *VirtualQP) passUp(wc *verbs.WC, dst *WC) {
	dst.WRID, dst.QP, dst.Status, dst.VendorErr = wc.WRID, q, wc.Status, wc.VendorErr
	dst.Opcode, dst.Flags, dst.ByteLen, dst.Imm = wc.Opcode, 0, wc.ByteLen, wc.Imm
	if wc.Status != verbs.StatusSuccess {
		q.failed(q.lanes[0], wc.Status)
		return
	}
	if wc.Flags&verbs.WCWithImm != 0 {
		dst.Flags |= WCHasImm
	}
	if wc.Opcode >= verbs.WCRecv {
		dst.Flags |= WCHasLength
		q.counted.recvCompleted++
		return
	}
	q.counted.passed++
}
