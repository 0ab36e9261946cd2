package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/internal/counter"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// receiver is the receiving half of a VirtualQP: two queues of the user's receives, and the messages that have
// arrived for them.
//
// The engine posts its own receives on the lanes. A complete message consumes the user's oldest notification receive;
// without one, it is held as early. When Config.RecvDepth messages are early, the engine stops posting receives, and
// the sender gets RNR NAKs. Data receives are posted on the message lane, which no scheme uses.
type receiver struct {
	setup    *setup
	failover *failover

	notifications ring.Ring[uint64] // WRIDs of the user's notification receives, at most Config.RecvDepth
	// data holds the user's data receives, at most Config.RecvDepth. A receive's sequence number is the entry in its
	// tag. If the message lane is reset, they are reposted.
	data  ring.Ring[RecvWR]
	early ring.Ring[message] // complete messages without a notification receive
	// done holds completed, unreported receives. With maxDone of them, post rejects receives. Both queues may be full
	// then, so done holds at most four times as many.
	done     ring.Ring[WC]
	maxDone  int            // Config.RecvDepth, rounded up to a power of two
	earlyMax int            // maximum number of early messages
	starved  int            // number of lanes whose receives are not reposted
	chain    []verbs.RecvWR // buffer for the physical receives of a post

	posted    counter.Counter // accepted receives
	completed counter.Counter // completed receives
}

// message describes a complete message.
type message struct {
	imm    uint32
	length uint32
	// flags marks which of the two are valid.
	flags WCFlags
}

func (r *receiver) init(u *setup, f *failover) {
	depth := u.cfg.RecvDepth
	r.setup, r.failover = u, f
	r.maxDone = ring.CeilPow2(depth)
	n := min(initialDepth, depth)
	r.notifications, r.data, r.early, r.done = ring.New[uint64](n), ring.New[RecvWR](n), ring.New[message](n), ring.New[WC](n)
	r.chain = u.cq.recvChain[:]
}

// connected sets the limit of early messages: RecvDepth before the engine stops posting receives, one per receive
// posted by then, and waiting messages that the scheme holds until an earlier one is complete.
func (r *receiver) connected(waiting int) {
	r.earlyMax = ring.CeilPow2(r.setup.cfg.RecvDepth + r.setup.receives() + waiting)
}

// close drops the queues. Unreported receives of the pool return to it.
func (r *receiver) close() {
	for ; r.done.Len() > 0; r.done.Drop(1) {
		r.setup.pool.dropped(r.done.Front())
	}
	r.notifications, r.data, r.early, r.done = ring.Ring[uint64]{}, ring.Ring[RecvWR]{}, ring.Ring[message]{}, ring.Ring[WC]{}
}

// post accepts receives, after reserving space in the rings for them and their completions.
func (r *receiver) post(wrs []RecvWR) (n int, err error) {
	depth, ended := r.setup.cfg.RecvDepth, r.done.Len()
	r.notifications.Reserve(min(r.notifications.Len()+len(wrs), depth))
	r.data.Reserve(min(r.data.Len()+len(wrs), depth))
	r.done.Reserve(min(ended+r.notifications.Len()+r.data.Len()+len(wrs), max(ended, 2*r.maxDone)+2*r.maxDone))
	n, err = r.accept(wrs)
	r.posted.Add(uint64(n))
	if r.failover.state == stateFailed {
		r.flush()
	}
	r.feedStarved()
	if r.done.Len() > 0 {
		r.setup.queueReport()
	}
	return n, err
}

// accept queues receives until one is invalid or does not fit.
func (r *receiver) accept(wrs []RecvWR) (n int, err error) {
	for n = range wrs {
		wr := &wrs[n]
		if wr.NumSGE > 0 {
			length, bad := r.setup.checkRecv(wr)
			if bad != nil {
				return n, r.setup.opError("post receive", fmt.Errorf("receive %d of the chain: %w", n, bad))
			}
			if length > 0 {
				if err := r.acceptData(wr); err != nil {
					return n, err
				}
				continue
			}
		}
		if r.full(r.notifications.Len()) {
			return n, verbs.ErrQueueFull
		}
		*r.notifications.Extend() = wr.WRID
		if r.early.Len() > 0 {
			r.notify(r.early.Front())
			r.early.Drop(1)
		}
	}
	return len(wrs), nil
}

