package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// receiver is the receiving half of a VirtualQP: two queues of the user's receives, and
// what has arrived for them.
//
// Notification receives are numbers: the engine's own receives wait on the lanes, and a
// message that is whole takes the oldest notification. If there is none it is held, as one
// of a bounded number; then the engine stops posting receives, and the sender meets RNR.
// Data receives lie on the message lane, which nothing of the engine's ever uses.
type receiver struct {
	notifications        []uint64 // IDs of notification receives
	notifyHead, notifyTo uint32
	early                []message // whole messages that nobody waits for yet
	earlyHead, earlyTail uint32
	data                 []RecvWR // data receives, to be posted again if their lane is reset
	dataHead, dataTail   uint32
	done                 []WC // receives that have ended and were not reported
	doneHead, doneTail   uint32
	depth                uint32
	hungry               int // lanes whose receives were not posted again
}

// message is what a scheme learned about a message that has wholly arrived.
type message struct {
	imm, length uint32
	flags       WCFlags
}

func (r *receiver) initReceiver(cfg *Config) {
	r.depth = uint32(cfg.RecvDepth)
	size := ring.CeilPow2(cfg.RecvDepth)
	r.notifications = make([]uint64, size)
	r.data = make([]RecvWR, size)
	// Of each kind so many can wait, and as many that have ended are there before no more
	// are taken.
	r.done = make([]WC, 4*size)
}

// holdEarly makes room for all messages that can be whole and not wanted yet: as many as
// the engine holds before it stops posting receives, those that what is posted then can
// bring, and those that were waiting for one before them.
func (q *VirtualQP) holdEarly(waiting int) {
	q.early = make([]message, ring.CeilPow2(q.cfg.RecvDepth+q.receives()+waiting))
}

// receives is how many receives of the engine's can be filled before it looks at any.
func (q *VirtualQP) receives() int {
	if q.shared != nil {
		return q.shared.depth * q.rails.Len()
	}
	return (q.cfg.Lanes + 1) * q.cfg.NotifyDepth
}

// PostRecv posts receives. wrs[:n] were taken, nothing after n was.
func (q *VirtualQP) PostRecv(wrs []RecvWR) (n int, err error) {
	q.cq.guard.enter("PostRecv")
	n, err = q.postRecv(wrs)
	q.cq.guard.leave()
	return n, err
}

func (q *VirtualQP) postRecv(wrs []RecvWR) (n int, err error) {
	if q.state == stateClosed {
		return 0, q.opError("post receive", verbs.ErrClosed)
	}
	if q.direct {
		return q.passRecv(wrs)
	}
	n, err = q.takeReceives(wrs)
	q.counted.recvPosted += uint64(n)
	if q.state == stateFailed {
		q.flushNotifications()
		q.flushData()
	}
	q.feedHungry()
	if q.reportable() {
		q.cq.touch(q)
	}
	return n, err
}

// takeReceives puts receives into their queues until one does not fit or is not legal.
func (q *VirtualQP) takeReceives(wrs []RecvWR) (n int, err error) {
	for n = range wrs {
		wr := &wrs[n]
		length, bad := q.checkRecv(wr)
		if bad != nil {
			return n, q.opError("post receive", fmt.Errorf("receive %d of the chain: %w", n, bad))
		}
		if length == 0 {
			if q.notifyTo-q.notifyHead >= q.depth || q.doneTail-q.doneHead >= uint32(len(q.data)) {
				return n, verbs.ErrQueueFull
			}
			q.notifications[int(q.notifyTo)&(len(q.notifications)-1)] = wr.WRID
			q.notifyTo++
			q.match()
			continue
		}
		if err := q.postData(wr); err != nil {
			return n, err
		}
	}
	return len(wrs), nil
}

func (q *VirtualQP) checkRecv(wr *RecvWR) (length uint64, err error) {
	if wr.NumSGE > MaxSGE {
		return 0, verbs.Invalidf("%d SGEs, at most %d are allowed", wr.NumSGE, MaxSGE)
	}
	for i := range wr.NumSGE {
		if err := q.checkLocal(&wr.SGE[i]); err != nil {
			return 0, fmt.Errorf("SGE %d: %w", i, err)
		}
		length += uint64(wr.SGE[i].Length)
	}
	if length > 0 && q.cfg.CxxPeer && !q.direct {
		return 0, verbs.Invalidf("a receive of %d bytes: a C++ peer does not send messages on several lanes", length)
	}
	return length, nil
}

