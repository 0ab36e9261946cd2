package ibverbx

import (
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// chainMax is how many requests a doorbell hands over at the most.
const chainMax = 32

// lane is one physical QP of a VirtualQP, with the ledger of what is in flight on it.
//
// The ledger is a ring of the requests that were given to the lane, oldest first:
//
//	head <= posted <= tail
//
// Those below posted are with the NIC; the rest is staged, waiting for the doorbell or
// refused by it. RC completes in order, so a completion of one entry ends all before it.
// The physical requests are made of the ledger at the doorbell (render.go), in memory that
// all lanes share: sixteen lanes with a chain each would not fit the first-level cache.
type lane struct {
	ledger             []entry
	head, posted, tail uint32
	depth              uint32
	base               tag    // generation and index: what all its tags have in common
	bytes              uint64 // in flight or staged
	index              uint16
	rail               uint8
	role               role
	remoteRail         uint8 // of the peer's end
	barred             bar   // why it takes no requests, 0 if it does
	listed             bool  // in VirtualQP.staged
	// silent says that the last request that the NIC has did not ask for a completion:
	// it refused those that would have.
	silent     bool
	generation uint16
	num        uint32 // of the QP
	owner      *VirtualQP
	qp         verbs.QP

	// Receives: recvHead to recvTail are with the NIC.
	recvHead, recvTail uint32
	recvDepth          uint32
	latest             uint32 // what came last, as its scheme counts
	hungry             bool   // receives were not posted again

	speed  speed
	counts Counts
	life   life
}

// entry says what a physical request is: enough to make it, and to make it again.
//
//	   31    | 30   24 | 23   16 | 15        0
//	consumes |  flags  |  kind   |    slot        head
//
// consumes says that it uses up a receive of the peer.
type entry struct {
	head  uint32
	off   uint32 // of its bytes in the request
	bytes uint32
	imm   uint32 // as the NIC gets it
}

const entryConsumes = 1 << 31

func entryHead(slot uint16, k kind, flags verbs.SendFlags) uint32 {
	return uint32(flags)<<24 | uint32(k)<<16 | uint32(slot)
}

// slot is the place of the request in its send ring.
func (e *entry) slot() uint16   { return uint16(e.head) }
func (e *entry) kind() kind     { return kind(e.head >> 16) }
func (e *entry) consumes() bool { return e.head&entryConsumes != 0 }

// bar is a reason why a lane takes no requests.
type bar uint8

const (
	barRefused  bar = 1 << iota // the NIC refused the staged requests; try again later
	barOut                      // out of service: see life
	barReserved                 // what is left of another lane is to be moved here
)

// role is what a lane carries.
type role uint8

const (
	roleData role = iota
	roleMessage
	roleNotify
)

var roleNames = [...]string{"data", "message", "notify"}

// laneConfig says what a lane is made for.
type laneConfig struct {
	index, rail int
	role        role
	recvs       int       // depth of its receive queue
	srq         verbs.SRQ // or where its receives come from
}

func newLane(q *VirtualQP, lc laneConfig) (*lane, error) {
	qp, err := q.createQP(lc)
	if err != nil {
		return nil, err
	}
	l := &lane{
		owner: q, qp: qp, num: qp.Num(), index: uint16(lc.index), rail: uint8(lc.rail), role: lc.role, depth: uint32(q.cfg.LaneDepth),
		ledger: q.newLedger(lc.index), recvDepth: uint32(lc.recvs),
	}
	l.life.home = l.rail
	l.base = newTag(l.generation, 0, l.index, 0)
	return l, nil
}

// createQP makes the physical QP of a lane.
func (q *VirtualQP) createQP(lc laneConfig) (verbs.QP, error) {
	r := &q.rails.rails[lc.rail]
	return r.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: q.cq.cqs[lc.rail], RecvCQ: q.cq.cqs[lc.rail], SRQ: lc.srq,
		MaxSendWR: q.cfg.LaneDepth, MaxRecvWR: lc.recvs, MaxSendSGE: MaxSGE, MaxRecvSGE: MaxSGE,
		MaxInline: max(q.cfg.MaxInline, recordSize),
		Port:      r.cfg.Port, GID: r.cfg.GID,
	})
}

// ledgerShift is by how many entries the ledger of a lane is shifted against that of the
// one before it: five cache lines. Lanes are used in turn, so their ledgers are written at
// the same place at the same time; if those places were a multiple of 4 KiB apart they
// would share one set of the first-level cache, which has room for twelve.
const ledgerShift = 20

// ledgerSpare is how many entries more than its depth a ledger holds: a mark (mark).
const ledgerSpare = 1

