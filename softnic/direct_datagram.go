package softnic

import "ibverbx/verbs"

// runDatagrams is pair.run for a UD QP, on links with immediate delivery. It executes requests in
// order, bypassing packets and the send queue, until one is not plain. It returns the number executed,
// and ErrQueueFull if the queue is full. Neither QP of a datagram has a pair, so the core's mutex
// guards both and gates stay open: package reliable sends its ACKs as datagrams.
func (q *qp) runDatagrams(wrs []verbs.SendWR) (n int, err error) {
	if !q.core.traits.immediate || !q.quiet() || q.sqHead != q.sqTail || q.usable() != nil {
		return 0, nil
	}
	if free := q.sqUsed.room(q.maxSend, len(wrs)); len(wrs) > free {
		wrs, err = wrs[:free], verbs.ErrQueueFull
	}
	signaled := q.signalAll
	for n < len(wrs) && q.datagram(&wrs[n]) {
		signaled = signaled || wrs[n].Flags&verbs.SendSignaled != 0
		n++
	}
	if n < len(wrs) {
		err = nil // the packet path handles the next request
	}
	if n == 0 {
		return 0, err
	}
	q.nic.stats.PacketsSent += uint64(n)
	q.sqUsed.taken += uint32(n)
	q.snd = q.snd.Add(uint32(n))
	q.una = q.snd
	if signaled {
		q.reportPlain(wrs[:n])
	} else {
		q.withoutCQE += uint32(n)
	}
	return n, err
}

// quiet reports whether q is in RTS without an observer, an injected fault, a failure or pending work.
func (q *qp) quiet() bool {
	return q.state == verbs.StateRTS && q.lists == 0 && !q.failingNAK && q.injected == nil && q.nic.observe == nil && q.nic.portUp
}

// datagram executes one datagram. It returns false if the packet path must send it. In that case only
// bytes of the receive were written, which the packet path writes again.
func (q *qp) datagram(wr *verbs.SendWR) bool {
	a := q.nic.ahs.get(uint32(wr.AH))
	if a == nil || wr.AH>>32 != 0 || a.pd != q.pd || a.path.sealing != nil || q.sealing != nil {
		return false
	}
	to := q.core.find(a.path)
	if to == nil {
		return false
	}
	c := &q.nic.stage.copies
	c.local.reset()
	c.remote.reset()
	c.local.addHost(to.stage.placed[:])
	if !c.local.addRequest(q, wr) || c.local.length > uint64(verbs.GRHLen+q.mtu().Bytes()) {
		return false
	}
	length := uint32(c.local.length)
	peer, key := to.qps.get(wr.RemoteQPN), wr.RemoteQKey
	if key>>31 != 0 {
		key = q.attr.QKey // as sendDatagrams does
	}
	if peer == nil || peer.typ != verbs.UD || peer.sealing != nil || peer.attr.QKey != key || !peer.quiet() {
		return false
	}
	recv := peer.nextRecv()
	if recv == nil || !c.remote.addSGEs(peer, recv.sge[:recv.numSGE], 0, length, verbs.AccessLocalWrite) {
		return false
	}
	putGRH(&to.stage.placed, a.path, length-verbs.GRHLen)
	if c.move(&c.remote, &c.local); c.queued() && !c.flushAndClear() {
		return false
	}
	in := inbox{cq: peer.recvCQ}
	wc := in.complete(peer, wr, recv.wrid, length)
	if wc != nil {
		to.stats.PacketsReceived++
		wc.Flags, wc.SrcQPN, wc.SL = wc.Flags|verbs.WCGRH, q.num, a.path.attr.SL
	}
	in.leave()
	return wc != nil
}
