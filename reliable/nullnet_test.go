package reliable

import (
	"sync"
	"sync/atomic"

	"ibverbx/internal/nullnic"
	"ibverbx/internal/ring"
	"ibverbx/internal/u32map"
	"ibverbx/verbs"
)

// nullNet connects null NICs for the engine benchmark. A message arrives within PostSend. WRITE data is not
// copied; SEND data is, because it consists of headers and control packets. Every queue has a separate lock,
// so connections never share one.
type nullNet struct {
	mu  sync.Mutex                          // serializes the creation of QPs
	qps atomic.Pointer[u32map.Map[*nullQP]] // all QPs, by number; the table is replaced
}

func newNullNet() *nullNet {
	n := &nullNet{}
	n.qps.Store(&u32map.Map[*nullQP]{})
	return n
}

// open returns the context of a new NIC whose first QP has the number firstQPN.
func (n *nullNet) open(name string, firstQPN uint32) verbs.Context {
	return &nullContext{nullnic.New(name, firstQPN), n}
}

type nullContext struct {
	*nullnic.NIC
	net *nullNet
}

func (x *nullContext) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := x.NIC.QueryDevice()
	a.Capabilities |= verbs.CapUC | verbs.CapUD | verbs.CapSRQ | verbs.CapSRQOnUC
	return a, err
}

func (x *nullContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	inner, err := x.NIC.CreateCQ(verbs.CQConfig{Depth: 1})
	return &nullCQ{CQ: inner.(*nullnic.CQ), depth: cfg.Depth, ring: ring.New[verbs.WC](cfg.Depth), waker: cfg.Waker}, err
}

func (x *nullContext) AllocPD() (verbs.PD, error) {
	inner, err := x.NIC.AllocPD()
	return nullPD{inner, x}, err
}

// nullCQ is a CQ that several goroutines may use.
type nullCQ struct {
	*nullnic.CQ
	depth int
	waker *verbs.Waker

	mu    sync.Mutex
	ring  ring.Ring[verbs.WC]
	armed bool
}

func (c *nullCQ) push(wc verbs.WC) {
	c.mu.Lock()
	c.ring.Push(wc)
	wake := c.armed
	c.armed = false
	c.mu.Unlock()
	if wake {
		c.waker.Wake()
	}
}

func (c *nullCQ) Poll(dst []verbs.WC) (n int, _ error) {
	c.mu.Lock()
	for ; n < len(dst) && c.ring.Len() > 0; n++ {
		dst[n] = c.ring.Pop()
	}
	c.mu.Unlock()
	return n, nil
}

func (c *nullCQ) Arm(bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return nil
}

func (c *nullCQ) Depth() int { return c.depth }

// nullSRQ is a receive queue that several goroutines may use.
type nullSRQ struct {
	*nullnic.SRQ
	mu   sync.Mutex
	ring ring.Ring[verbs.RecvWR]
}

func (s *nullSRQ) PostRecv(wrs []verbs.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range wrs {
		s.ring.Push(wrs[i])
	}
	return len(wrs), nil
}

func (s *nullSRQ) take() (wr verbs.RecvWR, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ring.Len() == 0 {
		return wr, false
	}
	return s.ring.Pop(), true
}

type nullPD struct {
	verbs.PD
	ctx *nullContext
}

func (p nullPD) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	inner, err := p.PD.CreateSRQ(cfg)
	return &nullSRQ{SRQ: inner.(*nullnic.SRQ), ring: ring.New[verbs.RecvWR](cfg.MaxWR)}, err
}

func (p nullPD) CreateAH(verbs.AHAttr) (verbs.AH, error) { return nullAH{}, nil }

type nullAH struct{}

func (nullAH) Handle() verbs.AHHandle { return 1 }
func (nullAH) Close() error           { return nil }

func (p nullPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	net := p.ctx.net
	net.mu.Lock()
	defer net.mu.Unlock()
	q := &nullQP{net: net, sends: cfg.SendCQ.(*nullCQ), recvs: cfg.RecvCQ.(*nullCQ)}
	q.queue, _ = cfg.SRQ.(*nullSRQ)
	if q.queue == nil {
		q.queue = &nullSRQ{ring: ring.New[verbs.RecvWR](cfg.MaxRecvWR)}
	}
	cfg.SendCQ, cfg.RecvCQ, cfg.SRQ = q.sends.CQ, q.recvs.CQ, nil
	inner, err := p.PD.CreateQP(cfg)
	q.QP = inner.(*nullnic.QP)
	qps := net.qps.Load().Clone()
	qps.Set(q.Num(), q)
	net.qps.Store(&qps)
	return q, err
}

// nullQP is a QP whose messages arrive immediately.
type nullQP struct {
	*nullnic.QP
	net          *nullNet
	sends, recvs *nullCQ
	queue        *nullSRQ // its own, or an SRQ's
	peer         *nullQP  // where its messages go, nil until the first and on UD
}

func (q *nullQP) Connect(remote verbs.Endpoint) error {
	if q.Type() == verbs.UD {
		return verbs.ConnectWith(q.QP, verbs.QPAttr{Port: 1, QKey: verbs.DefaultQKey})
	}
	return q.QP.Connect(remote)
}

func (q *nullQP) PostRecv(wrs []verbs.RecvWR) (int, error) { return q.queue.PostRecv(wrs) }

func (q *nullQP) PostSend(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		to := q.peer
		switch {
		case q.Type() == verbs.UD:
			to = q.net.qps.Load().Find(wr.RemoteQPN)
		case to == nil:
			attr, _ := q.Query()
			q.peer = q.net.qps.Load().Find(attr.DestQPN)
			to = q.peer
		}
		to.arrive(q, wr)
		if wr.Flags&verbs.SendSignaled != 0 {
			q.sends.push(verbs.WC{WRID: wr.WRID, QPN: q.Num(), Opcode: wr.Opcode.WC()})
		}
	}
	return len(wrs), nil
}

// arrive accepts a message if a receive is posted.
func (q *nullQP) arrive(from *nullQP, wr *verbs.SendWR) {
	r, ok := q.queue.take()
	if !ok {
		return
	}
	wc := verbs.WC{WRID: r.WRID, QPN: q.Num(), SrcQPN: from.Num(), Opcode: verbs.WCRecv, ByteLen: uint32(wr.Length()), Imm: wr.Imm}
	if wr.Opcode == verbs.OpRDMAWriteWithImm || wr.Opcode == verbs.OpSendWithImm {
		wc.Flags = verbs.WCWithImm
	}
	if wr.Opcode == verbs.OpRDMAWriteWithImm {
		wc.Opcode = verbs.WCRecvRDMAWithImm
	} else {
		b := inlineBytes(r.SGE[0].Addr, r.SGE[0].Length)
		if q.Type() == verbs.UD {
			wc.ByteLen += verbs.GRHLen
			b = b[verbs.GRHLen:]
		}
		for k := range int(wr.NumSGE) {
			b = b[copy(b, inlineBytes(wr.SGE[k].Addr, wr.SGE[k].Length)):]
		}
	}
	q.recvs.push(wc)
}
