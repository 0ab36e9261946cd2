package measure

import (
	"ibverbx"
	"ibverbx/verbs"
)

// plainQPs is a side with UC or UD QPs, which a VirtualQP cannot use. They accept requests and
// complete them like a VirtualQP, so a flow treats both alike.
type plainQPs struct {
	run *SizeRun
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

// openPlain creates the QPs of both sides and connects them pairwise.
func (r *SizeRun) openPlain(rails *[2][]ibverbx.RailConfig) error {
	var sides [2]*plainQPs
	for i := range sides {
		e := &plainQPs{run: r}
		sides[i], r.sides[i].sideQPs = e, e
		if err := e.open(&rails[i][0]); err != nil {
			return err
		}
	}
	for i, e := range sides {
		if err := e.connect(sides[1-i], &rails[i][0]); err != nil {
			return err
		}
	}
	return nil
}

// open creates the PD, CQ and QPs.
func (e *plainQPs) open(rail *ibverbx.RailConfig) (err error) {
	p, closers := &e.run.plan, &e.run.closers
	if e.pd, err = rail.Context.AllocPD(); err != nil {
		return err
	}
	closers.Add(e.pd.Close)
	if e.cq, err = rail.Context.CreateCQ(verbs.CQConfig{Depth: p.completions(e.run.cfg)}); err != nil {
		return err
	}
	closers.Add(e.cq.Close)
	for range p.qps {
		qp, err := e.pd.CreateQP(verbs.QPConfig{
			Type: e.run.cfg.Connection, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: p.depth(), MaxRecvWR: p.recvs,
			Port: rail.Port, GID: rail.GID, Path: rail.Path,
		})
		if err != nil {
			return err
		}
		closers.Add(qp.Close)
		end, err := qp.Endpoint()
		if err != nil {
			return err
		}
		e.qps = append(e.qps, &plainQP{QP: qp, endpoint: end, send: make([]verbs.SendWR, p.chain), recv: make([]verbs.RecvWR, p.chain)})
	}
	return nil
}

// smaller returns the smaller of mtu and Config.MTU, if set. A QP uses the smaller MTU of both
// sides.
func (c *Config) smaller(mtu verbs.MTU) (verbs.MTU, error) {
	if c.MTU == 0 {
		return mtu, nil
	}
	asked, err := verbs.MTUOf(c.MTU)
	return min(mtu, asked), err
}

// connect moves the QPs to RTS, each connected to its partner at the other side.
func (e *plainQPs) connect(other *plainQPs, rail *ibverbx.RailConfig) (err error) {
	for i, qp := range e.qps {
		remote := other.qps[i].endpoint
		if remote.MTU, err = e.run.cfg.smaller(remote.MTU); err != nil {
			return err
		}
		if err := qp.Connect(remote); err != nil {
			return err
		}
	}
	if e.run.cfg.Connection != verbs.UD {
		return nil
	}
	index, err := rail.Path.SGIDIndex(rail.Context, uint8(portOf(rail)), e.qps[0].endpoint.GID)
	if err != nil {
		return err
	}
	to := &other.qps[0].endpoint
	attr := verbs.QPAttr{AH: verbs.AHAttr{DGID: to.GID, DLID: to.LID, SGIDIndex: index, Port: uint8(portOf(rail))}}
	rail.Path.Apply(&attr)
	ah, err := e.pd.CreateAH(attr.AH)
	if err != nil {
		return err
	}
	e.run.closers.Add(ah.Close)
	for i, qp := range e.qps {
		for k := range qp.send {
			qp.send[k].AH, qp.send[k].RemoteQPN, qp.send[k].RemoteQKey = ah.Handle(), other.qps[i].endpoint.QPN, other.qps[i].endpoint.QKey
		}
	}
	return nil
}

// portOf returns the port number of a rail.
func portOf(rail *ibverbx.RailConfig) int { return int(max(rail.Port, 1)) }

func (e *plainQPs) posters() (list []poster) {
	for _, qp := range e.qps {
		list = append(list, qp)
	}
	return list
}

func (e *plainQPs) failure(err error) error { return err }

func (e *plainQPs) arm() {} // both sides are in this process, which does not sleep

func (e *plainQPs) register(mem *verbs.Memory) (*ibverbx.Region, *ibverbx.RemoteRegion, error) {
	mr, err := e.pd.RegisterMemory(mem, verbs.AccessAll)
	if err != nil {
		return nil, nil, err
	}
	e.run.closers.Add(mr.Close)
	for _, qp := range e.qps {
		qp.base, qp.lkey = mr.Addr(), mr.LKey()
	}
	return nil, &ibverbx.RemoteRegion{Addr: mr.Addr(), Length: mr.Len(), RKeys: []uint32{mr.RKey()}}, nil
}

func (e *plainQPs) lanes() (stats []ibverbx.LaneStats) {
	for i, qp := range e.qps {
		stats = append(stats, ibverbx.LaneStats{Lane: i, QPN: qp.Num(), Role: "data", Counts: qp.Counts})
	}
	return stats
}

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

// Poll returns completions. A failed completion is returned as an error.
func (e *plainQPs) Poll(dst []ibverbx.WC) (n int, err error) {
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
