package ibverbx

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"ibverbx/internal/ring"
	"ibverbx/internal/xorshift"
	"ibverbx/verbs"
)

// VirtualQP bundles RC queue pairs on several rails into one. It splits requests into fragments and
// stripes them across its lanes. Every accepted request completes exactly once, in posting order;
// successful requests report a completion only with verbs.SendSignaled.
//
// Several lanes do not give the full ordering of a single QP: WRITEs and READs of different requests are
// unordered. Set verbs.SendFence to make a request wait for all earlier ones.
//
// Only one goroutine at a time may use a VirtualQP, its VirtualCQ and the other VirtualQPs on it. Err
// and Stats are safe for concurrent use. Get one from VirtualCQ.NewQP: posting to the zero value panics.
type VirtualQP struct {
	setup setup
	clock cachedClock
	// send and recv are the two halves of a VirtualQP, unless setup.direct.
	send sender
	recv receiver
	// pass replaces send and recv if setup.direct.
	pass     passthrough
	failover failover
	// mu guards rarely changed state shown by Stats and Err: the lanes, their QPs and states, and the error. The
	// goroutine that uses the VirtualQP writes under mu and reads without it.
	mu           sync.Mutex
	reportQueued bool // the VirtualQP is in VirtualCQ.reportQueue
	ready        bool // the VirtualQP is in readyList.qps
	timer        int  // index in readyList.timers plus one; 0 without a timer
	// marked is set while the VirtualQP is in readyList.marked.
	marked atomic.Bool
}

// initialDepth is the initial size of a VirtualQP's rings. In a process with many VirtualQPs, most are idle.
const initialDepth = 16

// qpState is the lifecycle state of a VirtualQP.
type qpState uint8

const (
	stateNew qpState = iota
	stateConnected
	stateFailed
	stateClosed
)

// NewQP creates a VirtualQP that completes to c, with its lanes spread evenly over the rails. Its
// receives can be posted before Connect. NewQP returns verbs.ErrInvalid if cfg is invalid or
// CQConfig.Depth cannot cover the lanes, and otherwise the NIC's error with the lane. With Config.Control,
// lanes whose device has failed start out of service, unless all have failed.
func (c *VirtualCQ) NewQP(cfg Config) (*VirtualQP, error) {
	if c.rails == nil {
		return nil, fmt.Errorf("make virtual QP: %w", verbs.ErrClosed)
	}
	cfg = cfg.withDefaults(c.rails, c.inline)
	if cfg.Now == nil {
		cfg.Now = c.clock
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make virtual QP: %w", err)
	}
	cfg.SendDepth, cfg.MaxInline = ring.CeilPow2(cfg.SendDepth), max(cfg.MaxInline, 0)
	if cfg.Incarnation == 0 {
		cfg.Incarnation = rand.Uint64N(1<<53-1) + 1
	}
	c.qpCount++
	q := newQP(c, cfg)
	c.qps = append(c.qps, q)
	if err := q.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("make virtual QP: %w", err), q.Close())
	}
	return q, nil
}