// postData posts a data receive on the message lane.
func (q *VirtualQP) postData(wr *RecvWR) error {
	if q.dataTail-q.dataHead >= q.depth || q.doneTail-q.doneHead >= uint32(len(q.data)) {
		return verbs.ErrQueueFull
	}
	if err := q.postDataRecv(wr, q.dataTail); err != nil {
		if isBackPressure(err) {
			return verbs.ErrQueueFull
		}
		if q.cfg.Control == nil || q.state != stateConnected || errors.Is(err, verbs.ErrInvalid) {
			return q.opError("post receive", err)
		}
		q.laneDown(q.messageLane, err) // it is posted with the next generation
	}
	q.data[int(q.dataTail)&(len(q.data)-1)] = *wr
	q.dataTail++
	return nil
}

// postDataRecv gives a data receive to the NIC.
func (q *VirtualQP) postDataRecv(wr *RecvWR, seq uint32) error {
	l := q.messageLane
	if !l.life.receives() {
		return nil // it is posted with the next generation of the lane
	}
	q.physicalRecv(wr, l, &q.recvChain[0])
	q.recvChain[0].WRID = uint64(newTag(l.generation, kindRecv, l.index, seq))
	n, err := l.qp.PostRecv(q.recvChain[:1])
	l.recvTail += uint32(n)
	return err
}

func (q *VirtualQP) physicalRecv(wr *RecvWR, l *lane, r *verbs.RecvWR) {
	r.WRID, r.NumSGE = wr.WRID, wr.NumSGE
	for i := range wr.NumSGE {
		e := &wr.SGE[i]
		r.SGE[i] = verbs.SGE{Addr: e.Region.addr + e.Offset, Length: e.Length, LKey: e.Region.lkeys[l.rail]}
	}
}

