package ibverbx

import "ibverbx/verbs"

// chainMax is how many requests a lane collects before it rings the doorbell.
const chainMax = 32

// lane is one physical QP of a VirtualQP, with the ledger of what is in flight on it.
//
// The ledger is a ring of the requests that were given to the lane, oldest first:
//
//	head <= tail - len(stage) <= tail
//
// Those before tail-len(stage) are with the NIC; the rest is staged, waiting for the
// doorbell or refused by it. RC completes in order, so a completion of one entry ends all
// before it.
type lane struct {
	owner *VirtualQP
	qp    verbs.QP
	index uint16
	rail  uint8
	// remoteRail is the rail of the peer's end.
	remoteRail uint8
	generation uint16

	ledger     []entry
	head, tail uint32
	depth      uint32
	unsignaled int // requests since the last that asked for a completion
	// silent says that the last request that the NIC has did not ask for a completion:
	// it refused those that would have.
	silent  bool
	bytes   uint64 // in flight or staged
	refused bool   // the NIC refused the staged requests; try again later
	listed  bool   // in VirtualQP.staged
	stage   []verbs.SendWR
	records []byte // a record for every slot of the ledger

	// Receives: recvHead to recvTail are with the NIC.
	recvHead, recvTail uint32
	recvDepth          uint32
	latest             uint32 // what came last, as its scheme counts
	hungry             bool   // receives were not posted again

	counts Counts
}

// entry says what a physical request belongs to.
type entry struct {
	seq     uint32 // of the request in its send ring
	bytes   uint32
	control bool // of no request
	// DQPLB: the request carries a number.
	numbered bool
	number   uint32
}

func newLane(q *VirtualQP, index, rail, recvs int) (*lane, error) {
	r := &q.rails.rails[rail]
	cfg := &q.cfg
	qp, err := r.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: q.cq.cqs[rail], RecvCQ: q.cq.cqs[rail],
		MaxSendWR: cfg.LaneDepth, MaxRecvWR: recvs, MaxSendSGE: MaxSGE, MaxRecvSGE: MaxSGE,
		MaxInline: max(cfg.MaxInline, recordSize),
		Port:      r.cfg.Port, GID: r.cfg.GID,
	})
	if err != nil {
		return nil, err
	}
	l := &lane{
		owner: q, qp: qp, index: uint16(index), rail: uint8(rail), depth: uint32(cfg.LaneDepth),
		ledger: make([]entry, ceilPow2(cfg.LaneDepth+1)), stage: make([]verbs.SendWR, 0, chainMax),
		recvDepth: uint32(recvs),
	}
	l.records = make([]byte, len(l.ledger)*recordSize)
	return l, nil
}

// room reports whether the lane can take another request.
func (l *lane) room() bool {
	return l.tail-l.head < l.depth && len(l.stage) < cap(l.stage) && !l.refused
}

// add stages a request for seq of so many bytes and returns it to be filled in. The lane
// must have room.
func (l *lane) add(k kind, seq, bytes uint32) *verbs.SendWR {
	l.ledger[int(l.tail)&(len(l.ledger)-1)] = entry{seq: seq, bytes: bytes}
	i := len(l.stage)
	l.stage = l.stage[:i+1]
	wr := &l.stage[i]
	wr.WRID = uint64(newTag(l.generation, k, l.index, l.tail))
	l.tail++
	l.bytes += uint64(bytes)
	l.counts.Fragments++
	l.counts.Bytes += uint64(bytes)
	return wr
}

// number notes that the request that was added last carries a number.
func (l *lane) number(n uint32) {
	e := &l.ledger[int(l.tail-1)&(len(l.ledger)-1)]
	e.numbered, e.number = true, n
}

// recordBytes is where the record of a ledger entry stays until it is posted.
func (l *lane) recordBytes(n uint32) []byte {
	i := int(n) & (len(l.ledger) - 1)
	return l.records[i*recordSize:][:recordSize]
}

// ring posts the staged requests as one chain. Only the last of it, and every interval-th
// before it, asks for a completion. What the NIC refuses stays staged, with the numbers
// that it has; err is not nil if the lane cannot be used any more.
func (l *lane) ring(interval int) error {
	l.refused = false
	stage := l.stage
	for i := range stage {
		if l.unsignaled++; l.unsignaled >= interval || i == len(stage)-1 {
			stage[i].Flags |= verbs.SendSignaled
			l.unsignaled = 0
		} else {
			stage[i].Flags &^= verbs.SendSignaled
		}
	}
	n, err := l.qp.PostSend(stage)
	if n > 0 {
		l.counts.Doorbells++
	}
	if n == len(stage) {
		l.stage, l.silent = stage[:0], false
		return nil
	}
	return l.keep(n, err)
}

// keep handles a post of which only n requests were taken. If they end without asking for
// a completion the next one asks, so that nothing waits for ever.
func (l *lane) keep(n int, err error) error {
	l.counts.Refusals++
	l.unsignaled = 0
	if n > 0 {
		l.silent = l.stage[n-1].Flags&verbs.SendSignaled == 0
	}
	if l.silent {
		l.unsignaled = maxDepth
	}
	rest := copy(l.stage, l.stage[n:])
	l.stage = l.stage[:rest]
	l.refused = true
	if isBackPressure(err) {
		return nil
	}
	return err
}

// mark asks for news of requests that ended, or were flushed, without a completion: a
// request that is flushed behind them says that nothing of them is outstanding. The lane
// must be in the error state with nothing staged. If the NIC has no room it is tried
// again.
func (l *lane) mark() {
	if !l.silent || l.tail-l.head >= uint32(len(l.ledger)) {
		return
	}
	l.stage = l.stage[:1]
	l.stage[0] = verbs.SendWR{
		WRID: uint64(newTag(l.generation, kindControl, l.index, l.tail)), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
	}
	n, _ := l.qp.PostSend(l.stage)
	l.stage = l.stage[:0]
	if n == 1 {
		l.ledger[int(l.tail)&(len(l.ledger)-1)] = entry{control: true}
		l.tail++
		l.silent = false
	}
}

func ceilPow2(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}
