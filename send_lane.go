package ibverbx

import (
	"errors"
	"math/bits"
	"runtime"
	"slices"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// chainMax is the maximum number of requests per doorbell: a run and the record of its first message.
const chainMax = runMax + 1

// lane is one physical QP of a VirtualQP, with the ledger of its requests: a ring, oldest first.
//
//	head <= posted <= tail
//
// Entries below posted are on the NIC. The rest are staged: they wait for the doorbell, or the NIC refused them. RC
// completes in order, so a completion retires its entry and all earlier ones. The doorbell renders physical requests
// from the ledger (send_doorbell.go); sender.fill and sender.postLaneShare build both together. All lanes share the
// memory of chains, because sixteen chains would not fit the L1 cache.
type lane struct {
	// ledger is the ring; its length is a power of two.
	ledger     []entry
	head       uint32 // oldest entry
	posted     uint32 // oldest entry that the NIC does not have
	tail       uint32 // next entry
	capacity   uint32 // maximum number of entries in the ledger, at most depth
	depth      uint32 // Config.LaneDepth: capacity of the NIC's queue
	base       tag    // common part of all tags of this generation: generation and index
	bytes      uint64 // sum over all entries
	index      uint16 // index in setup.all
	rail       uint8  // the QP's rail; written under VirtualQP.mu
	role       role
	remoteRail uint8 // the rail of the peer's QP
	// blocked holds the reasons why the lane rejects requests; 0 if it accepts them.
	blocked blockReasons
	listed  bool // the lane is in sender.staged
	// unsignaledTail is set if the last request accepted by the NIC is unsignaled, because the NIC refused the
	// signaled ones behind it.
	unsignaledTail bool
	// generation counts the lane's QPs, modulo 2^16. It is written under VirtualQP.mu.
	generation uint16
	num        uint32     // QP number; written under VirtualQP.mu
	owner      *VirtualQP // receives the QP's completions
	qp         verbs.QP
	queue      *dataQueue // the pool's SRQ of qp, or nil

	recvHead     uint32 // oldest posted receive
	recvTail     uint32 // next receive
	recvDepth    uint32 // capacity of the receive queue; 0 with an SRQ
	recvLow      uint32 // number of consumed receives that are reposted together
	latest       uint64 // number of the latest message, in the terms of the scheme
	lastRecorded int64  // Tally: the last message number that the receiver will know from the lane, or noNumber
	// starved is set while receives are not reposted. receiver.starved counts these lanes.
	starved bool

	estimate rateEstimate // for TwoChoices
	counts   counters
	recovery laneRecovery // state of failover
}

// entry is a request on a lane. Together with its slot it is enough to render the physical request, even repeatedly.
//
//	31    | 30   24 | 23   16 | 15        0
//	consumes |  flags  |  kind   |    slot        head
//
// consumes is set if the request consumes a receive at the peer.
//
// Entries are written field by field in place. A copied struct would wait for its parts to leave the store buffer,
// which took two thirds of the time of a fragment.
type entry struct {
	head  uint32
	off   uint32 // offset of the bytes in the request
	bytes uint32
	imm   uint32 // immediate, as passed to the NIC
}

const entryConsumes = 1 << 31

func entryHead(slot uint16, k kind, flags verbs.SendFlags) uint32 {
	return uint32(flags)<<24 | uint32(k)<<16 | uint32(slot)
}

// slot is the index of the request in its send ring.
func (e *entry) slot() uint16   { return uint16(e.head) }
func (e *entry) kind() kind     { return kind(e.head >> 16) }
func (e *entry) consumes() bool { return e.head&entryConsumes != 0 }

// blockReasons is a set of reasons why a lane rejects requests.
type blockReasons uint8

const (
	blockRefused     blockReasons = 1 << iota // The NIC refused staged requests, which are retried later.
	blockDown                                 // The lane is out of service; see laneRecovery.
	blockReserved                             // Another lane's entries are about to move here.
	blockJustRefused                          // The NIC refused in this call, which does not retry; see sender.ring.
	blockNoKey                                // The request being dispatched lacks a key for the lane's rails; see sender.pick.
)

// role is a lane's purpose.
type role uint8

const (
	roleData role = iota
	roleMessage
	roleNotify
)

var roleNames = [...]string{"data", "message", "notify"}

// laneConfig configures a new lane.
type laneConfig struct {
	index int
	rail  int
	role  role
	recvs int // depth of the receive queue
	// ledger is the lane's first ledger.
	ledger []entry
}

func newLane(u *setup, lc laneConfig) (*lane, error) {
	qp, queue, err := u.createQP(lc)
	if u.cfg.Control != nil && errors.Is(err, verbs.ErrDeviceFatal) {
		qp, err = absentQP{err}, nil // failover creates the QP once the device works again
	}
	if err != nil {
		return nil, err
	}
	l := &lane{
		owner: u.owner, qp: qp, queue: queue, num: qp.Num(), lastRecorded: noNumber, index: uint16(lc.index), rail: uint8(lc.rail), role: lc.role,
		depth: uint32(u.cfg.LaneDepth), recvDepth: uint32(lc.recvs), recvLow: uint32(min(chainMax, (lc.recvs+1)/2)),
	}
	l.setLedger(lc.ledger)
	l.recovery.home = l.rail
	l.base = newTag(l.generation, 0, l.index, 0)
	return l, nil
}

// createQP creates a lane's physical QP, after any objects that its rail lacks. queue is the QP's SRQ in the pool, or
// nil.
func (u *setup) createQP(lc laneConfig) (qp verbs.QP, queue *dataQueue, err error) {
	if err := u.cq.revive(lc.rail); err != nil {
		return nil, nil, err
	}
	cfg := u.qpConfig(lc)
	switch u.srqOf(lc.role) {
	case engineReceives:
		cfg.SRQ = u.shared.rails[lc.rail].srq
	case dataReceives:
		if queue, err = u.pool.join(lc.rail); err != nil {
			return nil, nil, err
		}
		cfg.SRQ = queue.srq
	case ownReceives:
	}
	if qp, err = u.rails.createQP(lc.rail, cfg); err != nil && queue != nil {
		u.pool.leaveQueue(queue)
		u.pool.settle()
		return nil, nil, err
	}
	return qp, queue, err
}

// qpConfig configures a lane's QP without an SRQ.
func (u *setup) qpConfig(lc laneConfig) verbs.QPConfig {
	cq := u.cq.cqs[lc.rail]
	return verbs.QPConfig{
		SendCQ: cq, RecvCQ: cq, MaxSendWR: u.cfg.LaneDepth, MaxRecvWR: lc.recvs, MaxInline: u.cfg.MaxInline,
		Path: verbs.PathConfig{Seal: u.cfg.Seal},
	}
}

// sealed reports whether a rail's packets are encrypted and authenticated.
func (u *setup) sealed(rail int) bool {
	return u.cfg.Seal != nil || u.rails.rails[rail].cfg.Path.Seal != nil
}

// ledgerShift is the offset between the ledgers of neighboring lanes, in entries: five cache lines. Round-robin
// writes all ledgers at the same index at about the same time. At a distance of 4 KiB, these entries would share one
// set of the L1 cache, which holds twelve lines.
const ledgerShift = 20

// ledgerSpare is the number of entries beyond a ledger's capacity: one for sender.postMarker.
const ledgerSpare = 1

// firstLedgers allocates ledgers of one chain for all lanes, ledgerShift apart.
func firstLedgers(lanes []laneConfig, depth int) {
	n := ring.CeilPow2(min(depth, chainMax) + ledgerSpare)
	all := make([]entry, len(lanes)*(n+ledgerShift))
	for i := range lanes {
		lanes[i].ledger = all[i*(n+ledgerShift):][:n:n]
	}
}

// newLedger returns a full-size ledger for a lane.
func newLedger(index, depth int) []entry {
	n := ring.CeilPow2(depth + ledgerSpare)
	shift := index * ledgerShift % 256
	return make([]entry, shift+n+256)[shift:][:n:n]
}

// errState moves the QP to ERR, so that the NIC flushes its requests. If that fails, the QP is in ERR already, or
// destroyed.
func (l *lane) errState() { _ = l.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) }

