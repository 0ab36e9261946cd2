package measure

import (
	"ibverbx"
	"ibverbx/verbs"
)

// plainQPs are a side's UC or UD QPs, which a VirtualQP cannot use. They accept requests and
// complete them like a VirtualQP, so a flow treats both alike.
type plainQPs struct {
	pd  verbs.PD
	cq  verbs.CQ
	qps []*plainQP
	wcs [pollBatch]verbs.WC
}

// plainQP is one UC or UD QP.
type plainQP struct {
	verbs.QP
	endpoint verbs.Endpoint
	send     []verbs.SendWR // a chain; UD addresses are set once
	recv     []verbs.RecvWR // a chain
	base     uint64         // address of this side's memory
	lkey     uint32         // key of that memory
	ibverbx.Counts
}

// openPlain creates a side's PD, CQ and QPs, and registers its memory.
func (r *SizeRun) openPlain(h *side, mem *verbs.Memory) (err error) {
	p, rail, e := &r.plan, &h.rails[0], &plainQPs{}
	h.plain = e
	if e.pd, err = rail.Context.AllocPD(); err != nil {
		return err
	}
	r.closers.Add(e.pd.Close)
	mr, err := e.pd.RegisterMemory(mem, verbs.AccessAll)
	if err != nil {
		return err
	}
	r.closers.Add(mr.Close)
	h.remote = &ibverbx.RemoteRegion{Addr: mr.Addr(), Length: mr.Len(), RKeys: []uint32{mr.RKey()}}
	if e.cq, err = rail.Context.CreateCQ(verbs.CQConfig{Depth: p.completions(r.cfg)}); err != nil {
		return err
	}
	r.closers.Add(e.cq.Close)
	for range p.qps {
		qp, err := e.pd.CreateQP(verbs.QPConfig{
			Type: r.cfg.Connection, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: p.depth(), MaxRecvWR: p.recvs,
			Port: rail.Port, GID: rail.GID, Path: rail.Path,
		})
		if err != nil {
			return err
		}
		r.closers.Add(qp.Close)
		end, err := qp.Endpoint()
		if err != nil {
			return err
		}
		e.qps = append(e.qps, &plainQP{
			QP: qp, endpoint: end, send: make([]verbs.SendWR, p.chain), recv: make([]verbs.RecvWR, p.chain), base: mr.Addr(), lkey: mr.LKey(),
		})
	}
	return nil
}

// smaller returns the smaller of mtu and Config.MTU, if set. A QP uses the smaller MTU of both
// sides.
func (c *Config) smaller(mtu verbs.MTU) verbs.MTU {
	if asked, err := verbs.MTUOf(c.MTU); err == nil { // otherwise it is not set
		return min(mtu, asked)
	}
	return mtu
}

// connectPlain moves the QPs of both sides to RTS, each connected to its partner.
func (r *SizeRun) connectPlain() error {
	for i, h := range r.sides {
		partners := r.sides[1-i].plain.qps
		for k, qp := range h.plain.qps {
			remote := partners[k].endpoint
			remote.MTU = r.cfg.smaller(remote.MTU)
			if err := qp.Connect(remote); err != nil {
				return err
			}
		}
		if r.cfg.Connection == verbs.UD {
			if err := r.address(h, partners); err != nil {
				return err
			}
		}
	}
	return nil
}

// address sets the destinations of UD requests: the partners at the other side.
func (r *SizeRun) address(h *side, partners []*plainQP) error {
	e, rail, to := h.plain, &h.rails[0], &partners[0].endpoint
	index, err := rail.Path.SGIDIndex(rail.Context, uint8(portOf(rail)), e.qps[0].endpoint.GID)
	if err != nil {
		return err
	}
	attr := verbs.QPAttr{AH: verbs.AHAttr{DGID: to.GID, DLID: to.LID, SGIDIndex: index, Port: uint8(portOf(rail))}}
	rail.Path.Apply(&attr)
	ah, err := e.pd.CreateAH(attr.AH)
	if err != nil {
		return err
	}
	r.closers.Add(ah.Close)
	for i, qp := range e.qps {
		for k := range qp.send {
			qp.send[k].AH, qp.send[k].RemoteQPN, qp.send[k].RemoteQKey = ah.Handle(), partners[i].endpoint.QPN, partners[i].endpoint.QKey
		}
	}
	return nil
}

// portOf returns the port number of a rail.
func portOf(rail *ibverbx.RailConfig) int { return int(max(rail.Port, 1)) }

// PostSend posts a chain of requests with one SGE each and one doorbell.
func (q *plainQP) PostSend(wrs []ibverbx.SendWR) (n int, err error) {
	chain := q.send[:len(wrs)]
	for i := range wrs {
		wr, p := &wrs[i], &chain[i]
		p.WRID, p.Opcode, p.Flags = wr.WRID, wr.Opcode, wr.Flags
		p.SGE[0] = verbs.SGE{Addr: q.base + wr.SGE[0].Offset, Length: wr.SGE[0].Length, LKey: q.lkey}
		p.NumSGE = 1
		if wr.Remote != nil {
			p.RemoteAddr, p.RKey = wr.Remote.Addr+wr.RemoteOffset, wr.Remote.RKeys[0]
		}
	}
	n, err = q.QP.PostSend(chain)
	if n > 0 {
		q.Doorbells++
		q.Fragments += uint64(n)
		q.Bytes += uint64(n) * uint64(wrs[0].SGE[0].Length) // all requests of a chain are alike
	}
	if err != nil {
		q.Refusals++
	}
	return n, err
}

// PostRecv posts a chain of receives with one SGE each.
func (q *plainQP) PostRecv(wrs []ibverbx.RecvWR) (n int, err error) {
	chain := q.recv[:len(wrs)]
	for i := range wrs {
		e := &wrs[i].SGE[0]
		chain[i].WRID, chain[i].NumSGE = wrs[i].WRID, 1
		chain[i].SGE[0] = verbs.SGE{Addr: q.base + e.Offset, Length: e.Length, LKey: q.lkey}
	}
	return q.QP.PostRecv(chain)
}

// poll returns completions. A failed completion is returned as an error.
func (e *plainQPs) poll(dst []ibverbx.WC) (n int, err error) {
	got, err := e.cq.Poll(e.wcs[:min(len(dst), len(e.wcs))])
	for i := range got {
		from, wc := &e.wcs[i], &dst[i]
		if from.Status != verbs.StatusSuccess {
			return i, from.Err()
		}
		e.qps[queueOf(from.WRID)].CQEs++
		wc.WRID, wc.Status, wc.Flags, wc.ByteLen = from.WRID, from.Status, ibverbx.WCHasLength, from.ByteLen
	}
	return got, err
}
