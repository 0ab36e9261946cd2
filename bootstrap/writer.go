package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// batchBytes is the approximate size of a write.
const batchBytes = 64 << 10

// writer writes the queued frames, and keepalives while idle.
func (c *Conn) writer() {
	defer c.loops.Done()
	quiet := time.NewTimer(untilKeepalive(time.Now(), c.interval))
	defer quiet.Stop()
	var batch []byte
	for {
		var last bool
		batch, last = c.collect(batch[:0])
		if len(batch) == 0 {
			if cap(batch) > readBytes {
				batch = nil // an idle connection uses little memory
			}
			select {
			case <-c.done:
				return
			case <-c.wake:
				continue
			case <-quiet.C:
				batch = appendFrame(batch, frameKeepalive, 0, nil)
			}
		}
		if err := c.writeBatch(batch); err != nil {
			c.fail(err)
			return
		}
		quiet.Reset(untilKeepalive(time.Now(), c.interval))
		if last {
			c.closeWrite()
			return
		}
	}
}

// keepaliveSlots is the number of slots per interval. Keepalives are sent at the start of a slot.
const keepaliveSlots = 4

// untilKeepalive returns the time until the next keepalive after a write: at most interval, and
// less by at most a slot. Slots start at multiples of their length on the wall clock, so all Conns
// with the same interval send their keepalives together: waking a sleeping process costs several
// times as much as sending a keepalive. The bounds hold even if the clock is set.
func untilKeepalive(now time.Time, interval time.Duration) time.Duration {
	past := uint64(now.Add(interval).UnixNano()) % uint64(interval/keepaliveSlots) // unsigned, in case the clock is before 1970
	return interval - time.Duration(past)
}

// collect appends the frames to write next. Datagrams go first, because failover depends on them. last is set for the final frame.
func (c *Conn) collect(batch []byte) (_ []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b [MaxDatagram]byte
	for len(batch) < batchBytes {
		n := c.datagrams.out.Take(b[:])
		if n == 0 {
			break
		}
		batch = appendFrame(batch, frameDatagram, 0, b[:n])
		c.stats.DatagramsOut++
	}
	if c.ungranted >= window/4 {
		c.recvCredit += c.ungranted
		batch = appendFrame(batch, frameWindow, 0, binary.BigEndian.AppendUint32(nil, uint32(c.ungranted)))
		c.ungranted = 0
	}
	for len(c.outbox) > 0 && len(batch) < batchBytes {
		batch = append(batch, c.outbox[0]...)
		c.queued -= len(c.outbox[0]) - headerLen + messageCost
		c.changed.Broadcast()
		c.outbox[0] = nil
		c.outbox = c.outbox[1:]
	}
	if c.closing && len(c.outbox) == 0 {
		return appendFrame(batch, frameBye, 0, []byte(c.closeReason)), true
	}
	return batch, false
}

// writeBatch writes b. The peer must accept it within DeadAfter.
func (c *Conn) writeBatch(b []byte) error {
	if err := c.raw.SetWriteDeadline(time.Now().Add(c.dead)); err != nil {
		return c.writeError(err)
	}
	_, err := c.stream.Write(b)
	return c.writeError(err)
}

// writeError explains a failed write.
func (c *Conn) writeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: it has not read for %v", ErrSilent, c.dead)
	case errors.Is(err, net.ErrClosed):
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrPeerClosed, err)
}

// closeWrite closes the sending direction. The peer responds by closing the connection, which stops the reader, unless the timeout of Close
// does so first.
func (c *Conn) closeWrite() {
	if half, ok := c.raw.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		_ = c.raw.Close()
	}
}
