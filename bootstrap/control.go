package bootstrap

import "fmt"

// Control carries datagrams of the engine beside the messages of a Conn. It implements
// ibverbx.Control and never blocks. When a queue is full the oldest datagram is lost.
type Control struct{ conn *Conn }

// Control makes the Conn keep the datagrams that arrive from now on. Earlier ones are lost. There is
// one control channel: another call returns the same.
func (c *Conn) Control() *Control {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.datagrams.in.Open()
	c.datagrams.out.Open()
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
	if c.datagrams.out.Put(b) {
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
	if n = c.datagrams.in.Take(b); n == 0 && c.err != nil {
		return 0, ErrClosed
	}
	return n, nil
}