// newLedger returns the ledger of a lane.
func (q *VirtualQP) newLedger(index int) []entry {
	n := ring.CeilPow2(q.cfg.LaneDepth + ledgerSpare)
	shift := index * ledgerShift % 256
	return make([]entry, shift+n+256)[shift:][:n:n]
}

// grow makes the ledger hold n entries more than it has.
func (l *lane) grow(n uint32) {
	if l.tail-l.head+n <= uint32(len(l.ledger)) {
		return
	}
	larger := make([]entry, ring.CeilPow2(int(l.tail-l.head+n)))
	for i := l.head; i != l.tail; i++ {
		larger[int(i)&(len(larger)-1)] = *l.at(i)
	}
	l.ledger = larger
}

// room reports whether the lane can take another request.
func (l *lane) room() bool { return l.tail-l.head < l.depth && l.barred == 0 }

// idle reports whether nothing is in flight or staged.
func (l *lane) idle() bool { return l.head == l.tail }

// at returns an entry of the ledger.
func (l *lane) at(n uint32) *entry { return &l.ledger[int(n)&(len(l.ledger)-1)] }

// add gives a request to a lane that has room. The entry is written in place: one that is
// put together elsewhere and copied as a whole waits for its parts to leave the store
// buffer, which took two thirds of the time of a fragment.
func (q *VirtualQP) add(l *lane, head, off, bytes, imm uint32) {
	e := l.at(l.tail)
	e.head, e.off, e.bytes, e.imm = head, off, bytes, imm
	q.put(l, bytes)
}

// put stages the entry at tail, which is filled in, and rings if that makes a full chain.
func (q *VirtualQP) put(l *lane, bytes uint32) {
	l.tail++
	l.bytes += uint64(bytes)
	q.inflight++
	if !l.listed {
		q.list(l)
	} else if l.tail-l.posted >= chainMax {
		q.ringLane(l)
	}
}

// list notes that a lane has something staged.
func (q *VirtualQP) list(l *lane) {
	l.listed = true
	q.staged = append(q.staged, l)
}

// ringLane posts what a lane has staged, in chains. What the NIC refuses stays staged. A
// lane that cannot be used any more fails the VirtualQP, at the end of dispatch and not in
// the midst of it.
func (q *VirtualQP) ringLane(l *lane) {
	l.barred &^= barRefused
	for l.posted != l.tail {
		// What was moved here may be more than the NIC takes at once; a chain that it took
		// in part would be silent with nothing behind it.
		room := l.depth - min(l.depth, l.posted-l.head)
		if room == 0 {
			return
		}
		chain := q.chain[:min(l.tail-l.posted, chainMax, room)]
		bytes, consuming := q.render(l, chain)
		n, err := l.qp.PostSend(chain)
		if n < len(chain) {
			if err = l.keep(chain, n, err); err != nil && q.brokenLane == nil {
				q.brokenLane, q.brokenErr = l, err
			}
			return
		}
		l.posted += uint32(n)
		l.silent = false
		l.counts.Doorbells++
		l.counts.Fragments += uint64(n)
		l.counts.Bytes += bytes
		l.life.sent += consuming
	}
	l.counts.HighWater = max(l.counts.HighWater, int(l.tail-l.head))
}

// keep handles a post of which only n requests were taken. If they end without asking for
// a completion the next one asks, so that nothing waits for ever. err comes back if the
// lane cannot be used any more.
func (l *lane) keep(chain []verbs.SendWR, n int, err error) error {
	l.counts.Refusals++
	if n > 0 {
		l.silent = chain[n-1].Flags&verbs.SendSignaled == 0
		l.counts.Doorbells++
		l.counts.Fragments += uint64(n)
	}
	for range n {
		e := l.at(l.posted)
		l.counts.Bytes += uint64(e.bytes)
		l.life.sent += e.head >> 31
		l.posted++
	}
	l.barred |= barRefused
	if isBackPressure(err) {
		return nil
	}
	return err
}

// mark asks for news of requests that ended, or were flushed, without a completion: a
// request that is flushed behind them says that nothing of them is outstanding. The lane
// must be in the error state with nothing staged. If the NIC has no room it is tried
// again.
func (q *VirtualQP) mark(l *lane) {
	if !l.silent || l.tail-l.head >= uint32(len(l.ledger)) {
		return
	}
	chain := q.chain[:1]
	chain[0] = verbs.SendWR{WRID: uint64(l.base | kindControl.tag() | tag(l.tail)), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	if n, _ := l.qp.PostSend(chain); n == 1 {
		*l.at(l.tail) = entry{head: entryHead(0, kindControl, 0)}
		l.tail++
		l.posted++
		q.inflight++
		l.silent = false
	}
}
