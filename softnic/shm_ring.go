package softnic

import (
	"slices"

	"ibverbx/internal/roce"
	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// shmRing is the ring from a neighbor, and the one to it. A ShmLink sends packets and lines through it. Neighbors on UDPLinks send lines
// only. If the ring is full or its reader asleep, they send a packet, which is retransmitted until the reader has it.
//
// One order of lines and packets: a line leaves only if all packets of its QP are acknowledged, and a NIC that gets a packet with a later
// PSN than expected first serves its rings.
type shmRing struct {
	neighbor *neighbor
	// packets is the link whose packets use the ring, nil between neighbors on UDPLinks.
	packets *ShmLink
	writer  shm.Writer
	reader  shm.Reader
	bell    shm.Bell
	// dirty is set if the peer has to look at its ring since the bell was last rung.
	dirty bool
	// serving is set while entries are served, which must not be nested.
	serving bool
	// sends is the number of entries written up to the last line with bytes.
	sends uint32
	// from is the path of the peer's packets.
	from path
	// parts is scratch space for the data of a request.
	parts [verbs.MaxSGE][]byte
	// header, packet and entry are the entry being served.
	header [shm.Header]byte
	packet packet
	entry  shm.Line
}

// open places the ring in the segments of both sides.
func (r *shmRing) open(b *neighbor) {
	r.neighbor, b.ring = b, r
	r.writer.Init(b.own.Ring(), b.peers.Taken())
	r.reader.Init(b.peers.Ring(), b.own.Taken())
	r.bell.Init(b.own, b.peers)
}

// room reports whether the ring accepts a line of q now. If not, q waits for a free slot on a ShmLink.
func (r *shmRing) room(q *qp) bool {
	if r.packets != nil {
		return r.packets.room(q)
	}
	return r.free()
}

// free is room without waiting, for a request that has not been queued.
func (r *shmRing) free() bool {
	if r.packets != nil {
		return r.writer.Room(1 + shmReserve)
	}
	return !r.bell.Asleep() && r.neighbor.nic.core.queue == nil && r.writer.Room(1)
}

// serveBatch serves up to shmBatch entries and leaves the consequences to the work lists.
func (r *shmRing) serveBatch() {
	if r.serving {
		return
	}
	r.serving = true
	for range shmBatch {
		payload, ok, sound := r.reader.Next(&r.header)
		if !ok {
			break
		}
		if !sound || !r.serve(payload) {
			r.neighbor.nic.stats.Malformed++
		}
	}
	r.serving = false
	r.release(shmLazy)
	if r.packets != nil {
		r.packets.resume()
	}
}

// serveAll serves all entries that are in the ring now.
func (r *shmRing) serveAll() {
	for left := shm.Slots; left > 0 && !r.serving && r.reader.Unread(); left -= shmBatch {
		r.serveBatch()
	}
}

// release lets the peer reuse served entries once there are n.
func (r *shmRing) release(n uint32) {
	if r.reader.Release(n) && r.neighbor.peers.Wants().Load() != 0 {
		r.dirty = true // the peer waits for free slots
	}
}

// serve passes the packet or the line of an entry to the NIC. It reports false if the entry is malformed.
func (r *shmRing) serve(payload []byte) bool {
	mark := r.header[shm.Header-1]
	if mark == shmLine {
		return r.serveLine(payload)
	}
	p, n := &r.packet, len(payload)
	if r.packets == nil || p.DecodeHeader(r.header[:], n+roce.Pad(n)) != roce.OK {
		return false
	}
	switch {
	case mark == 0 && n == 0:
		p.noPayload()
	case mark == 0:
		p.setPayload(payload)
	case mark == shmPlaced && n == 0 && p.Opcode == roce.RC|roce.OpWriteOnlyImm:
		p.length, p.numSegs = p.DMALen, 0
	default:
		return false
	}
	p.path = &r.from
	r.neighbor.nic.receive(p)
	return true
}

// leadsTo reports whether q is connected to the ring's peer.
func (r *shmRing) leadsTo(q *qp) bool {
	if r.packets != nil {
		return q.isFromPeer(&r.from)
	}
	return r.neighbor.leadsTo(q)
}

// serveRings serves all entries of the NIC's rings, and reports whether there were any.
func (n *NIC) serveRings() (some bool) {
	for _, b := range n.core.neighbors {
		if r := b.ring; r != nil && !r.serving && r.reader.Unread() {
			r.serveAll()
			some = true
		}
	}
	return some
}

// hasRing reports whether the NIC has a ring.
func (n *NIC) hasRing() bool {
	return slices.ContainsFunc(n.core.neighbors, func(b *neighbor) bool { return b.ring != nil })
}

// ring returns the ring to the QP's peer, or nil.
func (q *qp) ring() *shmRing {
	if q.path == nil || q.path.neighbor == nil {
		return nil
	}
	return q.path.neighbor.ring
}