// resetState moves the QP to RESET for good. If that fails, the next generation destroys the QP.
func (l *lane) resetState() {
	if err := l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err == nil || errors.Is(err, verbs.ErrDeviceFatal) {
		l.owner.setup.pool.leave(l)
	}
}

// out reports whether the lane is out of service.
func (l *lane) out() bool { return l.blocked&blockDown != 0 }

// room reports whether the lane accepts another request.
func (l *lane) room() bool { return l.tail-l.head < l.capacity && l.blocked == 0 }

func (l *lane) setLedger(ledger []entry) {
	l.ledger, l.capacity = ledger, min(l.depth, uint32(len(ledger)-ledgerSpare))
}

// move replaces the ledger and copies its entries.
func (l *lane) move(ledger []entry) {
	for i := l.head; i != l.tail; i++ {
		ledger[int(i)&(len(ledger)-1)] = *l.at(i)
	}
	l.setLedger(ledger)
}

// idle reports whether the ledger is empty.
func (l *lane) idle() bool { return l.head == l.tail }

// load returns the number of entries in the ledger.
func (l *lane) load() uint32 { return l.tail - l.head }

func (l *lane) at(n uint32) *entry { return &l.ledger[int(n)&(len(l.ledger)-1)] }

// put adds an entry. The ledger must not be full.
func (l *lane) put(head, off, bytes, imm uint32) {
	e := l.at(l.tail)
	e.head, e.off, e.bytes, e.imm = head, off, bytes, imm
	l.tail++
	l.bytes += uint64(bytes)
}

