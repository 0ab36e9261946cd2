package softnic

import (
	"sync/atomic"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// The rings of a NIC on a UDPLink share one reader: the program in Poll, or else the goroutine of the port.
// While that waits for packets, it is asleep to all peers, and they send packets. A line that a peer has published before it could see
// that is announced on the socket (shm.Look).

const (
	// hotRings is the number of rings that each look reads. It reads one of the others in addition.
	hotRings = 4
	// After a line, a polling program reads its sockets every ringRest polls only, until ringRests polls were empty.
	ringRest, ringRests = 8, 64
)

// ringWatch is the state of a NIC's rings on a UDPLink. The core's lock guards it.
type ringWatch struct {
	// rings is the number of rings. It is also read without the lock.
	rings atomic.Int32
	// asleep is set while the port's goroutine waits for packets.
	asleep bool
	// turn counts looks. Each reads another cold ring.
	turn int
	// misses counts the polls since the last line.
	misses uint32
}

// addRing opens the ring of a new neighbor.
func (w *udpNIC) addRing(b *neighbor) {
	r, h := &shmRing{}, &w.neighborhood
	r.open(b)
	r.from = w.nic.pathFrom(udpAddr{verbs.GIDFromAddr(b.at.Addr()), b.at.Port()})
	if h.asleep {
		r.bell.Doze()
	}
	h.rings.Add(1)
}

// removeRing serves the rest of the ring of a neighbor that has ended, and closes it.
func (w *udpNIC) removeRing(b *neighbor) {
	if b.ring == nil {
		return
	}
	b.ring.catchUp()
	b.ring = nil
	w.neighborhood.rings.Add(-1)
}

// readRings serves lines for a program whose CQ is empty, or for the goroutine of the port, and reports whether it has found any.
func (w *udpNIC) readRings() (some bool) {
	h, all := &w.neighborhood, w.neighbors
	if h.rings.Load() == 0 {
		return false
	}
	n := len(all)
	for _, b := range all[:min(n, hotRings)] {
		some = b.read() || some
	}
	if cold := n - hotRings; cold > 0 {
		h.turn++
		i, k := hotRings+h.turn%cold, h.turn%hotRings
		if all[i].read() {
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

// read serves some entries of the neighbor's ring, and reports whether it has found any.
func (b *neighbor) read() bool {
	r := b.ring
	if r == nil {
		return false
	}
	if !r.reader.Unread() {
		r.release(1)
		return false
	}
	r.take()
	return true
}

// restsSockets reports whether a poll leaves out the sockets because lines have arrived lately. Reading an empty socket takes longer.
func (w *udpNIC) restsSockets() bool {
	h := &w.neighborhood
	return h.rings.Load() > 0 && h.misses < ringRests && h.misses%ringRest != 0
}

// look is readRings for the goroutine of the port.
func (w *udpNIC) look() bool {
	if w.neighborhood.rings.Load() == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.nic.closed && w.readRings()
}

// doze makes peers send packets instead of lines, because the goroutine of the port is about to wait for packets. It reports false if it has
// found lines.
func (w *udpNIC) doze() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fallAsleep(true)
	if w.nic.closed || !w.nic.serveRings() {
		return true
	}
	w.settle()
	w.fallAsleep(false)
	return false
}

// rise ends doze.
func (w *udpNIC) rise() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fallAsleep(false)
}

func (w *udpNIC) fallAsleep(asleep bool) {
	w.neighborhood.asleep = asleep
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

// serveNudged serves a line that was published while this side fell asleep. The peer has sent a message since.
func (b *neighbor) serveNudged() {
	c := b.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.ring != nil && !b.nic.closed && b.ring.reader.Unread() {
		b.ring.catchUp()
		c.settle()
	}
}

// nudge makes the peer look at its ring, because it fell asleep while this side published a line. If the socket is full, the peer looks
// when it reads an earlier message.
func (r *shmRing) nudge() {
	if r.packets == nil && r.bell.Asleep() {
		r.side.conn.Send(shm.Message{Kind: shm.Look}, -1)
	}
}
