package bootstrap

import (
	"fmt"

	"ibverbx/internal/ring"
)

const (
	// maxDatagrams is the number of datagrams that a queue holds.
	maxDatagrams = 256
	// fewDatagrams is how many it holds before it grows. Most connections never need more.
	fewDatagrams = 4
)

// datagrams is a bounded queue of datagrams. It has no capacity until Conn.Control is called.
// The queue and its slots grow with the datagrams that they hold.
type datagrams struct{ ring.Ring[[]byte] }

// put adds a datagram. It reports whether one was lost: the oldest one if the queue is full, this
// one if the queue has no capacity.
func (q *datagrams) put(b []byte) (lost bool) {
	if q.Cap() == 0 {
		return true
	}
	if q.Full() && q.Cap() < maxDatagrams {
		q.Grow()
	} else if lost = q.Full(); lost {
		q.Drop(1)
	}
	d := q.Extend()
	*d = append((*d)[:0], b...)
	return lost
}

// take moves the oldest datagram to b and returns its length, or 0 if there is none.
func (q *datagrams) take(b []byte) int {
	if q.Len() == 0 {
		return 0
	}
	n := copy(b, *q.Front())
	q.Drop(1)
	return n
}

// Control carries datagrams of the engine beside the messages of a Conn. It implements
// ibverbx.Control and never blocks. When a queue is full the oldest datagram is lost.
type Control struct{ conn *Conn }

// Control makes the Conn keep the datagrams that arrive from now on. Earlier ones are lost. There is
// one control channel: another call returns the same.
func (c *Conn) Control() *Control {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.datagrams.in.Cap() == 0 {
		c.datagrams.in.Ring, c.datagrams.out.Ring = ring.New[[]byte](fewDatagrams), ring.New[[]byte](fewDatagrams)
	}
	return &Control{conn: c}
}

// Notify makes the Conn call wake when a datagram arrives and when the Conn ends. wake must not block. Another
// call replaces wake, and nil stops that.
func (k *Control) Notify(wake func()) {
	k.conn.mu.Lock()
	defer k.conn.mu.Unlock()
	k.conn.onDatum = wake
}

// Send queues a datagram of at most MaxDatagram bytes. It never blocks.
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

// Recv moves a datagram to b. n is 0 if there is none. It never blocks.
func (k *Control) Recv(b []byte) (n int, err error) {
	c := k.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = c.datagrams.in.take(b); n == 0 && c.err != nil {
		return 0, ErrClosed
	}
	return n, nil
}