// newQP returns the connected components, without lanes.
func newQP(c *VirtualCQ, cfg Config) *VirtualQP {
	q := &VirtualQP{}
	u, f := &q.setup, &q.failover
	*u = setup{
		owner: q, num: c.qpCount, incarnation: cfg.Incarnation, cfg: cfg, rails: c.rails, cq: c,
		direct: cfg.Lanes == 1 && cfg.Control == nil, maxMsg: maxMessage, mtu: 4096, minCut: wantFragment, keepsWhole: cfg.FragmentSize == 0,
		maxSGE: uint8(c.rails.least(func(a *verbs.DeviceAttr) int { return a.MaxSGE })),
	}
	for i := range c.rails.rails {
		r := &c.rails.rails[i]
		u.maxMsg = uint32(min(uint64(u.maxMsg), r.attr.MaxMsgSize))
		u.mtu = min(u.mtu, uint32(max(r.mtu, 256)))
		if !r.onCaller {
			u.minCut = minFragment
		}
		u.keepsWhole = u.keepsWhole && r.deviceCopies
	}
	q.clock = cachedClock{read: cfg.Now, failover: cfg.Control != nil}
	q.send = sender{
		setup: u, clock: &q.clock, failover: f,
		sends:     sendRing{slots: make([]sendSlot, min(initialDepth, cfg.SendDepth)), depth: uint32(cfg.SendDepth)},
		picker:    picker{clock: &q.clock, random: xorshift.Source(uint64(u.num)*0x9e3779b97f4a7c15 | 1), runBytes: runCuts * u.minCut},
		uncovered: newLaneSet(cfg.Lanes), chain: c.chain[:],
	}
	q.recv.init(u, f)
	q.pass = passthrough{setup: u, failover: f, chain: q.send.chain, recvChain: q.recv.chain}
	*f = failover{
		setup: u, clock: &q.clock, send: &q.send, recv: &q.recv, random: &q.send.picker.random,
		link: controlLink{setup: u}, watchdog: watchdog{setup: u, clock: &q.clock},
	}
	return q
}

// build creates the scheme and the lanes, and moves the lanes to INIT with the engine's receives posted.
func (q *VirtualQP) build() (err error) {
	u := &q.setup
	u.pool = u.cq.pool
	if !u.direct {
		u.shared = u.cq.shared
		if u.scheme, err = q.newNotifier(); err != nil {
			return err
		}
		for op := range q.send.wire {
			q.send.wire[op] = verbs.Opcode(op)
		}
		if u.cfg.Scheme != DQPLB { // a record or notification follows
			q.send.wire[verbs.OpRDMAWriteWithImm] = verbs.OpRDMAWrite
		}
	}
	plan := u.plan()
	firstLedgers(plan, u.cfg.LaneDepth)
	var need [MaxRails]int
	for i := range plan {
		lc := &plan[i]
		if u.srqOf(lc.role) != ownReceives {
			lc.recvs = 0
		}
		need[lc.rail] += u.cfg.LaneDepth + lc.recvs
	}
	for rail := range u.rails.rails { // before the first lane, because a CQ with QPs may be unable to grow
		if err := u.cq.fit(rail, need[rail]); err != nil {
			return err
		}
	}
	for i, lc := range plan {
		if err := q.addLane(lc); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	u.lanes = u.all[:u.cfg.Lanes]
	q.send.picker.begin(u.lanes, u.cfg.Policy, u.rails)
	q.send.staged = make([]*lane, 0, len(u.all))
	usable := false
	for _, l := range u.all {
		err = q.recv.prepare(l)
		if err != nil && (u.cfg.Control == nil || !errors.Is(err, verbs.ErrDeviceFatal)) {
			return fmt.Errorf("lane %d: %w", l.index, err)
		}
		q.send.records.refresh(l.rail)
		usable = usable || err == nil
	}
	if !usable {
		return err // all devices have failed
	}
	return nil
}

// addLane creates a lane, reserves CQ space for its completions and routes them to it.
func (q *VirtualQP) addLane(lc laneConfig) error {
	u := &q.setup
	if err := u.cq.reserve(lc.rail, u.cfg.LaneDepth+lc.recvs); err != nil {
		return err
	}
	l, err := newLane(u, lc)
	if err != nil {
		u.cq.release(lc.rail, u.cfg.LaneDepth+lc.recvs)
		return err
	}
	u.all = append(u.all, l)
	if !l.absent() {
		u.cq.routes[lc.rail].Set(l.num, l)
	}
	switch lc.role {
	case roleMessage:
		u.messageLane = l
	case roleNotify:
		u.notifyLane = l
		if u.messageLane == nil {
			u.messageLane = l
		}
	case roleData:
	}
	return nil
}

// Num returns a number that is unique within the VirtualCQ.
func (q *VirtualQP) Num() uint32 { return q.setup.num }

// Err returns nil while the VirtualQP works, and the cause once it has failed, even while earlier
// requests are still outstanding. The cause wraps ErrDeadline, ErrPeerGone or ErrAtomicInDoubt where
// they apply. Err is safe for concurrent use.
func (q *VirtualQP) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failover.err
}

