package bootstrap

import "fmt"

// ringDepth is how many datagrams wait in a queue.
const ringDepth = 256

// ring is a bounded queue of datagrams.
type ring struct {
	slots      []slot // nil until it is used
	head, tail uint32
}

type slot struct {
	n int
	b [MaxDatagram]byte
}

// put adds a datagram and reports whether one was lost: the oldest, if the ring is full, or
// this one, if it is not in use.
func (r *ring) put(b []byte) (lost bool) {
	if r.slots == nil {
		return true
	}
	if r.tail-r.head == ringDepth {
		r.head++
		lost = true
	}
	s := &r.slots[r.tail%ringDepth]
	s.n = copy(s.b[:], b)
	r.tail++
	return lost
}

// take moves the oldest datagram to b and returns its length, 0 if there is none.
func (r *ring) take(b []byte) int {
	if r.head == r.tail {
		return 0
	}
	s := &r.slots[r.head%ringDepth]
	r.head++
	return copy(b, s.b[:s.n])
}

// Control carries datagrams of the engine beside the messages of a Conn: it is an
// ibverbx.Control. Nothing in it waits. When a queue is full the oldest datagram is lost.
type Control struct{ conn *Conn }

// Control makes the Conn keep the datagrams that come from now on; those before it are
// lost. wake, if not nil, is called when one has come, and when the Conn has ended; it
// must not block. There is one control channel: another call changes wake.
func (c *Conn) Control(wake func()) *Control {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.datagrams.in.slots == nil {
		c.datagrams.in.slots = make([]slot, ringDepth)
		c.datagrams.out.slots = make([]slot, ringDepth)
	}
	c.onDatum = wake
	return &Control{conn: c}
}

// Send queues a datagram of at most MaxDatagram bytes. It never waits.
func (k *Control) Send(b []byte) error {
	c := k.conn
	if len(b) == 0 || len(b) > MaxDatagram {
		return fmt.Errorf("send datagram: %w: %d bytes, want 1 to %d", ErrTooLong, len(b), MaxDatagram)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.closing {
		return ErrClosed
	}
	if c.datagrams.out.put(b) {
		c.stats.DatagramsLost++
	}
	c.nudge()
	return nil
}

// Recv takes a datagram into b. n is 0 if there is none. It never waits.
func (k *Control) Recv(b []byte) (n int, err error) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = c.datagrams.in.take(b); n == 0 && c.err != nil {
		return 0, ErrClosed
	}
	return n, nil
}