// full reports whether a queue of n receives rejects further ones.
func (r *receiver) full(n int) bool {
	return n >= r.setup.cfg.RecvDepth || r.done.Len() >= r.maxDone
}

// acceptData queues a data receive and posts it on the message lane.
func (r *receiver) acceptData(wr *RecvWR) error {
	if r.full(r.data.Len()) {
		return verbs.ErrQueueFull
	}
	if err := r.postData(wr, r.data.Tail()); err != nil {
		if isBackPressure(err) {
			return verbs.ErrQueueFull
		}
		if !r.failover.recovers() || errors.Is(err, verbs.ErrInvalid) {
			return r.setup.opError("post receive", err)
		}
		r.failover.laneDown(r.setup.messageLane, err) // the next generation posts it
	}
	*r.data.Extend() = *wr
	return nil
}

// postData posts a data receive. If the message lane is out of service, its next generation does that.
func (r *receiver) postData(wr *RecvWR, seq uint32) error {
	l := r.setup.messageLane
	if !l.recovery.mayReceive() {
		return nil
	}
	if !wr.physical(l.rail, &r.chain[0]) {
		return errUnregistered
	}
	r.chain[0].WRID = uint64(newTag(l.generation, kindRecv, l.index, seq))
	n, err := l.qp.PostRecv(r.chain[:1])
	l.recvTail += uint32(n)
	return err
}

// physical builds the receive for a rail's NIC. It returns false if the memory is not registered there.
func (w *RecvWR) physical(rail uint8, p *verbs.RecvWR) bool {
	p.WRID, p.NumSGE = w.WRID, w.NumSGE
	for i := range w.NumSGE {
		e := &w.SGE[i]
		if e.Length > 0 && !e.Region.registered(rail) {
			return false
		}
		p.SGE[i] = verbs.SGE{Addr: e.Region.addr + e.Offset, Length: e.Length, LKey: e.Region.lkeys[rail]}
	}
	return true
}

// received handles a completed receive of a lane.
func (r *receiver) received(l *lane, wc *verbs.WC, t tag) {
	u, f := r.setup, r.failover
	switch u.srqOf(l.role) {
	case engineReceives:
		r.receivedShared(l, wc, t.entry())
		return
	case dataReceives:
		r.receivedPooled(l, wc, t)
		return
	case ownReceives:
	}
	if !l.owns(t) || l.recovery.state == laneIdle {
		u.cq.countStale(l)
		return
	}
	l.recvHead++
	switch {
	case wc.Status == verbs.StatusSuccess:
		// Data that arrived before a failure counts as delivered.
		l.recovery.received++
		if l.role == roleMessage {
			r.completeData(wc)
			return
		}
		u.scheme.received(l, wc, t.entry())
	case f.survives(l, wc.Status):
		f.laneDown(l, statusError(wc.Status)) // the next generation reposts the receive
		return
	default:
		if l.role == roleMessage {
			r.completeData(wc)
		}
		f.failed(l, wc.Status)
	}
	if f.state != stateConnected {
		r.flushNotifications()
		return
	}
	if l.needsReceives() {
		r.feed(l)
	}
	r.feedStarved()
}

// receivedRun handles receives at the front of wcs, all from one rail, and returns their number. It covers the common
// case: successful receives of working data lanes without an SRQ. It stops at the first other completion. The tag
// identifies the lane, so striped fragments are handled without a lookup (BenchmarkMessage, DQPLB, 16 fragments on 16
// lanes: 447 to 290 ns).
func (r *receiver) receivedRun(rail int, wcs []verbs.WC) (n int) {
	u, f := r.setup, r.failover
	if u.shared != nil {
		return 0
	}
	lanes, scheme := u.lanes, u.scheme
	for f.state == stateConnected && n < len(wcs) {
		wc := &wcs[n]
		t := tag(wc.WRID)
		i := int(t.lane())
		if i >= len(lanes) {
			break
		}
		l := lanes[i]
		if t&^maxEntry != l.base|kindRecv.tag() || wc.QPN != l.num || int(l.rail) != rail || wc.Status != verbs.StatusSuccess ||
			l.recovery.state != laneUp {
			break
		}
		n++
		l.recvHead++
		l.recovery.received++
		l.counts.cqes.Add(1)
		scheme.received(l, wc, t.entry())
		if l.needsReceives() {
			r.feed(l)
		}
	}
	switch {
	case n == 0:
	case f.state == stateConnected:
		r.feedStarved()
	default:
		r.flushNotifications()
	}
	return n
}

