package softnic

import (
	"slices"
	"sync/atomic"

	"ibverbx/internal/roce"
	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// shmRing is the pair of rings between two neighbors. A ShmLink sends packets and lines through it.
// Neighbors on UDPLinks send only lines. If the ring is full or its reader asleep, they send a packet,
// which is retransmitted until the reader has received it.
//
// Lines and packets stay in order: a line is sent only once all packets of its QP are acknowledged, and
// a NIC serves its rings before it handles a packet with a later PSN than expected.
type shmRing struct {
	neighbor *neighbor
	// packets is the link whose packets use the ring, nil between neighbors on UDPLinks.
	packets *ShmLink
	writer  shm.Writer
	reader  shm.Reader
	bell    shm.Bell
	// dirty is set if the peer must be woken to read entries or to use freed slots.
	dirty bool
	// serving is set while entries are being served, which must not nest.
	serving bool
	// sends is the number of entries up to the last SEND line.
	sends uint32
	// from is the path of the peer's packets.
	from path
	// parts holds the data of the current request.
	parts [verbs.MaxSGE][]byte
	// header, packet and entry describe the entry being served.
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

// room reports whether the ring accepts a line of q now. Otherwise q waits for a free slot on a
// ShmLink.
func (r *shmRing) room(q *qp) bool {
	if r.packets != nil {
		return r.packets.room(q)
	}
	return r.free()
}

// free reports whether the ring accepts a line now. Unlike room, it does not make a QP wait.
func (r *shmRing) free() bool {
	if r.packets != nil {
		return r.writer.Room(1 + shmReserve)
	}
	return !r.bell.Asleep() && r.neighbor.nic.core.queue == nil && r.writer.Room(1)
}

// serveBatch serves up to shmBatch entries. Resulting work is queued on the work lists.
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
	r.release(shmReleaseBatch)
	if r.packets != nil {
		r.packets.resume()
	}
}

// serveAll serves all entries now in the ring.
func (r *shmRing) serveAll() {
	for left := shm.Slots; left > 0 && !r.serving && r.reader.Unread(); left -= shmBatch {
		r.serveBatch()
	}
}

// release frees served entries for reuse by the peer, if there are at least n.
func (r *shmRing) release(n uint32) {
	if r.reader.Release(n) && r.neighbor.peers.Wants().Load() != 0 {
		r.dirty = true // the peer waits for a free slot
	}
}

// serve passes the packet or the line of an entry to the NIC. It returns false if the entry is
// malformed.
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

// leadsTo reports whether q is connected to the peer of the ring.
func (r *shmRing) leadsTo(q *qp) bool {
	if r.packets != nil {
		return q.isFromPeer(&r.from)
	}
	return r.neighbor.leadsTo(q)
}

// serveRings serves all entries of the NIC's rings, and reports whether it found any.
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

// The rings of a NIC on a UDPLink share one reader: the program in Poll, or else the port's goroutine. While the goroutine
// waits for packets, its rings are asleep and peers send packets. A peer that published a line before it could see that
// announces the line on the socket (shm.ReadRing).

const (
	// hotRings is the number of rings read by each poll, which reads one of the others in addition.
	hotRings = 4
	// After a line, a polling program reads its sockets only in every ringRest-th poll, until ringRests polls
	// in a row have found no lines.
	ringRest, ringRests = 8, 64
)

// ringPoller is the state of polling a NIC's rings on a UDPLink. The core's lock guards it.
type ringPoller struct {
	// rings is the number of rings. It is also read without the lock.
	rings atomic.Int32
	// asleep is set while the port's goroutine waits for packets.
	asleep bool
	// turn counts polls, to select the next cold ring.
	turn int
	// misses counts the polls since the last line.
	misses uint32
}

// addRing opens the ring of a new neighbor.
func (w *udpNIC) addRing(b *neighbor) {
	r, h := &shmRing{}, &w.discovery
	r.open(b)
	r.from = w.nic.pathFrom(udpAddr{verbs.GIDFromAddr(b.at.Addr()), b.at.Port()})
	if h.asleep {
		r.bell.Doze()
	}
	h.rings.Add(1)
}

// removeRing serves the rest of the ring of a closed neighbor, and closes it.
func (w *udpNIC) removeRing(b *neighbor) {
	if b.ring == nil {
		return
	}
	b.ring.serveAll()
	b.ring = nil
	w.discovery.rings.Add(-1)
}

// readRings serves lines for a program whose CQ is empty, or for the port's goroutine, and reports whether there were
// any.
func (w *udpNIC) readRings() (some bool) {
	h, all := &w.discovery, w.neighbors
	n := len(all)
	for _, b := range all[:min(n, hotRings)] {
		some = b.serveRing() || some
	}
	if cold := n - hotRings; cold > 0 {
		h.turn++
		i, k := hotRings+h.turn%cold, h.turn%hotRings
		if all[i].serveRing() {
			some = true
			all[i], all[k] = all[k], all[i]
		}
	}
	if h.misses++; some {
		h.misses = 0
	}
	if w.lists.busy() || !w.lists.acks.empty() {
		w.settle()
	}
	return some
}

// serveRing serves a batch of entries of the neighbor's ring, and reports whether there were any.
func (b *neighbor) serveRing() bool {
	r := b.ring
	if r == nil {
		return false
	}
	if !r.reader.Unread() {
		r.release(1)
		return false
	}
	r.serveBatch()
	return true
}

// skipsSockets reports whether a poll skips the sockets because lines have arrived lately. Reading an empty socket
// takes longer.
func (w *udpNIC) skipsSockets() bool {
	h := &w.discovery
	return h.misses < ringRests && h.misses%ringRest != 0
}

// sleepRings makes peers send packets instead of lines, because the port's goroutine is about to wait for packets. It
// returns false if it has found lines.
func (w *udpNIC) sleepRings() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.setAsleep(true)
	if w.nic.closed || !w.nic.serveRings() {
		return true
	}
	w.settle()
	w.setAsleep(false)
	return false
}

// wakeRings undoes sleepRings.
func (w *udpNIC) wakeRings() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.setAsleep(false)
}

func (w *udpNIC) setAsleep(asleep bool) {
	w.discovery.asleep = asleep
	for _, b := range w.neighbors {
		if r := b.ring; r != nil {
			if asleep {
				r.bell.Doze()
			} else {
				r.bell.Rise()
			}
		}
	}
}

// serveAnnounced serves lines published while this side was falling asleep. It runs after each message from the peer:
// see announce.
func (b *neighbor) serveAnnounced() {
	c := b.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.ring != nil && !b.nic.closed && b.ring.reader.Unread() {
		b.ring.serveAll()
		c.settle()
	}
}

// announce makes the peer serve its ring if it fell asleep while this side published a line. If the socket is full,
// the peer does so when it reads an earlier message.
func (r *shmRing) announce() {
	if r.packets == nil && r.bell.Asleep() {
		r.neighbor.conn.Send(shm.Message{Kind: shm.ReadRing}, -1)
	}
}
