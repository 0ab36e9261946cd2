package softnic

import (
	"fmt"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// firstQPN is the first QP number of every NIC; 0 and 1 are the management QPs of
// InfiniBand, and a few more stay free as on hardware.
const firstQPN = 0x11

// qp is a queue pair. Everything in it is guarded by the core's lock.
//
// Its parts live in files of their own: state.go moves it between states, post.go
// fills its queues, requester.go sends requests, completer.go takes the answers,
// responder.go serves the peer, unreliable.go receives UC and UD, flush.go ends it.
type qp struct {
	pd        *pd
	nic       *NIC
	core      *core
	link      Link
	paced     bool // the link queues packets and may have no room
	num       uint32
	typ       verbs.QPType
	state     verbs.QPState
	transport uint8
	legal     uint8 // bit i: opcode i may be posted
	signalAll bool
	closed    bool
	sendCQ    *cq
	recvCQ    *cq
	srq       *srq
	sgidIndex int
	attr      verbs.QPAttr
	firstPSN  roce.PSN // what Endpoint tells the peer

	path   *path  // to the peer
	from   *path  // the last path that a packet of the peer came on
	seg    uint32 // payload bytes of a packet
	window uint32 // packets unacknowledged at the most
	// longWindow is how many there are at the most for a full packet to follow.
	longWindow uint32
	// readAhead is how many packets one READ request asks for; 0 is without limit.
	readAhead uint32
	// ackMask makes a long message ask for acknowledgements on its way, often enough
	// for the window never to close for want of one: when the packets before it in the
	// message are ackMask, or as many more as a multiple of ackMask + 1.
	ackMask roce.PSN

	inTx       bool // in core.tx
	inLater    bool // in core.later
	inBroken   bool // in core.broken
	ackListed  bool // in core.acks
	watched    bool // in core.watch
	timerIdx   int  // in core.timers
	timerAt    int64
	awaitsRoom bool    // in NIC.waiting
	starved    bool    // in budget.starved
	charged    uint32  // packets that count in the NIC's budget, and in to
	to         *budget // that of the peer's NIC, nil if it is not known
	injected   *injected

	sendQueue
	rq recvQueue
	responder
}

// sendQueue is the requester's part of a QP: a ring of work requests with four cursors,
//
//	head <= next <= max <= tail
//
// head is the oldest request that has not completed, next the one being sent, max the
// first that was never sent, tail the first free slot. next falls behind max when the
// requester goes back. sqUsed slots before tail are not free: their completion has not
// been polled.
type sendQueue struct {
	sq                    []sendWQE
	sqHead, sqNext, sqMax uint32
	sqTail, unreported    uint32
	sqUsed                *uint32 // on its own: completions that were not polled point to it
	maxSend               uint32
	maxSendSGE            uint8
	inline                []byte // maxInline bytes per slot
	maxInline             uint32

	sqOff  uint32   // bytes of request next that were sent
	snd    roce.PSN // the next PSN to send
	una    roce.PSN // the oldest PSN that is not acknowledged
	maxPSN roce.PSN // the first PSN that was never sent

	reads     uint8 // READs and atomics between head and next
	retryLeft uint8
	rnrLeft   uint8
	rnrWait   bool
	wentBack  bool // went back for a gap at wentAt
	wentAt    roce.PSN
	armedUna  roce.PSN // una when the timer was armed
	deadline  int64    // when the peer's time is up
	excused   bool     // the timer was late, and the peer's time began anew
	// probePause is the time to the next probe, 0 for none; probing is set while one is
	// sent, probed until something was acknowledged since.
	probePause      int64
	probing, probed bool
	drained         bool // SQD: nothing is in flight
}

// sendWQE is a posted send, in two cache lines of which a request with one SGE needs
// only the first:
//
//	 0 wrid     8 remoteAddr  16 rkey   20 imm     24 length  28 first  32 last
//	36 opcode  37 flags       38 numSGE            40 sge[0]
//	56 sge[1..3]             104 arg0              112 arg1
type sendWQE struct {
	wrid        uint64
	remoteAddr  uint64
	rkey        uint32
	imm         uint32
	length      uint32
	first, last roce.PSN // valid from the first transmission on
	opcode      verbs.Opcode
	flags       verbs.SendFlags
	numSGE      uint8
	sge         [verbs.MaxSGE]verbs.SGE
	// arg0 and arg1 are the operands of an atomic, or AH and QPN<<32|Q_Key of a
	// datagram.
	arg0, arg1 uint64
	_          uint64
}

// set makes w the request wr of length bytes.
func (w *sendWQE) set(wr *verbs.SendWR, length uint32) {
	w.wrid, w.remoteAddr, w.rkey, w.imm = wr.WRID, wr.RemoteAddr, wr.RKey, wr.Imm
	w.length, w.opcode, w.flags, w.numSGE = length, wr.Opcode, wr.Flags, wr.NumSGE
	w.sge[0] = wr.SGE[0]
	if wr.NumSGE > 1 {
		w.sge = wr.SGE
	}
	switch {
	case wr.Opcode >= verbs.OpAtomicCmpAndSwp:
		w.arg0, w.arg1 = wr.CompareAdd, wr.Swap
	case wr.AH != 0:
		w.arg0, w.arg1 = uint64(wr.AH), uint64(wr.RemoteQPN)<<32|uint64(wr.RemoteQKey)
	}
}

// isRequest reports whether w is a READ or an atomic, which end with an answer of
// their own.
func (w *sendWQE) isRequest() bool { return w.opcode >= verbs.OpRDMARead }

var _ verbs.QP = (*qp)(nil)

// Opcodes that may be posted, by transport (IBTA 1.4 table 38).
const (
	legalUD = 1<<verbs.OpSend | 1<<verbs.OpSendWithImm
	legalUC = legalUD | 1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMAWriteWithImm
	legalRC = legalUC | 1<<verbs.OpRDMARead | 1<<verbs.OpAtomicCmpAndSwp | 1<<verbs.OpAtomicFetchAndAdd
)

func (d *pd) createQP(cfg verbs.QPConfig) (*qp, error) {
	sgidIndex, err := d.checkQPConfig(cfg)
	if err != nil {
		return nil, err
	}
	n := d.ctx.nic
	q := &qp{
		pd: d, nic: n, core: n.core, link: n.link, typ: cfg.Type, signalAll: cfg.SignalAll,
		sendCQ: cfg.SendCQ.(*cq), recvCQ: cfg.RecvCQ.(*cq), sgidIndex: sgidIndex, timerIdx: -1,
		paced: n.core.timed,
	}
	switch cfg.Type {
	case verbs.RC:
		q.transport, q.legal = roce.RC, legalRC
	case verbs.UC:
		q.transport, q.legal = roce.UC, legalUC
	case verbs.UD:
		q.transport, q.legal = roce.UD, legalUD
	}
	q.sqUsed = new(uint32)
	q.maxSend = uint32(cfg.MaxSendWR)
	q.maxSendSGE = uint8(max(cfg.MaxSendSGE, 1))
	q.maxInline = uint32(cfg.MaxInline)
	q.sq = make([]sendWQE, roundUp(max(cfg.MaxSendWR, 1)))
	q.inline = make([]byte, len(q.sq)*cfg.MaxInline)
	if cfg.SRQ != nil {
		q.srq = cfg.SRQ.(*srq)
	} else {
		q.rq = newRecvQueue(cfg.MaxRecvWR, cfg.MaxRecvSGE)
	}
	if q.num = n.qps.add(q); q.num == 0 {
		return nil, verbs.ErrLimit
	}
	if q.srq != nil {
		q.srq.users++
	}
	q.sendCQ.users++
	q.recvCQ.users++
	q.firstPSN = n.randomPSN()
	d.qps.add(q)
	return q, nil
}

func (n *NIC) randomPSN() roce.PSN { return roce.PSN(n.rng.Uint32()).Add(0) }

// checkQPConfig returns the row of the GID table that the QP uses, or what is wrong.
func (d *pd) checkQPConfig(cfg verbs.QPConfig) (sgidIndex int, err error) {
	if cfg.Type != verbs.RC && cfg.Type != verbs.UC && cfg.Type != verbs.UD {
		return 0, verbs.Invalidf("QPConfig.Type is %d: want RC, UC or UD", cfg.Type)
	}
	if err := d.ownCQ("SendCQ", cfg.SendCQ); err != nil {
		return 0, err
	}
	if err := d.ownCQ("RecvCQ", cfg.RecvCQ); err != nil {
		return 0, err
	}
	if cfg.SRQ != nil {
		s, ok := cfg.SRQ.(*srq)
		if !ok || s == nil || s.pd != d || s.closed {
			return 0, verbs.Invalidf("QPConfig.SRQ is nil, closed or not of this PD")
		}
		if cfg.MaxRecvWR != 0 {
			return 0, verbs.Invalidf("QPConfig.MaxRecvWR is %d: with an SRQ it must be 0", cfg.MaxRecvWR)
		}
	}
	for _, f := range [...]struct {
		name       string
		value, max int
	}{
		{"MaxSendWR", cfg.MaxSendWR, maxWR},
		{"MaxRecvWR", cfg.MaxRecvWR, maxWR},
		{"MaxSendSGE", cfg.MaxSendSGE, verbs.MaxSGE},
		{"MaxRecvSGE", cfg.MaxRecvSGE, verbs.MaxSGE},
		{"MaxInline", cfg.MaxInline, maxInline},
		{"Port", int(cfg.Port), 1},
	} {
		if f.value < 0 || f.value > f.max {
			return 0, verbs.Invalidf("QPConfig.%s is %d: want 0 to %d", f.name, f.value, f.max)
		}
	}
	if cfg.GID.IsZero() {
		return len(d.ctx.nic.gids) - 1, nil // the routable address
	}
	for i, e := range d.ctx.nic.gids {
		if e.GID == cfg.GID {
			return i, nil
		}
	}
	return 0, verbs.Invalidf("QPConfig.GID %s is not in the GID table of port 1", cfg.GID)
}

func (d *pd) ownCQ(field string, c verbs.CQ) error {
	own, ok := c.(*cq)
	if !ok || own == nil || own.ctx != d.ctx || own.closed {
		return verbs.Invalidf("QPConfig.%s is nil, closed or of another context", field)
	}
	if own.overrun {
		return fmt.Errorf("QPConfig.%s: %w", field, verbs.ErrCQOverrun)
	}
	return nil
}

func (q *qp) Num() uint32        { return q.num }
func (q *qp) Type() verbs.QPType { return q.typ }

func (q *qp) State() verbs.QPState {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	return q.state
}

func (q *qp) usable() error {
	if q.closed {
		return verbs.ErrClosed
	}
	return q.pd.usable()
}

func (q *qp) opError(op string, err error) error {
	return verbs.NewOpError(op, q.nic.name, q.num, err)
}

func (q *qp) Close() error {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	q.destroy()
	q.core.settle()
	return nil
}

func (q *qp) destroy() {
	if q.closed {
		return
	}
	q.reset()
	q.closed = true
	q.sendCQ.users--
	q.recvCQ.users--
	if q.srq != nil {
		q.srq.users--
	}
	q.nic.qps.remove(q.num)
	q.pd.qps.remove(q)
	q.pd.ctx.purge(func(e verbs.Event) bool { return e.QP == verbs.QP(q) })
}

// raise queues an event about the QP.
func (q *qp) raise(typ verbs.EventType) {
	q.pd.ctx.raise(verbs.Event{Type: typ, QP: q})
}