// pop removes the oldest entry. The NIC must not hold any entry.
func (l *lane) pop() entry {
	e := *l.at(l.head)
	l.head++
	l.posted = l.head
	l.bytes -= uint64(e.bytes)
	return e
}

// unstage removes the newest entry, which must be staged.
func (l *lane) unstage() *entry {
	l.tail--
	e := l.at(l.tail)
	l.bytes -= uint64(e.bytes)
	return e
}

// grow enlarges the ledger for n more entries.
func (l *lane) grow(n uint32) {
	if l.load()+n <= uint32(len(l.ledger)) {
		return
	}
	l.move(make([]entry, ring.CeilPow2(int(l.load()+n))))
}

// doubtful counts the entries on the NIC that consume a receive at the peer.
func (l *lane) doubtful() (n uint32) {
	for i := l.head; i != l.posted; i++ {
		n += l.at(i).head >> 31
	}
	return n
}

// settle removes the entries that have completed at the peer and keeps the rest in order, staged. The lane's
// generation must be out of service on both sides. The first arrived entries that consume a receive have arrived, and
// so has everything before them. A READ is retried, because its response may be lost. An atomic on the NIC is in
// doubt and fails. settle returns the number of removed entries, how many of them were SENDs or atomics, and whether
// an atomic is in doubt.
func (l *lane) settle(arrived uint32, sends []sendSlot) (ended, messages int, inDoubt bool) {
	end := l.head // one after the last entry that arrived
	for n := l.head; arrived > 0; n++ {
		if l.at(n).consumes() {
			arrived--
			end = n + 1
		}
	}
	keep := l.head
	for n := l.head; n != l.tail; n++ {
		e := *l.at(n)
		s := &sends[int(e.slot())&(len(sends)-1)]
		done := int32(end-n) > 0 && s.wire != verbs.OpRDMARead
		if e.kind() == kindAtomic && n-l.head < l.posted-l.head {
			inDoubt = true
			s.fail(verbs.StatusRetryExcErr, 0)
			s.doubt = true
			done = true
		}
		if !done {
			*l.at(keep) = e
			keep++
			continue
		}
		if e.kind() >= kindMessage {
			messages++
		}
		s.pending--
		l.bytes -= uint64(e.bytes)
		ended++
	}
	l.tail, l.posted = keep, l.head
	return ended, messages, inDoubt
}

// laneSet is a bit set of lane indices of fixed size.
type laneSet []uint64

// newLaneSet returns an empty set for indices below n.
func newLaneSet(n int) laneSet { return make(laneSet, (n+63)/64) }

