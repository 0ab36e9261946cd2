package stream

import (
	"net"
	"time"
)

// deadline is that of one direction. Conn.mu guards it.
type deadline struct {
	timer *time.Timer
	// turn counts calls of set, so that a timer that has fired late is known.
	turn    uint64
	expired bool
}

// stop makes the deadline never expire.
func (d *deadline) stop() {
	d.turn++
	if d.expired = false; d.timer != nil {
		d.timer.Stop()
	}
}

// setDeadline changes a deadline. wake is where its direction waits.
func (c *Conn) setDeadline(d *deadline, wake chan struct{}, t time.Time) error {
	c.mu.Lock()
	if c.closed {
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
		signal(wake)
		return nil
	}
	turn := d.turn
	d.timer = time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.turn == turn {
			d.expired = true
			signal(wake)
		}
	})
	return nil
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

// SetReadDeadline makes Read fail with os.ErrDeadlineExceeded from t on. A zero t means never.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.in.deadline, c.in.wake, t)
}

// SetWriteDeadline makes Write fail with os.ErrDeadlineExceeded from t on. A zero t means never. Write then returns how many bytes
// it has taken. Those are sent.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.out.deadline, c.out.wake, t)
}