// receivedShared handles a lane's receive from the shared SRQ. Its tag does not name the lane; rail and QP number of
// the completion do.
func (r *receiver) receivedShared(l *lane, wc *verbs.WC, index uint32) {
	shared := r.setup.shared
	if int(index) >= shared.depth {
		r.setup.cq.countStale(l)
		return
	}
	switch {
	case l.recovery.state == laneGone || l.recovery.state == laneIdle:
		r.setup.cq.countStale(l) // from a generation out of service
	case wc.Status == verbs.StatusSuccess:
		l.recovery.received++
		r.setup.scheme.received(l, wc, index)
	case r.failover.survives(l, wc.Status):
		r.failover.laneDown(l, statusError(wc.Status))
	default:
		r.failover.failed(l, wc.Status)
	}
	if err := shared.recycle(l.rail, index); err != nil {
		r.failover.laneBroken(l, err)
	}
	if r.failover.state != stateConnected {
		r.flushNotifications()
	}
}

// complete adds a receive to done.
func (r *receiver) complete(id uint64, status verbs.Status) *WC {
	wc := r.done.Extend()
	*wc = WC{WRID: id, QP: r.setup.owner, Status: status}
	r.completed.Add(1)
	return wc
}

// completeData completes the oldest data receive.
func (r *receiver) completeData(wc *verbs.WC) {
	id := r.data.Front().WRID
	r.data.Drop(1)
	r.completeMessage(id, wc)
}

// completeMessage completes a data receive.
func (r *receiver) completeMessage(id uint64, wc *verbs.WC) {
	out := r.complete(id, wc.Status)
	out.VendorErr = wc.VendorErr
	if wc.Status != verbs.StatusSuccess {
		r.failover.errShown = true
		return
	}
	out.Opcode, out.ByteLen, out.Flags = verbs.WCRecv, wc.ByteLen, WCHasLength
	if wc.Flags&verbs.WCWithImm != 0 {
		out.Flags, out.Imm = WCHasLength|WCHasImm, wc.Imm
	}
}

// deliverMessage handles a complete message.
func (r *receiver) deliverMessage(m message) {
	switch {
	case r.early.Len() == 0 && r.notifications.Len() > 0:
		r.notify(&m)
	case r.early.Len() == r.earlyMax:
		r.failover.fail(nil, errTooEarly)
	default:
		r.early.Push(m)
	}
}

// errTooEarly fails a VirtualQP with shared receives, which provide no back-pressure.
var errTooEarly = errors.New("more messages than receives, by more than Config.RecvDepth: post receives earlier, or more of them")

// notify completes the oldest notification receive with a message.
func (r *receiver) notify(m *message) {
	wc := r.done.Extend() // field by field: a copied literal would wait for its parts in the store buffer
	wc.WRID, wc.QP = *r.notifications.Front(), r.setup.owner
	wc.Status, wc.Opcode, wc.Flags, wc.VendorErr = verbs.StatusSuccess, verbs.WCRecvRDMAWithImm, m.flags, 0
	wc.ByteLen, wc.Imm = m.length, m.imm
	r.notifications.Drop(1)
	r.completed.Add(1)
}

// report writes completed receives and returns their number.
func (r *receiver) report(dst []WC) (n int) {
	for n < len(dst) && r.done.Len() > 0 {
		dst[n] = *r.done.Front()
		r.done.Drop(1)
		n++
	}
	if p := r.setup.pool; p != nil {
		p.deliver(dst[:n])
	}
	return n
}

