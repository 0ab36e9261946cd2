package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// maxInline is how many inline bytes a request may have.
const maxInline = 256

// qp is a wrapped QP. Everything in it is guarded by the device's lock.
type qp struct {
	ctx    *device
	pd     *domain
	cfg    verbs.QPConfig
	sendCQ *cq
	recvCQ *cq
	id     uint32 // its number on the device
	state  verbs.QPState
	closed bool
	taken  bool // it has an id
	broken bool // its CQ overran, or the peer sent what cannot be taken

	link *link
	flow uint16   // its number on the link
	side verbs.QP // carries READs and atomics; its number is that of the QP
	num  uint32
	conn *core.Conn // that of the link; nil until the QP is connected
	// sideDown says that the side QP was in the error state when it was looked at.
	sideDown bool
	inline   pool // one slot per request
	cards    pool // two slots to send cards, two to receive them
	access   verbs.Access
	// introduced says that the own card was sent on the side QP.
	introduced bool
	askAt      int64 // when it is sent again; zero is never
	modified   bool  // connected by Modify, with timeouts of the user's

	sends      []sendSlot
	sendHead   uint32 // the oldest that has not ended
	sendTail   uint32
	recvs      []verbs.RecvWR
	recvHead   uint32 // the oldest that has not ended: the next message
	recvTail   uint32
	sendSGE    int
	recvSGE    int
	sideWR     [1]verbs.SendWR
	faultLocal verbs.Status // what the receive ends with that a fault is about
}

// pathQP is a path's QP of the present epoch.
type pathQP struct {
	qp     verbs.QP // nil if the path has none
	epoch  uint16
	posted uint32         // sends handed over, counted from the start of the epoch
	done   uint32         // of which left the memory
	orders uint32         // control packets among those that have not
	refill []verbs.RecvWR // its own receives that are to be posted
	addr   pathAddr       // of the QP, or of the last one
	// chain is what is to be posted; owner says whose sends were posted, by flow, or -1
	// for control packets.
	chain []verbs.SendWR
	owner [pathSlots]int32
}

// pathSlots is how many sends a path's QP takes: transmissions and maxOrders control packets.
const (
	pathSlots = 2 * pathDepth
	maxOrders = pathSlots - pathDepth
)

// sendSlot is a posted request.
type sendSlot struct {
	wr     verbs.SendWR
	length uint32
	bad    verbs.Status // what is wrong with it
}

var _ verbs.QP = (*qp)(nil)

// CreateQP implements verbs.PD. An RC QP is made of paths, others are those of the inner PD.
func (p *domain) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	d := p.ctx
	d.mu.Lock()
	defer d.mu.Unlock()
	send, ok1 := cfg.SendCQ.(*cq)
	recv, ok2 := cfg.RecvCQ.(*cq)
	if !ok1 || !ok2 || send == nil || recv == nil || send.ctx != d || recv.ctx != d || send.closed || recv.closed {
		return nil, d.opError("create QP", 0, verbs.Invalidf("QPConfig.SendCQ or RecvCQ is nil, closed or of another context"))
	}
	inner := cfg
	inner.SendCQ, inner.RecvCQ = send.inner, recv.inner
	if cfg.Type != verbs.RC {
		return p.inner.CreateQP(inner)
	}
	q := &qp{ctx: d, pd: p, cfg: cfg, sendCQ: send, recvCQ: recv, recvSGE: max(cfg.MaxRecvSGE, 1), sendSGE: max(cfg.MaxSendSGE, 1)}
	if err := q.checkConfig(); err != nil {
		return nil, d.opError("create QP", 0, err)
	}
	if err := q.build(); err != nil {
		q.destroy()
		return nil, err
	}
	send.users++
	recv.users++
	return q, nil
}