// KillLane moves a lane's QP to ERR, as a NIC does when it gives up on a connection. Use it to test that
// a program survives the loss of a lane. It returns verbs.ErrInvalid if the lane does not exist.
func (q *VirtualQP) KillLane(lane int) error {
	all := q.setup.all
	if lane < 0 || lane >= len(all) {
		return q.setup.opError("kill lane", verbs.Invalidf("lane %d of %d", lane, len(all)))
	}
	return all[lane].qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
}

// PostSend posts requests and returns the number accepted: wrs[:n] were accepted, the rest was not. An
// accepted request completes with success or an error, or is flushed.
//
// err is verbs.ErrQueueFull as ordinary back-pressure: poll, then post the rest. It is verbs.ErrInvalid
// if wrs[n] is invalid, verbs.ErrState before Connect, and verbs.ErrClosed after Close or for a closed
// Region.
func (q *VirtualQP) PostSend(wrs []SendWR) (n int, err error) {
	q.setup.cq.guard.Enter("ibverbx: PostSend", misuse)
	switch {
	case q.failover.state == stateNew || q.failover.state == stateClosed:
		err = q.setup.opError("post send", q.notConnected())
	case q.setup.direct:
		n, err = q.pass.post(wrs)
	default:
		n, err = q.send.post(wrs)
	}
	q.setup.cq.guard.Leave()
	return n, err
}

func (q *VirtualQP) notConnected() error {
	if q.failover.state == stateClosed {
		return verbs.ErrClosed
	}
	return fmt.Errorf("%w: connect the virtual QP first", verbs.ErrState)
}

// PostRecv posts receives and returns the number accepted: wrs[:n] were accepted, the rest was not. It
// may be called before Connect. err is verbs.ErrQueueFull if the queue is full, verbs.ErrInvalid if
// wrs[n] is invalid or belongs in the pool of CQConfig.SharedData, and verbs.ErrClosed after Close or for a
// closed Region.
func (q *VirtualQP) PostRecv(wrs []RecvWR) (n int, err error) {
	q.setup.cq.guard.Enter("ibverbx: PostRecv", misuse)
	switch {
	case q.failover.state == stateClosed:
		err = q.setup.opError("post receive", verbs.ErrClosed)
	case q.setup.direct:
		n, err = q.pass.postRecv(wrs)
	default:
		n, err = q.recv.post(wrs)
	}
	q.setup.cq.guard.Leave()
	return n, err
}

// completed routes a lane's completion by its tag.
func (q *VirtualQP) completed(l *lane, wc *verbs.WC) {
	t := tag(wc.WRID)
	switch t.kind() {
	case kindRecv:
		q.recv.received(l, wc, t)
	case kindProbe:
		q.failover.probed(l, wc, t)
	default:
		q.send.completed(l, wc, t)
	}
}

// outstanding reports whether a request or receive is unreported. A passthrough does not track that and returns
// false.
func (q *VirtualQP) outstanding() bool {
	s, r := &q.send.sends, &q.recv
	return s.reported != s.posted || r.notifications.Len()+r.data.Len()+r.done.Len() > 0
}

// busy reports whether the next report must include the VirtualQP even without a completion: it could not
// report everything, a NIC refused a request, or its failure is not settled.
func (q *VirtualQP) busy() bool {
	f, r := &q.failover, &q.send.sends
	return q.recv.done.Len() > 0 || (r.reported != r.posted && r.slot(r.reported).pending == 0) ||
		len(q.send.staged) > 0 || (f.state == stateFailed && f.unsettled())
}

