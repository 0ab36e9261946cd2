package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"

	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// fail fails the connection and its outstanding requests. The lock is held.
func (c *Comm) fail(cause error) {
	if c.failed != nil || c.closed {
		return
	}
	c.failed = cause
	result := RemoteError
	switch {
	case errors.Is(cause, errDropped), errors.Is(cause, errTooLong), errors.Is(cause, verbs.ErrInvalid):
		result = InternalError
	case errors.Is(cause, verbs.ErrDeviceFatal), errors.Is(cause, verbs.ErrCQOverrun):
		result = SystemError
	}
	c.result.Store(int32(result))
	done := c.done.Load()
	if received, known := c.receivedByPeer(); known {
		done = received
	}
	level := slog.LevelInfo // an idle connection, which the peer has closed first
	if c.used != done {
		level = slog.LevelWarn
	}
	c.shard.plugin.log.Log(context.Background(), level, "connection failed", slog.String("peer", c.conn.Peer().Addr.String()), slog.Any("cause", cause))
	if c.words == nil {
		return
	}
	c.words.Result.Store(int32(result))
	for i := range c.posted {
		p := &c.posted[i]
		if !p.busy {
			continue
		}
		p.busy = false
		if c.sends && int32(done-p.seq) > 0 {
			c.words.Requests[i].finish(OK, p.size) // only the acknowledgement was lost
		} else {
			c.words.Requests[i].finish(result, 0)
		}
	}
}

// sayReceived reports the number of received messages to the peer, which may lack the last acknowledgements.
func (c *Comm) sayReceived(ctx context.Context, n uint32) {
	_ = c.conn.Send(ctx, bootstrap.KindApplication, binary.LittleEndian.AppendUint32(nil, n)) // the peer may be dead
}

// receivedByPeer returns the number of messages that a peer reported as received before it closed the connection.
func (c *Comm) receivedByPeer() (n uint32, known bool) {
	if !c.sends || c.used == c.done.Load() {
		return 0, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // Recv returns what has arrived
	for {
		m, err := c.conn.Recv(ctx)
		if err != nil {
			return n, known
		}
		if m.Kind == bootstrap.KindApplication && len(m.Body) == 4 {
			n, known = binary.LittleEndian.Uint32(m.Body), true
		}
	}
}

// Close closes the connection without waiting for the peer. No data lands after Close, and the Words are no longer used.
func (c *Comm) Close() {
	p := c.part
	p.mu.Lock()
	if c.closed {
		p.mu.Unlock()
		return
	}
	clean := c.failed == nil && c.used == c.done.Load()
	c.closed, c.words = true, nil
	if !clean {
		_ = c.session.QP.Close() // Session.Close returns its error again
	}
	p.mu.Unlock()
	c.shard.plugin.retire(c)
	go c.finish(clean, c.done.Load()) // nothing completes after Close
}

// finish frees the connection. A clean one first waits for the peer, which may lack the last acknowledgement.
func (c *Comm) finish(clean bool, received uint32) {
	s, p := c.shard, c.part
	ctx, cancel := context.WithTimeout(context.Background(), lingerTime)
	if !c.sends {
		c.sayReceived(ctx, received)
	}
	if clean {
		_ = c.session.WaitDone(ctx) // the peer may be dead, or slower
	}
	cancel()
	if c.remove != nil {
		c.remove()
	}
	p.mu.Lock()
	c.group.comms.Delete(c.session.QP.Num())
	delete(p.all, c)
	left, lost := c.regions, c.down
	c.regions, c.down = nil, [maxRails]bool{}
	p.mu.Unlock()
	for rail, down := range lost {
		if down {
			s.plugin.railChanged(rail, false, nil)
		}
	}
	err := errors.Join(c.session.Close(), c.conn.Close())
	for r := range left {
		err = errors.Join(err, r.close())
	}
	if err = errors.Join(err, c.free()); err != nil {
		s.plugin.log.Debug("closing a connection", slog.Any("cause", err))
	}
	s.leave(c.group)
	s.release()
}

// free frees the memory of grants.
func (c *Comm) free() (err error) {
	if c.page != nil {
		err = c.page.Close()
	}
	if c.memory != nil {
		err = errors.Join(err, c.memory.Free())
	}
	return err
}
