package stream

import (
	"net"
	"time"

	"ibverbx/internal/broadcast"
)

// deadline is the deadline of one direction. Conn.mu guards it.
type deadline struct {
	timer *time.Timer
	// turn counts calls of set, to detect a stale timer.
	turn    uint64
	expired bool
}

// stop clears the deadline.
func (d *deadline) stop() {
	d.turn++
	if d.expired = false; d.timer != nil {
		d.timer.Stop()
	}
}

// setDeadline changes a deadline. wake wakes its direction.
func (c *Conn) setDeadline(d *deadline, wake chan struct{}, t time.Time) error {
	c.mu.Lock()
	if c.isClosed() {
		c.mu.Unlock()
		return c.opError("set", net.ErrClosed)
	}
	defer c.mu.Unlock()
	d.stop()
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		d.expired = true
		broadcast.Wake(wake)
		return nil
	}
	turn := d.turn
	d.timer = time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.turn == turn {
			d.expired = true
			broadcast.Wake(wake)
		}
	})
	return nil
}

// SetDeadline calls SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline makes current and future Reads fail with os.ErrDeadlineExceeded after t. A zero t clears the deadline. After Close it
// returns net.ErrClosed.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.in.deadline, c.in.wake, t)
}

// SetWriteDeadline makes current and future Writes fail with os.ErrDeadlineExceeded after t. A zero t clears the deadline. A timed-out
// Write returns the number of bytes copied; they are still sent. After Close it returns net.ErrClosed.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.out.deadline, c.out.wake, t)
}