// flush completes the receives of a failed VirtualQP that no NIC has.
func (r *receiver) flush() {
	r.leavePool()
	r.flushNotifications()
	if l := r.setup.messageLane; l == nil || l.recovery.state == laneUp {
		return // the NIC flushes the data receives
	}
	for ; r.data.Len() > 0; r.data.Drop(1) {
		r.completeFlushed(r.data.Front().WRID)
	}
}

// flushNotifications completes the notification receives of a failed VirtualQP once the lanes have returned all of
// the engine's receives. Until then, a CQ may still hold a message.
func (r *receiver) flushNotifications() {
	if r.setup.shared != nil && !r.setup.cq.passedAll(&r.failover.failBarriers) {
		return
	}
	for _, l := range r.setup.all {
		if l.role != roleMessage && l.recvHead != l.recvTail {
			return
		}
	}
	for ; r.notifications.Len() > 0; r.notifications.Drop(1) {
		r.completeFlushed(*r.notifications.Front())
	}
}

// completeFlushed completes a receive of a failed VirtualQP.
func (r *receiver) completeFlushed(id uint64) {
	r.complete(id, verbs.StatusWRFlushErr)
	r.failover.errShown = true
}

// prepare moves a lane's QP from RESET to INIT and posts receives on it.
func (r *receiver) prepare(l *lane) error {
	if err := verbs.InitQP(l.qp, r.setup.rails.rails[l.rail].cfg.Port); err != nil {
		return err
	}
	l.recvHead, l.recvTail = 0, 0
	if r.failover.state == stateConnected && l.role != roleMessage {
		r.feed(l) // unless backlogged
		return nil
	}
	return r.replenish(l)
}

// backlogged reports whether enough messages are early to stop posting receives.
func (r *receiver) backlogged() bool { return r.early.Len() >= r.setup.cfg.RecvDepth }

// feed reposts a lane's receives. If the receiver is backlogged or the lane too far ahead of the others, the lane is
// starved instead, and its sender gets RNR NAKs.
func (r *receiver) feed(l *lane) {
	if r.failover.state != stateConnected || !l.recovery.mayReceive() {
		return
	}
	if r.backlogged() || r.setup.scheme.tooFarAhead(l) {
		r.setStarved(l, true)
		return
	}
	r.setStarved(l, false)
	if err := r.replenish(l); err != nil {
		r.failover.laneBroken(l, err)
	}
}

// feedStarved retries starved lanes.
func (r *receiver) feedStarved() {
	if r.starved == 0 || r.backlogged() {
		return
	}
	for _, l := range r.setup.all {
		if l.starved {
			r.feed(l)
		}
	}
}

// setStarved sets whether a lane is starved.
func (r *receiver) setStarved(l *lane, starved bool) {
	switch {
	case starved && !l.starved:
		r.starved++
	case !starved && l.starved:
		r.starved--
	}
	l.starved = starved
}

// replenish fills a lane's receive queue with the engine's receives. The message lane holds the user's, which are
// reposted after a reset. A passthrough lane only holds receives posted by the user.
func (r *receiver) replenish(l *lane) error {
	u := r.setup
	if l.role == roleMessage {
		for seq := r.data.Head(); seq != r.data.Tail(); seq++ {
			if err := r.postData(r.data.At(seq), seq); err != nil {
				return err
			}
		}
		return nil
	}
	if u.direct || u.srqOf(l.role) == engineReceives || (u.cfg.Scheme == Spray && l != u.notifyLane) {
		return nil
	}
	for l.recvTail-l.recvHead < l.recvDepth {
		chain := r.chain[:min(l.recvDepth-(l.recvTail-l.recvHead), chainMax)]
		u.scheme.recvSGEs(l, l.recvTail, chain)
		base := l.base | kindRecv.tag()
		for i := range chain {
			chain[i].WRID = uint64(base | tag(l.recvTail+uint32(i)))
		}
		n, err := l.qp.PostRecv(chain)
		l.recvTail += uint32(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// failProtocol fails the VirtualQP because the peer violated the scheme.
func (r *receiver) failProtocol(l *lane, format string, args ...any) {
	r.failover.fail(l, fmt.Errorf("the peer does not keep to %s: %s", r.setup.cfg.Scheme, fmt.Sprintf(format, args...)))
}
