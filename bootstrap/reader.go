package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// reader reads frames until the Conn is closed. It only ever waits for the peer: space for the peer's window is reserved in advance.
func (c *Conn) reader() {
	defer c.loops.Done()
	for {
		if err := c.readFrame(); err != nil {
			c.fail(c.readError(err))
			return
		}
	}
}

// readFrame reads one frame. The whole frame must arrive within DeadAfter, so single bytes do not
// keep a peer alive.
func (c *Conn) readFrame() error {
	if err := c.raw.SetReadDeadline(time.Now().Add(c.dead)); err != nil {
		return err
	}
	return c.handleFrame()
}

// handleFrame reads one frame and handles it.
func (c *Conn) handleFrame() error {
	h, err := readHeader(c.read)
	if err != nil {
		return err
	}
	switch h.typ {
	case frameMessage:
		return c.readMessage(h)
	case frameDatagram:
		return c.readDatagram(h)
	case frameWindow:
		var b [windowLen]byte
		if _, err := io.ReadFull(c.read, b[:]); err != nil {
			return err
		}
		return c.addCredit(binary.BigEndian.Uint32(b[:]))
	case frameKeepalive:
		c.mu.Lock()
		c.stats.KeepalivesIn++
		c.mu.Unlock()
		return nil
	case frameBye:
		text, err := readPayload(c.read, h)
		if err != nil {
			return err
		}
		if len(text) > 0 {
			return fmt.Errorf("%w: %s", ErrPeerClosed, quoted(string(text)))
		}
		return ErrPeerClosed
	default:
		return violation("a frame of type %d after the handshake", h.typ)
	}
}

func (c *Conn) readMessage(h header) error {
	n := int(h.length) + messageCost
	c.mu.Lock()
	ok := n <= c.recvCredit
	if ok {
		c.recvCredit -= n
	}
	c.mu.Unlock()
	if !ok {
		return violation("a message of %d bytes exceeds the granted window", h.length)
	}
	body, err := readPayload(c.read, h)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inbox = append(c.inbox, Message{Kind: h.kind, Body: body})
	c.stats.MessagesIn++
	c.changed.Broadcast()
	return nil
}

func (c *Conn) readDatagram(h header) error {
	var b [MaxDatagram]byte
	if _, err := io.ReadFull(c.read, b[:h.length]); err != nil {
		return err
	}
	c.mu.Lock()
	wake := c.onDatagram
	c.stats.DatagramsIn++
	if c.datagrams.in.Put(b[:h.length]) {
		c.stats.DatagramsLost++
	}
	c.mu.Unlock()
	if wake != nil {
		wake()
	}
	return nil
}

// addCredit adds n bytes to the send credit.
func (c *Conn) addCredit(n uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n == 0 || int64(c.sendCredit)+int64(n) > maxWindow {
		return violation("invalid grant of %d bytes on top of %d", n, c.sendCredit)
	}
	c.sendCredit += int(n)
	c.changed.Broadcast()
	return nil
}

// readError explains a failed read.
func (c *Conn) readError(err error) error {
	c.mu.Lock()
	closing := c.closing
	c.mu.Unlock()
	switch {
	case closing:
		return ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: no data for %v", ErrSilent, c.dead)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w without a farewell frame", ErrPeerClosed)
	}
	return err
}