// Close destroys the lanes. Outstanding requests and receives are dropped without a completion. The peer
// is notified if Config.Control is set. A second Close does nothing.
func (q *VirtualQP) Close() error {
	u, f := &q.setup, &q.failover
	var errs []error
	if u.rails == nil {
		return fmt.Errorf("close virtual QP: %w", verbs.ErrClosed)
	}
	if f.state == stateClosed {
		return nil
	}
	if f.state == stateConnected {
		f.link.sendReset()
	}
	if u.peer != 0 && u.cfg.Control != nil {
		u.cfg.Control.Notify(nil)
	}
	if u.shared != nil || u.pool != nil {
		q.drain()
	}
	for _, l := range u.all {
		rail := int(l.rail)
		errs = append(errs, l.qp.Close())
		u.pool.leave(l)
		u.cq.release(rail, u.cfg.LaneDepth+int(l.recvDepth))
	}
	for i := range u.cq.routes {
		u.cq.routes[i].DeleteFunc(func(_ uint32, l *lane) bool { return l.owner == q })
	}
	if r := q.send.records.region; r != nil {
		errs = append(errs, r.free())
	}
	q.mu.Lock()
	u.all, u.lanes, f.state = nil, nil, stateClosed
	q.mu.Unlock()
	q.send.close()
	q.recv.close()
	u.cq.forget(q)
	u.pool.settle()
	_ = u.cq.closeRetired() // those that other QPs use stay
	return errors.Join(errs...)
}

// MaxSGE is the maximum number of scatter-gather elements in a request. Devices may allow fewer
// (verbs.DeviceAttr.MaxSGE).
const MaxSGE = verbs.MaxSGE

// SGE is a scatter-gather element: a range of local memory in a Region.
type SGE struct {
	// Region is the registered memory. It must belong to the VirtualQP's Rails.
	Region *Region
	// Offset is the first byte of the range in Region.
	Offset uint64
	// Length is the number of bytes.
	Length uint32
}

// SendWR is a send request. WRITEs and READs carry up to 4 GiB - 1 bytes. SENDs are not fragmented, and
// must fit the largest message of a lane, at most 2 GiB; so must all requests on a single lane without
// failover. Atomics use 8 bytes.
type SendWR struct {
	// WRID is copied to the completion.
	WRID uint64
	// Opcode is the operation.
	Opcode verbs.Opcode
	// Flags are SendSignaled, SendFence, SendInline and SendSolicited. SendSignaled requests a
	// completion; errors are always reported. SendFence is a full barrier: the request starts after all
	// earlier ones have completed. SendInline copies the bytes at post time, at most Config.MaxInline.
	Flags verbs.SendFlags
	// NumSGE is the number of valid elements in SGE.
	NumSGE uint8
	// Imm is the immediate of RDMA_WRITE_WITH_IMM and SEND_WITH_IMM, in host byte order.
	Imm uint32
	// SGE is the local memory; see SetSGE.
	SGE [MaxSGE]SGE
	// Remote is the target of a WRITE, READ or atomic. Other operations ignore it.
	Remote *RemoteRegion
	// RemoteOffset is the offset in Remote, in bytes.
	RemoteOffset uint64
	// CompareAdd is the value to add (FETCH_AND_ADD) or to compare with (CMP_AND_SWP).
	CompareAdd uint64
	// Swap is the new value of CMP_AND_SWP.
	Swap uint64
}

// SetSGE sets the local memory of w. PostSend rejects w if there are more than MaxSGE elements.
func (w *SendWR) SetSGE(sges ...SGE) {
	copy(w.SGE[:], sges)
	w.NumSGE = uint8(min(len(sges), math.MaxUint8))
}

// usesDevice reports whether any of the memory, local or remote, is device memory.
func (w *SendWR) usesDevice() bool {
	for i := range w.NumSGE {
		if w.SGE[i].Region.device {
			return true
		}
	}
	return w.Remote != nil && w.Remote.Device
}

