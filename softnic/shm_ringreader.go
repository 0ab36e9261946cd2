package softnic

import (
	"sync/atomic"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// The rings of a NIC on a UDPLink share one reader: the program in Poll, or else the port's goroutine. While the goroutine
// waits for packets, its rings are asleep and peers send packets. A peer that published a line before it could see that
// announces the line on the socket (shm.Look).

const (
	// hotRings is the number of rings read by each poll, which reads one of the others in addition.
	hotRings = 4
	// After a line, a polling program reads its sockets every ringRest polls only, until ringRests polls were empty.
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
	if h.rings.Load() == 0 {
		return false
	}
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
	return h.rings.Load() > 0 && h.misses < ringRests && h.misses%ringRest != 0
}

// pollRings is readRings for the port's goroutine.
func (w *udpNIC) pollRings() bool {
	if w.discovery.rings.Load() == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.nic.closed && w.readRings()
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

// serveAnnounced serves a line that was published while this side fell asleep. The peer has sent a message since.
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
		r.neighbor.conn.Send(shm.Message{Kind: shm.Look}, -1)
	}
}
