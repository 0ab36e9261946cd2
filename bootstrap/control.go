package bootstrap

import "fmt"

// Control carries the engine's datagrams next to the messages of a Conn. It implements ibverbx.Control, never blocks and is safe for
// concurrent use. A full queue drops its oldest datagram.
type Control struct{ conn *Conn }

// Control makes the Conn keep datagrams from now on; earlier ones are dropped. A Conn has one
// control channel, which every call returns.
func (c *Conn) Control() *Control {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.datagrams.in.Open()
	c.datagrams.out.Open()
	return &Control{conn: c}
}

// Notify makes the Conn call wake when a datagram arrives and when the Conn is closed. wake must
// not block. A later call replaces wake; nil removes it.
func (k *Control) Notify(wake func()) {
	if c := k.conn; c.isOpen() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.onDatagram = wake
	}
}

// Send queues a datagram without blocking. It returns ErrTooLong unless b has 1 to MaxDatagram bytes, and ErrClosed once the Conn is
// closed.
func (k *Control) Send(b []byte) error {
	c := k.conn
	if !c.isOpen() {
		return ErrClosed
	}
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
	c.wakeWriter()
	return nil
}

// Recv copies the next datagram to b without blocking. n is 0 if the queue is empty. Once the Conn is closed and the queue empty, it
// returns ErrClosed.
func (k *Control) Recv(b []byte) (n int, err error) {
	c := k.conn
	if !c.isOpen() {
		return 0, ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = c.datagrams.in.Take(b); n == 0 && c.err != nil {
		return 0, ErrClosed
	}
	return n, nil
}
