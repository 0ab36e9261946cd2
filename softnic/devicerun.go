package softnic

import "ibverbx/verbs"

// runDevice is burst for requests that use memory of a device. It does the first ones of wrs together, until
// one does not or is not plain, and returns how many are in place, with the number of READs and the signals
// among them. The requests of a failed copy are left to the packets, which find out what failed.
func (p *pair) runDevice(q *qp, wrs []verbs.SendWR) (n, reads, signaled int) {
	peer := p.other(q)
	if q.nic.mrs.devices.Load() == nil && peer.nic.mrs.devices.Load() == nil {
		return 0, 0, 0
	}
	if p.copies == nil {
		p.copies = &copies{list: make([]verbs.DeviceCopy, 0, startCopies)}
	}
	c, placed := p.copies, 0
	c.failed = false
	for n < len(wrs) && !c.failed {
		if k, flags := c.stretch(q, peer, wrs[n:]); k > 0 {
			n += k
			signaled |= int(flags & verbs.SendSignaled)
			continue
		}
		wr := &wrs[n]
		recv, length, ok := c.request(q, peer, wr)
		if !ok {
			break
		}
		if recv != nil { // its completion covers the requests before it
			if !c.flush() {
				break
			}
			in := inbox{cq: peer.recvCQ}
			ok := in.complete(peer, wr, recv.wrid, length) != nil
			in.leave()
			if !ok {
				break
			}
			placed = n + 1
		}
		n++
		reads += index(wr.Opcode == verbs.OpRDMARead)
		signaled |= int(wr.Flags & verbs.SendSignaled)
	}
	if c.flush() {
		return n, reads, signaled
	}
	reads, signaled = 0, 0
	for i := range wrs[:placed] {
		reads += index(wrs[i].Opcode == verbs.OpRDMARead)
		signaled |= int(wrs[i].Flags & verbs.SendSignaled)
	}
	return placed, reads, signaled
}

// stretch queues the first WRITEs of one piece of memory each, from one region on a device to another, as long chains have. It
// returns how many they are and their flags. request would do the same for each in four times the time.
func (c *copies) stretch(q, peer *qp, wrs []verbs.SendWR) (n int, flags verbs.SendFlags) {
	lkey, rkey := wrs[0].SGE[0].LKey, wrs[0].RKey
	src, dst := q.nic.mrs.get(lkey), peer.nic.mrs.get(rkey)
	_, ok := src.onDevice(q.pd, src.addr, 0, 0)
	_, found := dst.onDevice(peer.pd, dst.addr, 0, verbs.AccessRemoteWrite)
	if !ok || !found || peer.attr.Access&verbs.AccessRemoteWrite == 0 {
		return 0, 0
	}
	for n < len(wrs) && !c.failed {
		wr := &wrs[n]
		e := &wr.SGE[0]
		length, from, to := uint64(e.Length), e.Addr-src.addr, wr.RemoteAddr-dst.addr
		if wr.Opcode != verbs.OpRDMAWrite || wr.NumSGE != 1 || wr.Flags&^plainFlags != 0 || e.LKey != lkey || wr.RKey != rkey ||
			length-1 >= maxMsgSize || from > src.length || length > src.length-from || to > dst.length || length > dst.length-to {
			break
		}
		one := c.next(dst.device)
		one.To, one.From, one.Len = dst.base+to, src.base+from, length
		flags |= wr.Flags
		n++
	}
	return n, flags
}

// request queues the copies of a request, and returns the peer's receive for it, if it needs one. It reports
// false if no device takes part, or if the request is not plain. Then nothing but bytes has changed, as with
// perform.
func (c *copies) request(q, peer *qp, wr *verbs.SendWR) (recv *recvWQE, length uint32, ok bool) {
	if q.legal>>wr.Opcode&1 == 0 || wr.NumSGE > q.sge.own || !wr.Flags.Valid() || wr.Opcode > verbs.OpRDMARead {
		return nil, 0, false
	}
	local, remote := &c.local, &c.remote
	local.reset()
	remote.reset()
	if !local.request(q, wr) || local.length > maxMsgSize {
		return nil, 0, false
	}
	length = uint32(local.length)
	isRead, isSend, access := wr.Opcode == verbs.OpRDMARead, wr.Opcode == verbs.OpSend || wr.Opcode == verbs.OpSendWithImm, verbs.AccessRemoteWrite
	if isRead {
		access = verbs.AccessRemoteRead
	}
	if !isSend {
		if length == 0 || !remote.add(peer, wr.RKey, wr.RemoteAddr, length, access) || peer.attr.Access&access == 0 || (isRead && !q.hasResources(peer)) {
			return nil, 0, false
		}
	}
	if isSend || wr.Opcode == verbs.OpRDMAWriteWithImm {
		if recv = peer.nextRecv(); recv == nil {
			return nil, 0, false
		}
	}
	if isSend && (!remote.collect(peer, recv.sge[:recv.numSGE], verbs.AccessLocalWrite) || remote.length < local.length) {
		return nil, 0, false
	}
	if !local.device && !remote.device {
		return nil, 0, false
	}
	if isRead {
		c.move(local, remote)
	} else {
		c.move(remote, local)
	}
	return recv, length, true
}

// request adds the local bytes of a request. It reports false if the request breaks a rule of checkSend or
// names memory that it may not use.
func (s *pieces) request(q *qp, wr *verbs.SendWR) bool {
	sges := wr.SGE[:wr.NumSGE]
	if wr.Flags&verbs.SendInline == 0 {
		need := verbs.Access(0)
		if wr.Opcode == verbs.OpRDMARead {
			need = verbs.AccessLocalWrite
		}
		return s.collect(q, sges, need)
	}
	var segs [verbs.MaxSGE][]byte
	_, ok := q.segments(wr, &segs)
	for _, b := range segs[:wr.NumSGE] {
		if len(b) > 0 {
			p := s.next(uint32(len(b)))
			p.bytes, p.device, p.addr = b, nil, 0
		}
	}
	return ok
}
