package softnic

import (
	"fmt"
	"sync/atomic"

	"ibverbx/internal/ring"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// firstQPN is the lowest QP number. 0 and 1 are InfiniBand's management QPs, and a few more are
// reserved as on hardware.
const firstQPN = 0x11

// qp is a queue pair. The core's lock guards it, or the gate of its pair while that is open.
//
// Its parts have their own files: qp_state.go changes its state, qp_post.go fills its queues, qp_requester.go
// sends requests, qp_completer.go handles responses, qp_responder.go serves the peer, qp_place.go places
// payloads, qp_unreliable.go receives UC and UD, and qp_flush.go flushes it. dev_prefetch.go and
// dev_landing.go handle device memory.
type qp struct {
	fixed
	pd     *pd
	nic    *NIC
	core   *core
	state  verbs.QPState
	closed bool
	sendCQ *cq
	recvCQ *cq
	srq    *srq
	attr   verbs.QPAttr

	// path leads to the peer.
	path *path
	// from is the path of the peer's last packet.
	from *path
	// lists is the set of work lists that contain the QP.
	lists listBits
	flow
	injected *injected

	// sealing is set by QPConfig.Path.Seal, nil for plain packets.
	sealing *sealing
	// assoc is the association of path, or of the peer's endpoint before path is set. It is nil for
	// plain packets and on UD.
	assoc *association

	// landings holds work deferred until device copies land, allocated on first use.
	landings *landings
	// prefetch fetches device data ahead of sending, allocated on first use.
	prefetch *prefetchers

	sendQueue
	rq recvQueue
	responder
	lineState
	// pair is q and its connected peer, nil until they have formed a pair. It changes only under the
	// core's mutex.
	pair atomic.Pointer[pair]

	// trouble is the QP's entry in the NIC's Stats.
	trouble QPStats
}

// fixed is the immutable part of a QP.
type fixed struct {
	num       uint32
	typ       verbs.QPType
	transport uint8
	// legal has bit i set if opcode i may be posted.
	legal     uint8
	signalAll bool
	// sgidIndex is the row of the GID table used by Endpoint and Connect.
	sgidIndex int
	// firstPSN is the initial PSN advertised by Endpoint.
	firstPSN roce.PSN
	// pathConfig is QPConfig.Path.
	pathConfig verbs.PathConfig
}

// sendQueue is the requester's part of a QP: a ring of work requests with four cursors,
//
//	head <= next <= max <= tail
//
// head is the oldest incomplete request, next the one being sent, max the first never sent, tail the
// first free slot. next falls behind max on a go-back. The ring is hand-written, because no container
// supports that many cursors. It starts small and grows with the number of incomplete requests.
type sendQueue struct {
	sq                            []sendWQE
	sqHead, sqNext, sqMax, sqTail uint32
	// sqUsed counts occupied slots, including requests with unpolled completions. It is allocated
	// separately because unpolled completions point to it.
	sqUsed *slotCount
	// withoutCQE counts completed requests without a completion so far.
	withoutCQE uint32
	maxSend    uint32
	sge        sgeLists
	// inline holds the bytes of INLINE requests: maxInline bytes per slot. It is nil before the first one.
	inline    []byte
	maxInline uint32

	// sqOff is the number of bytes sent of request next.
	sqOff uint32
	// snd is the next PSN to send.
	snd roce.PSN
	// una is the oldest unacknowledged PSN.
	una roce.PSN
	// maxPSN is the lowest PSN never sent.
	maxPSN roce.PSN
	// reads counts READs and atomics between head and next.
	reads uint8
	// drained is set in SQD once no request is in flight.
	drained bool

	retransmission
}

// retransmission is the part of a send queue that waits for responses and retransmits.
type retransmission struct {
	retryLeft uint8
	rnrLeft   uint8
	// rnrWait is set while the QP waits after an RNR NAK.
	rnrWait bool
	// armedUna is una when the timer was armed.
	armedUna roce.PSN
	loss     lossState
	// timerIdx is the QP's index in core.timers, -1 while its timer is stopped.
	timerIdx int
	// timerAt is the next or last time of the timer.
	timerAt int64
	// deadline is the end of the response timeout.
	deadline int64
	// lateOnce is set once a late timer has restarted the timeout.
	lateOnce bool
	// probing is set while a probe is being sent.
	probing bool
	// probed is set from a probe until the next ACK.
	probed bool
	// probePause is the delay before the next probe, 0 if disabled.
	probePause int64
}

// lineState is the part of a QP for lines on a ShmLink (shm_line.go).
type lineState struct {
	// spent counts the peer's receives used by requests of this QP since RESET, as lines and as packets.
	spent uint32
	// base is the sequence number of the first receive since RESET.
	base uint32
	// advertised is the sequence number of the first receive without a credit at the peer.
	advertised uint32
	// shortest is the number of bytes that fit every receive in the queue.
	shortest uint32
	// peerServed is the peer's count of served entries when the timer was armed.
	peerServed uint32
	// credited is set while the peer has credits.
	credited bool
	// failing is set after a request has failed, until the work list moves the QP to the error state.
	// Meanwhile the QP serves the peer's requests, but does not send and ignores responses.
	failing bool
}

// wqe returns the request with sequence number i.
func (s *sendQueue) wqe(i uint32) *sendWQE { return &s.sq[int(i)&(len(s.sq)-1)] }

// fewWR is the initial capacity of a queue in work requests. Most QPs of a process with many are idle.
const fewWR = 4

// reserve ensures capacity for n more requests.
func (s *sendQueue) reserve(n int) {
	if need := int(s.sqTail-s.sqHead) + n; need > len(s.sq) {
		s.grow(need)
	}
}

// grow resizes the ring to at least n slots.
func (s *sendQueue) grow(n int) {
	old, bytes, lists := s.sq, s.inline, s.sge.lists
	s.sq = make([]sendWQE, ring.CeilPow2(n))
	if bytes != nil {
		s.inline = make([]byte, len(s.sq)*int(s.maxInline))
	}
	if lists != nil {
		s.sge.lists = make([]sgeList, len(s.sq))
	}
	for i := s.sqHead; i != s.sqTail; i++ {
		from := int(i) & (len(old) - 1)
		*s.wqe(i) = old[from]
		if bytes != nil {
			copy(s.inlineOf(i), bytes[from*int(s.maxInline):][:s.maxInline])
		}
		if lists != nil {
			*s.listOf(i) = lists[from]
		}
	}
}

// inlineOf returns the INLINE bytes of the request with sequence number i.
func (s *sendQueue) inlineOf(i uint32) []byte {
	return s.inline[(int(i)&(len(s.sq)-1))*int(s.maxInline):][:s.maxInline]
}

// sendWQE is a posted send. It spans two cache lines; a request with one SGE uses only the first:
//
//	 0 wrid     8 remoteAddr  16 rkey   20 imm     24 length  28 first  32 last
//	36 opcode  37 flags       38 numSGE  39 placed 40 sge[0]
//	56 sge[1..3]             104 arg0              112 arg1
type sendWQE struct {
	wrid       uint64
	remoteAddr uint64
	rkey       uint32
	imm        uint32
	length     uint32
	// first and last are the PSNs of its packets, valid from the first transmission.
	first, last roce.PSN
	opcode      verbs.Opcode
	flags       verbs.SendFlags
	numSGE      uint8
	// placed is set once the payload of a WRITE is in place in the memory of a ShmLink peer.
	placed bool
	sge    [verbs.MaxSGE]verbs.SGE
	// arg0 and arg1 are the operands of an atomic, or the AH and QPN<<32|Q_Key of a datagram.
	arg0, arg1 uint64
	_          uint64
}

// set fills w with wr, a request of length bytes.
func (w *sendWQE) set(wr *verbs.SendWR, length uint32) {
	w.wrid, w.remoteAddr, w.rkey, w.imm = wr.WRID, wr.RemoteAddr, wr.RKey, wr.Imm
	w.length, w.opcode, w.flags, w.numSGE, w.placed = length, wr.Opcode, wr.Flags, wr.NumSGE, false
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

// isRequest reports whether w is a READ or an atomic, which complete with their own response.
func (w *sendWQE) isRequest() bool { return w.opcode >= verbs.OpRDMARead }

var _ verbs.QP = (*qp)(nil)

// Opcodes that may be posted, by transport (IBTA 1.4 table 38).
const (
	legalUD = 1<<verbs.OpSend | 1<<verbs.OpSendWithImm
	legalUC = legalUD | 1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMAWriteWithImm
	legalRC = legalUC | 1<<verbs.OpRDMARead | 1<<verbs.OpAtomicCmpAndSwp | 1<<verbs.OpAtomicFetchAndAdd
)

func (d *pd) createQP(cfg verbs.QPConfig) (verbs.QP, error) {
	sgidIndex, err := d.checkQPConfig(cfg)
	if err != nil {
		return nil, err
	}
	n := d.ctx.nic
	g, err := n.sealing(cfg.Path.Seal)
	if err == nil && g.any() && cfg.Type != verbs.UD {
		err = verbs.Invalidf("Seal is AnySeal: want a Seal of the peer on a %v QP", cfg.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("QPConfig.Path: %w", err)
	}
	q := &qp{
		fixed:   fixed{typ: cfg.Type, signalAll: cfg.SignalAll, sgidIndex: sgidIndex, pathConfig: cfg.Path},
		sealing: g, pd: d, nic: n, core: n.core, sendCQ: cfg.SendCQ.(*cq), recvCQ: cfg.RecvCQ.(*cq),
	}
	q.timerIdx = -1
	switch cfg.Type {
	case verbs.RC:
		q.transport, q.legal = roce.RC, legalRC
	case verbs.UC:
		q.transport, q.legal = roce.UC, legalUC
	case verbs.UD:
		q.transport, q.legal = roce.UD, legalUD
	}
	q.sqUsed = &slotCount{cq: q.sendCQ}
	q.maxSend = uint32(cfg.MaxSendWR)
	q.sge.own, q.sge.list = splitSGE(cfg.MaxSendSGE)
	q.maxInline = uint32(cfg.MaxInline)
	q.sq = make([]sendWQE, ring.CeilPow2(min(cfg.MaxSendWR, fewWR)))
	if cfg.SRQ != nil {
		q.srq = cfg.SRQ.(*srq)
	} else {
		q.rq = newRecvQueue(cfg.MaxRecvWR, cfg.MaxRecvSGE, q.recvCQ)
	}
	if q.num = n.qps.add(q); q.num == 0 {
		g.leave()
		return nil, verbs.ErrLimit
	}
	if q.srq != nil {
		q.srq.users++
	}
	q.sendCQ.users++
	q.recvCQ.users++
	q.firstPSN = n.randomPSN()
	d.qps.add(q)
	q.port().use(1)
	return q, nil
}

func (n *NIC) randomPSN() roce.PSN { return roce.PSN(n.rng.Uint32()).Add(0) }

// checkQPConfig validates a configuration and returns the QP's row of the GID table.
func (d *pd) checkQPConfig(cfg verbs.QPConfig) (sgidIndex int, err error) {
	if cfg.Type != verbs.RC && cfg.Type != verbs.UC && cfg.Type != verbs.UD {
		return 0, verbs.Invalidf("QPConfig.Type is %d: want RC, UC or UD", cfg.Type)
	}
	if !d.ctx.nic.cfg.has(cfg.Type) {
		return 0, fmt.Errorf("%w: the NIC has no %v QPs (Config.QPTypes)", verbs.ErrNotSupported, cfg.Type)
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
			return 0, verbs.Invalidf("QPConfig.SRQ is nil, closed or belongs to another PD")
		}
		if cfg.MaxRecvWR != 0 {
			return 0, verbs.Invalidf("QPConfig.MaxRecvWR is %d: with an SRQ it must be 0", cfg.MaxRecvWR)
		}
	}
	if err := checkRanges("QPConfig",
		bounded{"MaxSendWR", cfg.MaxSendWR, maxWR},
		bounded{"MaxRecvWR", cfg.MaxRecvWR, maxWR},
		bounded{"MaxSendSGE", cfg.MaxSendSGE, maxSGE},
		bounded{"MaxRecvSGE", cfg.MaxRecvSGE, maxSGE},
		bounded{"MaxInline", cfg.MaxInline, maxInline},
		bounded{"Port", int(cfg.Port), 1}); err != nil {
		return 0, err
	}
	return d.ctx.nic.sgidIndex(&cfg)
}

// sgidIndex returns the QP's row of the GID table.
func (n *NIC) sgidIndex(cfg *verbs.QPConfig) (int, error) {
	row, err := cfg.Path.Check(&verbs.PortAttr{GIDs: len(n.gids), PKeys: pkeys}, cfg.GID)
	switch {
	case err != nil || row >= 0:
		return row, err
	case cfg.GID.IsZero():
		return len(n.gids) - 1, nil // the routable address
	}
	for i, e := range n.gids {
		if e.GID == cfg.GID {
			return i, nil
		}
	}
	return 0, verbs.Invalidf("QPConfig.GID %s is not in the GID table of port 1", cfg.GID)
}

func (d *pd) ownCQ(field string, c verbs.CQ) error {
	own, ok := c.(*cq)
	if !ok || own == nil || own.ctx != d.ctx || own.closed {
		return verbs.Invalidf("QPConfig.%s is nil, closed or belongs to another context", field)
	}
	if own.overrun {
		return fmt.Errorf("QPConfig.%s: %w", field, verbs.ErrCQOverrun)
	}
	return nil
}

func (q *qp) Num() uint32        { return q.num }
func (q *qp) Type() verbs.QPType { return q.typ }

func (q *qp) State() verbs.QPState {
	q.core.mu.hold()
	defer q.core.mu.Unlock()
	return q.state
}

func (q *qp) usable() error {
	if q.closed {
		return verbs.ErrClosed
	}
	return q.pd.ctx.usable() // a closed PD has no open QP
}

func (q *qp) opError(op string, err error) error {
	return verbs.NewOpError(op, q.nic.name, q.num, err)
}

func (q *qp) Close() error {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	if !q.closed && q.attached() {
		return q.opError("close QP", fmt.Errorf("%w: it is attached to a multicast group", verbs.ErrBusy))
	}
	q.destroy()
	q.core.settle()
	return nil
}

func (q *qp) destroy() {
	if q.closed {
		return
	}
	q.reset()
	for _, g := range q.nic.joined() {
		g.drop(q)
	}
	q.closed = true
	q.sendCQ.users--
	q.recvCQ.users--
	if q.srq != nil {
		q.srq.users--
	}
	q.nic.qps.remove(q.num)
	q.pd.qps.remove(q)
	q.port().use(-1)
	q.sealing.leave()
	q.pd.ctx.purge(func(e verbs.Event) bool { return e.QP == verbs.QP(q) })
}

// raise queues an event for the QP.
func (q *qp) raise(typ verbs.EventType) {
	q.pd.ctx.raise(verbs.Event{Type: typ, QP: q})
}