func (q *qp) checkConfig() error {
	d := q.ctx
	if q.cfg.SRQ != nil {
		return verbs.Invalidf("QPConfig.SRQ: a wrapped RC QP has its own receive queue")
	}
	for _, f := range [...]struct {
		name       string
		value, max int
	}{
		{"MaxSendWR", q.cfg.MaxSendWR, min(d.attr.MaxQPWR, 1<<15)},
		{"MaxRecvWR", q.cfg.MaxRecvWR, min(d.attr.MaxQPWR, 1<<15)},
		{"MaxSendSGE", q.cfg.MaxSendSGE, verbs.MaxSGE},
		{"MaxRecvSGE", q.cfg.MaxRecvSGE, verbs.MaxSGE},
		{"MaxInline", q.cfg.MaxInline, maxInline},
	} {
		if f.value < 0 || f.value > f.max {
			return verbs.Invalidf("QPConfig.%s is %d: want 0 to %d", f.name, f.value, f.max)
		}
	}
	if q.sendCQ.overrun || q.recvCQ.overrun {
		return verbs.ErrCQOverrun
	}
	return nil
}

// build makes the parts of a QP.
func (q *qp) build() (err error) {
	d, p := q.ctx, q.pd
	if err = p.prepare(); err != nil {
		return err
	}
	q.take()
	side := verbs.QPConfig{
		Type: verbs.RC, SendCQ: d.cq, RecvCQ: d.cq, MaxSendWR: max(q.cfg.MaxSendWR, 1) + 2, MaxSendSGE: q.sendSGE,
		MaxRecvWR: 2,
		Port:      q.cfg.Port, GID: q.cfg.GID,
	}
	if q.side, err = p.inner.CreateQP(side); err != nil {
		return err
	}
	q.num = q.side.Num()
	if err = q.enlist(); err != nil {
		return err
	}
	depth := ceilPow2(max(q.cfg.MaxSendWR, 1))
	q.sends = make([]sendSlot, depth)
	q.recvs = make([]verbs.RecvWR, ceilPow2(max(q.cfg.MaxRecvWR, 1)))
	if q.cfg.MaxInline > 0 {
		if q.inline, err = newPool(p.inner, depth, q.cfg.MaxInline); err != nil {
			return err
		}
	}
	q.cards, err = newPool(p.inner, 4, cardLen+8*d.cfg.Paths+creditsLen)
	return err
}

// headerSlot holds a chunk header or a small control packet.
const headerSlot = 96

func ceilPow2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// take gives the QP a number.
func (q *qp) take() {
	d := q.ctx
	q.taken = true
	for i, o := range d.qps {
		if o == nil {
			d.qps[i], q.id = q, uint32(i)
			return
		}
	}
	q.id = uint32(len(d.qps))
	d.qps = append(d.qps, q)
}

// Num implements verbs.QP.
func (q *qp) Num() uint32 { return q.num }

// Type implements verbs.QP.
func (q *qp) Type() verbs.QPType { return verbs.RC }

// State implements verbs.QP.
func (q *qp) State() verbs.QPState {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	return q.state
}

// Close implements verbs.QP.
func (q *qp) Close() error {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.closed || q.ctx.closed {
		return nil
	}
	q.destroy()
	q.sendCQ.users--
	q.recvCQ.users--
	q.sendCQ.discard(q.num)
	q.recvCQ.discard(q.num)
	q.ctx.forget(func(ev verbs.Event) bool { return ev.QP == verbs.QP(q) })
	return nil
}

// destroy frees the parts of a QP, also of one that was not built to the end.
func (q *qp) destroy() {
	if q.closed {
		return
	}
	q.closed = true
	q.leave()
	if q.side != nil {
		_ = q.side.Close() // nothing stands on it
	}
	q.inline.free()
	q.cards.free()
	if q.taken {
		q.ctx.qps[q.id] = nil
	}
	if q.pd.users == 0 {
		q.pd.release() // what was prepared for a QP that was not built to the end
	}
}

func (q *qp) opError(op string, err error) error { return q.ctx.opError(op, q.num, err) }
