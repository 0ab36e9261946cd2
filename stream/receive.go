package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"ibverbx/internal/broadcast"
	"ibverbx/internal/ntcopy"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// inbound is the direction from the peer. Conn.mu guards it.
type inbound struct {
	ring []byte
	// head counts the bytes read, tail the bytes received, and credited the bytes read and reported to the peer. The ring holds the bytes
	// from head to tail, and the peer may write up to credited + len(ring).
	head, tail, credited uint64
	// ended is set at the end of the stream, truncated if bytes are missing there.
	ended, truncated bool
	// stopped is set when the program stops reading, stopSent when the peer has been notified.
	stopped, stopSent bool
	// copying is set while a goroutine reads the ring without mu.
	copying bool
	// update is the operation that returns credit to the peer; updating is set while it is outstanding.
	update   creditUpdate
	updating bool

	deadline deadline
	// spin belongs to the reading goroutine.
	spin spinPolicy
	// wake wakes the waiting goroutine.
	wake chan struct{}
}

func (in *inbound) init(c *Conn) {
	in.ring, in.wake = c.block.receive(), make(chan struct{}, 1)
	t := &in.update
	t.conn, t.block[0] = c, service.Block{Local: c.block.region, Remote: &c.ring, Opcode: verbs.OpRDMAWrite}
	t.op = service.Op{Blocks: t.block[:], Notify: true, Incarnation: c.session.Incarnation(), Session: c.session.Number(), Sink: t}
}

// arrived records received bytes. It is called with the shard's lock held. An error closes the session.
func (c *Conn) arrived(length uint32, d data) error {
	c.mu.Lock()
	in := &c.in
	if c.released {
		c.mu.Unlock()
		return nil
	}
	if in.ended || in.tail+uint64(length)-in.credited > uint64(len(in.ring)) {
		c.mu.Unlock()
		return fmt.Errorf("%w: %d bytes of stream %d after its end, or beyond its credit", errProtocol, length, c.id)
	}
	in.tail += uint64(length)
	in.ended, in.truncated = d.end, d.cut
	c.peer.traffic.received.Add(uint64(length))
	if d.cut && !in.stopped {
		c.peer.traffic.resets.Add(1)
	}
	late := c.closed && length > 0
	if late {
		c.abort()
	}
	broadcast.Wake(in.wake)
	c.unlock()
	if late {
		c.push()
	}
	return nil
}

// creditUpdate is an operation that returns credit to the peer.
type creditUpdate struct {
	conn  *Conn
	op    service.Op
	block [1]service.Block
}

// returnCredit returns credit to the peer if enough was read and no update is outstanding.
func (c *Conn) returnCredit() {
	c.mu.Lock()
	in := &c.in
	unit := uint64(len(in.ring) / creditUnits)
	read := (in.head - in.credited) / unit * unit
	enough := read >= uint64(len(in.ring)/4)
	if in.stopped {
		enough = !in.stopSent
	}
	if !enough || !c.open || c.err != nil || in.updating || in.ended {
		c.mu.Unlock()
		return
	}
	in.credited += read
	in.updating, in.stopSent = true, in.stopped
	in.update.op.Imm = credit{id: c.remoteID, stop: in.stopped, count: uint32(in.credited / unit)}.encode()
	c.mu.Unlock()
	c.peer.service.Submit(&in.update.op)
}

// End implements service.Sink.
func (t *creditUpdate) End(_ *service.Op, err error) {
	c := t.conn
	c.mu.Lock()
	if c.in.updating = false; err != nil {
		c.fail(reset(err))
	}
	c.unlock()
	if err == nil {
		c.returnCredit()
	}
}

// Read reads received data, and blocks while none is available. It returns io.EOF at the end of the stream or after CloseRead,
// syscall.ECONNRESET if the stream was aborted or its session lost, os.ErrDeadlineExceeded after the read deadline, and net.ErrClosed after
// Close.
func (c *Conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	from, err := c.received(len(b) > 0)
	if err != nil {
		return 0, c.readError(err)
	}
	n := ntcopy.Copy(b, from)
	c.consumed(n)
	return n, nil
}

// WriteTo implements io.WriterTo. It writes the rest of the stream to w, directly from the ring. Errors are as for Read, except that it
// returns nil at the end of the stream, or an error of w.
func (c *Conn) WriteTo(w io.Writer) (sum int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	defer c.stopCopying(&c.in.copying) // w may panic
	for {
		from, err := c.received(true)
		switch {
		case errors.Is(err, io.EOF):
			return sum, nil
		case err != nil:
			return sum, c.readError(err)
		}
		from = from[:min(len(from), chunkBytes)]
		n, err := w.Write(from)
		if n < 0 || n > len(from) {
			n, err = 0, io.ErrShortWrite
		} else if n < len(from) && err == nil {
			err = io.ErrShortWrite
		}
		sum += int64(n)
		c.consumed(n)
		if err != nil {
			return sum, err
		}
	}
}

// readError wraps an error of Read.
func (c *Conn) readError(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return c.opError("read", err)
}

// received returns received bytes in the ring. If wait is set, it blocks until some are available. On success, consumed must follow. The caller
// holds reading.
func (c *Conn) received(wait bool) ([]byte, error) {
	in := &c.in
	for {
		c.mu.Lock()
		var err error
		switch n := in.tail - in.head; {
		case c.isClosed():
			err = net.ErrClosed
		case in.deadline.expired:
			err = os.ErrDeadlineExceeded
		case in.stopped:
			err = io.EOF
		case n > 0 || !wait:
			at := in.head & uint64(len(in.ring)-1)
			in.copying = true
			c.mu.Unlock()
			return in.ring[at:][:min(n, uint64(len(in.ring))-at)], nil
		case in.ended && !in.truncated:
			err = io.EOF
		case in.ended:
			err = syscall.ECONNRESET
		default:
			err = c.err
		}
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		c.await(&in.spin, in.wake)
	}
}

// consumed consumes n of the bytes returned by received.
func (c *Conn) consumed(n int) {
	c.mu.Lock()
	c.in.copying = false
	c.in.head += uint64(n)
	tell := c.in.head-c.in.credited >= uint64(len(c.in.ring)/4)
	c.unlock()
	if tell {
		c.returnCredit()
	}
}