func (s laneSet) add(lane uint16)      { s[lane>>6] |= 1 << (lane & 63) }
func (s laneSet) remove(lane uint16)   { s[lane>>6] &^= 1 << (lane & 63) }
func (s laneSet) has(lane uint16) bool { return s[lane>>6]&(1<<(lane&63)) != 0 }

// first returns the lowest index in the set, or -1 if the set is empty.
func (s laneSet) first() int {
	for i, w := range s {
		if w != 0 {
			return i<<6 + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// moveTo moves all indices to an empty set of the same size and returns their number.
func (s laneSet) moveTo(to laneSet) (n int) {
	for i, w := range s {
		n += bits.OnesCount64(w)
		to[i], s[i] = w, 0
	}
	return n
}

// needsReceives reports whether enough receives were consumed to be worth a repost.
func (l *lane) needsReceives() bool { return l.recvDepth-(l.recvTail-l.recvHead) >= l.recvLow }

// A tag is the wr_id of a physical request of a VirtualQP, unless it is a passthrough. Routing needs only the tag,
// the rail and the QP number of a completion. It never reads the opcode, which is invalid in a failed completion
// (ibv_poll_cq(3)).
//
//	63         48 | 47   44 | 43       32 | 31             0
//	generation  |  kind   |    lane     |      entry
//
// entry is the number of the request in its lane's ledger, modulo 2^32.
type tag uint64

// kind is the kind of a physical request.
type kind uint8

const (
	kindPlain   kind = iota + 1 // a fragment of contiguous memory
	kindData                    // any other fragment
	kindNotify                  // an empty WRITE_WITH_IMM that notifies the receiver
	kindRecord                  // a Tally record that notifies the receiver
	kindMessage                 // a SEND on the message lane
	kindAtomic                  // a FETCH_AND_ADD or CMP_AND_SWP
	kindRecv                    // a receive
	kindControl                 // an engine request: a marker
	kindProbe                   // an engine request: a probe of the path
)

// maxLanes is the limit of a tag's lane field.
const maxLanes = 1 << 12

// maxEntry is the limit and mask of a tag's entry field.
const maxEntry = 1<<32 - 1

func newTag(generation uint16, k kind, lane uint16, entry uint32) tag {
	return tag(generation)<<48 | tag(k)<<44 | tag(lane)<<32 | tag(entry)
}

// tag returns the kind as part of a tag.
func (k kind) tag() tag { return tag(k) << 44 }

func (t tag) kind() kind    { return kind(t >> 44 & 0xf) }
func (t tag) lane() uint16  { return uint16(t>>32) & (maxLanes - 1) }
func (t tag) entry() uint32 { return uint32(t) }

// owns reports whether a tag belongs to the lane's current generation.
func (l *lane) owns(t tag) bool { return t&^(kind(0xf).tag()|maxEntry) == l.base }

// drainTurns bounds the polls of a closing VirtualQP for its lanes' completions. A software NIC has them immediately,
// others within microseconds.
const drainTurns = 10_000

// drain flushes all lanes before their QPs are destroyed, so that receives from an SRQ are returned. Destroying a QP
// would drop its completions, and their receives with them.
func (q *VirtualQP) drain() {
	for _, l := range q.setup.all {
		l.errState()
	}
	q.mu.Lock()
	q.failover.state = stateClosed // flushed requests are not a failure
	q.mu.Unlock()
	c := q.setup.cq
	for range drainTurns {
		empty := true
		for rail, cq := range c.cqs {
			got, err := cq.Poll(c.buf[:])
			if got > 0 {
				empty = false
				c.process(rail, c.buf[:got], nil, 0) // other VirtualQPs' completions are kept
			}
			if err != nil && c.err == nil {
				c.err = err
			}
		}
		if empty && !slices.ContainsFunc(q.setup.all, (*lane).hasOutstanding) {
			return
		}
		if empty {
			runtime.Gosched()
		}
	}
}

// hasOutstanding reports whether the NIC has not returned all of the lane's posted requests.
func (l *lane) hasOutstanding() bool {
	v := &l.recovery
	return v.state <= laneDying && l.head != l.posted && (!v.failing || v.drained != l.posted)
}