// passRecv posts the receives of a VirtualQP with one lane.
func (q *VirtualQP) passRecv(wrs []RecvWR) (n int, err error) {
	l := q.lanes[0]
	for n < len(wrs) {
		chain := q.recvChain[:min(len(wrs)-n, len(q.recvChain))]
		for i := range chain {
			if _, bad := q.checkRecv(&wrs[n+i]); bad != nil {
				chain = chain[:i]
				err = q.opError("post receive", fmt.Errorf("receive %d of the chain: %w", n+i, bad))
				break
			}
			q.physicalRecv(&wrs[n+i], l, &chain[i])
		}
		k, refused := l.qp.PostRecv(chain)
		n += k
		q.counted.recvPosted += uint64(k)
		if refused != nil {
			return n, refused
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// recvCompleted takes a receive that a NIC has ended.
func (q *VirtualQP) recvCompleted(l *lane, wc *verbs.WC, t tag) {
	if q.takesShared(l) {
		q.sharedReceived(l, wc, t.entry())
		return
	}
	if t.generation() != l.generation || t.lane() != l.index || l.life.state == laneIdle {
		q.stale(l)
		return
	}
	l.recvHead++
	switch {
	case wc.Status == verbs.StatusSuccess:
		// Also after a failure: what has arrived was delivered.
		l.life.received++
		if l.role == roleMessage {
			q.dataReceived(wc)
			return
		}
		q.scheme.received(l, wc, t.entry())
	case q.survives(l, wc.Status):
		q.laneDown(l, statusError(wc.Status)) // the receive is posted again with the lane
		return
	default:
		if l.role == roleMessage {
			q.dataReceived(wc)
		}
		q.failed(l, wc.Status)
	}
	if q.state != stateConnected {
		q.flushNotifications()
		return
	}
	if l.recvDepth-(l.recvTail-l.recvHead) >= min(chainMax, (l.recvDepth+1)/2) {
		q.feedLane(l)
	}
	q.feedHungry()
}

// dataReceived ends the oldest data receive.
func (q *VirtualQP) dataReceived(wc *verbs.WC) {
	out := q.finished(q.data[int(q.dataHead)&(len(q.data)-1)].WRID)
	q.dataHead++
	out.Status, out.VendorErr = wc.Status, wc.VendorErr
	if wc.Status != verbs.StatusSuccess {
		return
	}
	out.Opcode, out.ByteLen, out.Flags = verbs.WCRecv, wc.ByteLen, WCHasLength
	if wc.Flags&verbs.WCWithImm != 0 {
		out.Flags, out.Imm = WCHasLength|WCHasImm, wc.Imm
	}
}

// finished adds a receive to those to be reported.
func (q *VirtualQP) finished(id uint64) *WC {
	wc := &q.done[int(q.doneTail)&(len(q.done)-1)]
	q.doneTail++
	*wc = WC{WRID: id, QP: q}
	q.counted.recvCompleted++
	return wc
}

// arrived takes a message that is whole.
func (q *VirtualQP) arrived(m message) {
	if q.earlyHead == q.earlyTail && q.notifyHead != q.notifyTo {
		q.notify(&m)
		return
	}
	if q.earlyTail-q.earlyHead == uint32(len(q.early)) {
		q.fail(q.lanes[0], errTooEarly)
		return
	}
	q.early[int(q.earlyTail)&(len(q.early)-1)] = m
	q.earlyTail++
}

// match gives messages to the notification receives that wait.
func (q *VirtualQP) match() {
	for q.notifyHead != q.notifyTo && q.earlyHead != q.earlyTail {
		q.notify(&q.early[int(q.earlyHead)&(len(q.early)-1)])
		q.earlyHead++
	}
}

// notify ends the oldest notification receive with a message.
func (q *VirtualQP) notify(m *message) {
	wc := q.finished(q.notifications[int(q.notifyHead)&(len(q.notifications)-1)])
	wc.Opcode, wc.Flags, wc.Imm, wc.ByteLen = verbs.WCRecvRDMAWithImm, m.flags, m.imm, m.length
	q.notifyHead++
}

// reportReceives writes the receives that have ended.
func (q *VirtualQP) reportReceives(dst []WC) (n int) {
	for q.doneHead != q.doneTail && n < len(dst) {
		dst[n] = q.done[int(q.doneHead)&(len(q.done)-1)]
		q.doneHead++
		n++
	}
	return n
}

// flushNotifications ends the notification receives of a VirtualQP that has failed, when
// the lanes have given back all receives of the engine: until then a message may still be
// on its way out of a CQ.
func (q *VirtualQP) flushNotifications() {
	if q.shared != nil && !q.cq.passedAll(&q.emptied) {
		return
	}
	for _, l := range q.all {
		if l.role != roleMessage && l.recvHead != l.recvTail {
			return
		}
	}
	for ; q.notifyHead != q.notifyTo; q.notifyHead++ {
		wc := q.finished(q.notifications[int(q.notifyHead)&(len(q.notifications)-1)])
		wc.Status = verbs.StatusWRFlushErr
	}
}

// flushData ends the data receives of a VirtualQP that has failed while no NIC had them.
func (q *VirtualQP) flushData() {
	if q.messageLane == nil || q.messageLane.life.state == laneUp {
		return // the NIC gives them back
	}
	for ; q.dataHead != q.dataTail; q.dataHead++ {
		wc := q.finished(q.data[int(q.dataHead)&(len(q.data)-1)].WRID)
		wc.Status = verbs.StatusWRFlushErr
	}
}

// feedLane posts receives on a lane again, unless too many messages wait for the user or
// the lane is too far ahead of the others: then its sender meets RNR.
func (q *VirtualQP) feedLane(l *lane) {
	if q.state != stateConnected || !l.life.receives() {
		return
	}
	if q.earlyTail-q.earlyHead >= q.depth || q.scheme.ahead(l) {
		if !l.hungry {
			l.hungry = true
			q.hungry++
		}
		return
	}
	if l.hungry {
		l.hungry = false
		q.hungry--
	}
	if err := q.replenish(l); err != nil {
		q.laneBroken(l, err)
	}
}

// feedHungry tries the lanes again that were not fed.
func (q *VirtualQP) feedHungry() {
	if q.hungry == 0 || q.earlyTail-q.earlyHead >= q.depth {
		return
	}
	for _, l := range q.all {
		if l.hungry {
			q.feedLane(l)
		}
	}
}

// replenish fills the receive queue of a lane with the engine's receives. The message lane
// holds the user's, which are posted again after a reset, and a lane that passes through
// holds only what the user gave to it.
func (q *VirtualQP) replenish(l *lane) error {
	if l.role == roleMessage {
		for seq := q.dataHead; seq != q.dataTail; seq++ {
			if err := q.postDataRecv(&q.data[int(seq)&(len(q.data)-1)], seq); err != nil {
				return err
			}
		}
		return nil
	}
	if q.direct || q.takesShared(l) || (q.cfg.Scheme == Spray && l != q.notifyLane) {
		return nil
	}
	for l.recvTail-l.recvHead < l.recvDepth {
		chain := q.recvChain[:min(l.recvDepth-(l.recvTail-l.recvHead), chainMax)]
		for i := range chain {
			entry := l.recvTail + uint32(i)
			q.scheme.recvSGE(l, entry, &chain[i])
			chain[i].WRID = uint64(newTag(l.generation, kindRecv, l.index, entry))
		}
		n, err := l.qp.PostRecv(chain)
		l.recvTail += uint32(n)
		if err != nil {
			return err
		}
	}
	return nil
}

// errTooEarly is the end of a VirtualQP whose receives come from an SRQ: that cannot hold a
// peer back.
var errTooEarly = errors.New("more messages than receives were posted for, by more than Config.RecvDepth: post receives sooner, or more of them")

// protocol ends the VirtualQP because the peer broke the rules of the scheme.
func (q *VirtualQP) protocol(l *lane, format string, args ...any) {
	q.fail(l, fmt.Errorf("the peer does not keep to %s: %s", q.cfg.Scheme, fmt.Sprintf(format, args...)))
}