// Length returns the total length of the elements in bytes.
func (w *SendWR) Length() uint64 {
	var n uint64
	for i := range min(int(w.NumSGE), MaxSGE) {
		n += uint64(w.SGE[i].Length)
	}
	return n
}

// RecvWR is a receive. Without bytes it matches a notification, the end of a WRITE_WITH_IMM. With bytes
// it matches a SEND. On several lanes these are two separate queues, each in posting order.
type RecvWR struct {
	// WRID is copied to the completion.
	WRID uint64
	// NumSGE is the number of valid elements in SGE. Zero receives a notification.
	NumSGE uint8
	// SGE is the receive buffer; see SetSGE.
	SGE [MaxSGE]SGE
}

// SetSGE sets the receive buffer of w. PostRecv rejects w if there are more than MaxSGE elements.
func (w *RecvWR) SetSGE(sges ...SGE) {
	copy(w.SGE[:], sges)
	w.NumSGE = uint8(min(len(sges), math.MaxUint8))
}

// WCFlags is a set of flags for the valid optional fields of a WC.
type WCFlags uint8

// Completion flags.
const (
	// WCHasImm is set when Imm is valid.
	WCHasImm WCFlags = 1 << 0
	// WCHasLength is set when ByteLen is valid.
	WCHasLength WCFlags = 1 << 1
	// WCInDoubt marks a failed atomic that the peer may or may not have executed, because its lane was lost (Config.KeepAtomics).
	WCInDoubt WCFlags = 1 << 2
)

// WC is a completion of a VirtualQP. If Status is not verbs.StatusSuccess, only WRID, QP, Status,
// VendorErr and WCInDoubt are valid.
type WC struct {
	// WRID is the request's or receive's WRID.
	WRID uint64
	// QP is the VirtualQP that completed it.
	QP *VirtualQP
	// Status is verbs.StatusSuccess or the failure.
	Status verbs.Status
	// Opcode is the completed operation.
	Opcode verbs.WCOpcode
	// Flags are set for the valid fields among ByteLen and Imm.
	Flags WCFlags
	// VendorErr is the NIC's own error code, or 0.
	VendorErr uint32
	// ByteLen is the message length in bytes.
	ByteLen uint32
	// Imm is the sender's immediate, in host byte order.
	Imm uint32
}

// Err returns nil for a success, and otherwise an error with the request, the status and its usual cause. It wraps a
// *verbs.WCError and, if the VirtualQP has failed, its error (VirtualQP.Err): a flushed request shows what failed
// first. With WCInDoubt it wraps ErrAtomicInDoubt. For a zero WC, it returns verbs.ErrInvalid.
func (w *WC) Err() error {
	if w.QP == nil {
		return verbs.Invalidf("zero completion: no call has filled it in")
	}
	if w.Status == verbs.StatusSuccess {
		return nil
	}
	e := verbs.WCError{Status: w.Status, VendorErr: w.VendorErr, WRID: w.WRID}
	if err := w.QP.Err(); err != nil {
		return &failure{e, err}
	}
	if w.Flags&WCInDoubt != 0 {
		return fmt.Errorf("virtual QP %d: %w: %w", w.QP.setup.num, ErrAtomicInDoubt, &e)
	}
	return fmt.Errorf("virtual QP %d: %w", w.QP.setup.num, &e)
}

// failure is the error of a failed VirtualQP's completion.
type failure struct {
	wc  verbs.WCError
	err error // cause of the VirtualQP's failure
}

// Error returns the request, its status in words, and the cause of the VirtualQP's failure.
func (f *failure) Error() string {
	w := &f.wc
	return fmt.Sprintf("completion of wr_id %d: %s (status %d, vendor error %#x): %v", w.WRID, w.Status, uint8(w.Status), w.VendorErr, f.err)
}

// Unwrap returns the completion's error and the cause of the VirtualQP's failure.
func (f *failure) Unwrap() []error { return []error{&f.wc, f.err} }
