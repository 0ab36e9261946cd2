package ibverbx

import (
	"errors"
	"math/bits"
	"runtime"
	"slices"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// chainMax is how many requests one doorbell hands over at most: a run and the record of its first message.
const chainMax = runMax + 1

// lane is one physical QP of a VirtualQP, with the ledger of its requests.
//
// The ledger is a ring of the requests that were given to the lane, oldest first:
//
//	head <= posted <= tail
//
// The NIC has those below posted. The others are staged: they wait for the doorbell, or the NIC
// refused them. RC completes in order, so a completion of one entry ends all entries before it.
// The physical requests are rendered from the ledger at the doorbell (send_doorbell.go), or made together with
// it (sender.fill, sender.postLaneShare), in memory that all lanes share: chains of sixteen lanes would not fit the first-level cache.
type lane struct {
	// ledger is the ring. Its length is a power of two.
	ledger     []entry
	head       uint32 // the number of the oldest entry
	posted     uint32 // the number of the oldest entry that the NIC does not have
	tail       uint32 // the number of the next entry
	capacity   uint32 // how many entries the ledger takes, at most depth
	depth      uint32 // Config.LaneDepth: how many entries the NIC takes
	base       tag    // what all tags of this generation have in common: generation and index
	bytes      uint64 // the sum over all entries
	index      uint16 // the place in setup.all
	rail       uint8  // the rail of the QP; written under VirtualQP.mu
	role       role
	remoteRail uint8 // the rail of the peer's end
	// blocked says why the lane takes no requests; 0 if it does.
	blocked blockReasons
	listed  bool // the lane is in sender.staged
	// unsignaledTail says that the last request that the NIC took did not ask for a completion, because
	// the NIC refused those that would have.
	unsignaledTail bool
	// generation counts the QPs that the lane has had. It wraps. It is written under VirtualQP.mu.
	generation uint16
	num        uint32     // the number of the QP; written under VirtualQP.mu
	owner      *VirtualQP // the VirtualQP that completions of the QP belong to
	qp         verbs.QP
	queue      *dataQueue // the pool's SRQ that qp uses; nil if it uses none

	recvHead     uint32 // the number of the oldest receive that the NIC has
	recvTail     uint32 // the number of the next receive
	recvDepth    uint32 // how many receives the QP holds; 0 if they come from an SRQ
	recvLow      uint32 // how many used ones are posted again together
	latest       uint64 // the number of the message that came last, as the scheme counts
	lastRecorded int64  // with Tally, the last number that the receiver will have from the lane; noNumber if that cannot be said
	// starved says that receives were not posted again. It is counted in receiver.starved.
	starved bool

	estimate rateEstimate // what the policy TwoChoices knows of the lane
	counts   counters
	recovery laneRecovery // what failover keeps of the lane
}

// entry is enough to render a physical request, also a second time.
//
//	   31    | 30   24 | 23   16 | 15        0
//	consumes |  flags  |  kind   |    slot        head
//
// consumes says that the request uses up a receive of the peer.
//
// Entries are written field by field in place. If one were built elsewhere and copied, the copy would wait for its parts to
// leave the store buffer, which took two thirds of the time of a fragment.
type entry struct {
	head  uint32
	off   uint32 // the offset of the bytes in the request
	bytes uint32
	imm   uint32 // the immediate as the NIC gets it
}

const entryConsumes = 1 << 31

func entryHead(slot uint16, k kind, flags verbs.SendFlags) uint32 {
	return uint32(flags)<<24 | uint32(k)<<16 | uint32(slot)
}

// slot is the place of the request in its send ring.
func (e *entry) slot() uint16   { return uint16(e.head) }
func (e *entry) kind() kind     { return kind(e.head >> 16) }
func (e *entry) consumes() bool { return e.head&entryConsumes != 0 }

// blockReasons is a set of reasons why a lane takes no requests.
type blockReasons uint8

const (
	blockRefused     blockReasons = 1 << iota // The NIC refused the staged requests. They are posted again later.
	blockDown                                 // The lane is out of service: see laneRecovery.
	blockReserved                             // The rest of another lane is to be moved here.
	blockJustRefused                          // The NIC refused in this call, which does not try again: see sender.ring.
	blockNoKey                                // The request that is being handed over has no key there: see sender.pick.
)

// role is what a lane carries.
type role uint8

const (
	roleData role = iota
	roleMessage
	roleNotify
)

var roleNames = [...]string{"data", "message", "notify"}

// laneConfig is what a lane is made from.
type laneConfig struct {
	index int
	rail  int
	role  role
	recvs int // the depth of the receive queue
	// ledger is the first ledger of a lane.
	ledger []entry
}

func newLane(u *setup, lc laneConfig) (*lane, error) {
	qp, queue, err := u.createQP(lc)
	if u.cfg.Control != nil && errors.Is(err, verbs.ErrDeviceFatal) {
		qp, err = absentQP{err}, nil // failover makes it when the device works again
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

// createQP makes the physical QP of a lane, and before it what its rail lacks. queue is the pool's SRQ that the QP uses.
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

// qpConfig describes the QP of a lane without an SRQ.
func (u *setup) qpConfig(lc laneConfig) verbs.QPConfig {
	cq := u.cq.cqs[lc.rail]
	return verbs.QPConfig{
		SendCQ: cq, RecvCQ: cq, MaxSendWR: u.cfg.LaneDepth, MaxRecvWR: lc.recvs, MaxInline: u.cfg.MaxInline,
		Path: verbs.PathConfig{Seal: u.cfg.Seal},
	}
}

// sealed reports whether packets of a rail are encrypted and authenticated.
func (u *setup) sealed(rail int) bool {
	return u.cfg.Seal != nil || u.rails.rails[rail].cfg.Path.Seal != nil
}

// ledgerShift is by how many entries the ledger of a lane is shifted against the one before it:
// five cache lines. Lanes are used in turn, so their ledgers are written at the same place at the
// same time. If those places were a multiple of 4 KiB apart, they would share one set of the
// first-level cache, which has room for twelve.
const ledgerShift = 20

// ledgerSpare is how many entries more than its depth a ledger holds: the one of sender.postMarker.
const ledgerSpare = 1

// firstLedgers gives every lane a ledger for one chain, shifted by its distance from the one before it.
func firstLedgers(lanes []laneConfig, depth int) {
	n := ring.CeilPow2(min(depth, chainMax) + ledgerSpare)
	all := make([]entry, len(lanes)*(n+ledgerShift))
	for i := range lanes {
		lanes[i].ledger = all[i*(n+ledgerShift):][:n:n]
	}
}

// newLedger returns a ledger of full size for a lane.
func newLedger(index, depth int) []entry {
	n := ring.CeilPow2(depth + ledgerSpare)
	shift := index * ledgerShift % 256
	return make([]entry, shift+n+256)[shift:][:n:n]
}

// errState takes the QP to ERR, which makes the NIC give back what it has. A QP that cannot go
// there is in ERR already, or gone.
func (l *lane) errState() { _ = l.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) }

// resetState takes the QP to RESET, where it stays. A QP that cannot go there is destroyed with the next
// generation at the latest.
func (l *lane) resetState() {
	if err := l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState); err == nil || errors.Is(err, verbs.ErrDeviceFatal) {
		l.owner.setup.pool.leave(l)
	}
}

// out reports whether the lane is out of service.
func (l *lane) out() bool { return l.blocked&blockDown != 0 }

// room reports whether the lane can take another request.
func (l *lane) room() bool { return l.tail-l.head < l.capacity && l.blocked == 0 }

// setLedger gives the lane a ledger.
func (l *lane) setLedger(ledger []entry) {
	l.ledger, l.capacity = ledger, min(l.depth, uint32(len(ledger)-ledgerSpare))
}

// move copies the entries to another ledger, which the lane uses from then on.
func (l *lane) move(ledger []entry) {
	for i := l.head; i != l.tail; i++ {
		ledger[int(i)&(len(ledger)-1)] = *l.at(i)
	}
	l.setLedger(ledger)
}

// idle reports whether the ledger is empty.
func (l *lane) idle() bool { return l.head == l.tail }

// load is the number of entries in the ledger.
func (l *lane) load() uint32 { return l.tail - l.head }

// at returns an entry of the ledger.
func (l *lane) at(n uint32) *entry { return &l.ledger[int(n)&(len(l.ledger)-1)] }

// put adds an entry. The lane must have room.
func (l *lane) put(head, off, bytes, imm uint32) {
	e := l.at(l.tail)
	e.head, e.off, e.bytes, e.imm = head, off, bytes, imm
	l.tail++
	l.bytes += uint64(bytes)
}

// pop removes the oldest entry of a lane whose NIC has none.
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

// grow makes room in the ledger for n more entries.
func (l *lane) grow(n uint32) {
	if l.load()+n <= uint32(len(l.ledger)) {
		return
	}
	l.move(make([]entry, ring.CeilPow2(int(l.load()+n))))
}

// doubtful counts the entries that the NIC took and that consume a receive of the peer.
func (l *lane) doubtful() (n uint32) {
	for i := l.head; i != l.posted; i++ {
		n += l.at(i).head >> 31
	}
	return n
}

// settle removes the entries that have ended, because their generation is out of service at both
// ends, and keeps the others in order, staged. The first arrived entries that consume a receive have
// arrived, and with them everything before. A READ is repeated, because its answer may be lost. An
// atomic that the NIC took is in doubt and fails. settle returns how many entries it removed, how
// many of them were SENDs or atomics, and whether an atomic is in doubt.
func (l *lane) settle(arrived uint32, sends []sendSlot) (ended, messages int, inDoubt bool) {
	end := l.head // one more than the number of the last entry that arrived
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

// laneSet is a set of lane indices, one bit each. Its size is fixed when it is made.
type laneSet []uint64

// newLaneSet returns an empty set for the indices below n.
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

// moveTo moves all indices to another set of the same size, which must be empty, and returns how
// many there are.
func (s laneSet) moveTo(to laneSet) (n int) {
	for i, w := range s {
		n += bits.OnesCount64(w)
		to[i], s[i] = w, 0
	}
	return n
}

// needsReceives reports whether so many receives were used that posting them again is worth a call.
func (l *lane) needsReceives() bool { return l.recvDepth-(l.recvTail-l.recvHead) >= l.recvLow }

// A tag is the wr_id of every physical request of a VirtualQP that tracks its requests. Routing needs
// only the tag, and the rail and the QP number of a completion. It never reads the opcode, which is not
// valid in a failed completion (ibv_poll_cq(3)).
//
//	63         48 | 47   44 | 43       32 | 31             0
//	  generation  |  kind   |    lane     |      entry
//
// entry is the number of the request in its lane's ledger. It wraps at 2^32.
type tag uint64

// kind is the kind of a physical request.
type kind uint8

const (
	kindPlain   kind = iota + 1 // a fragment of one piece of memory
	kindData                    // any other fragment
	kindNotify                  // a WRITE_WITH_IMM of no bytes that notifies the receiver
	kindRecord                  // a record of Tally that notifies the receiver
	kindMessage                 // a SEND on the message lane
	kindAtomic                  // a FETCH_AND_ADD or CMP_AND_SWP
	kindRecv                    // a receive
	kindControl                 // no request of the user: it marks a place
	kindProbe                   // no request of the user: it tries a lane
)

// maxLanes is how many lanes the lane field of a tag can name.
const maxLanes = 1 << 12

// maxEntry is the entry field of a tag.
const maxEntry = 1<<32 - 1

func newTag(generation uint16, k kind, lane uint16, entry uint32) tag {
	return tag(generation)<<48 | tag(k)<<44 | tag(lane)<<32 | tag(entry)
}

// tag is the kind as a part of a tag.
func (k kind) tag() tag { return tag(k) << 44 }

func (t tag) kind() kind    { return kind(t >> 44 & 0xf) }
func (t tag) lane() uint16  { return uint16(t>>32) & (maxLanes - 1) }
func (t tag) entry() uint32 { return uint32(t) }

// owns reports whether a tag names the lane in its current generation.
func (l *lane) owns(t tag) bool { return t&^(kind(0xf).tag()|maxEntry) == l.base }

// drainTurns bounds how often a VirtualQP that is being closed polls for the completions of its lanes. A
// software NIC has them at once, and others within microseconds.
const drainTurns = 10_000

// drain ends everything that the lanes have in flight, so that the receives that they took from an SRQ
// come back before the QPs are destroyed. A completion that is destroyed with its QP would take its
// receive along.
func (q *VirtualQP) drain() {
	for _, l := range q.setup.all {
		l.errState()
	}
	q.mu.Lock()
	q.failover.state = stateClosed // what ends now is no failure
	q.mu.Unlock()
	c := q.setup.cq
	for range drainTurns {
		empty := true
		for rail, cq := range c.cqs {
			got, err := cq.Poll(c.buf[:])
			if got > 0 {
				empty = false
				c.process(rail, c.buf[:got], nil, 0) // completions of others are kept
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

// hasOutstanding reports whether the NIC has not given back everything that a lane has posted.
func (l *lane) hasOutstanding() bool {
	v := &l.recovery
	return v.state <= laneDying && l.head != l.posted && (!v.failing || v.drained != l.posted)
}
