package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// inbound is the direction from the peer. Conn.mu guards it.
type inbound struct {
	ring []byte
	// head is how many bytes were read, tail how many have come. credited is how many of those that were read the peer knows of. The
	// ring holds the bytes from head to tail, and the peer may write up to credited + len(ring).
	head, tail, credited uint64
	// ended says that nothing follows, and cut that bytes are missing.
	ended, cut bool
	// stopped says that nobody reads any more, and told that the peer was told so.
	stopped, told bool
	// copying says that a goroutine reads the ring without mu.
	copying bool
	// teller is the operation that tells the peer what was read. telling says that it is under way.
	teller  teller
	telling bool

	deadline deadline
	// patience belongs to the goroutine that reads.
	patience patience
	// wake has a token if the goroutine that waits should look again.
	wake chan struct{}
}

func (in *inbound) init(c *Conn) {
	in.ring, in.wake = c.block.receive(), make(chan struct{}, 1)
	t := &in.teller
	t.conn, t.block[0] = c, service.Block{Local: c.block.region, Remote: &c.ring, Opcode: verbs.OpRDMAWrite}
	t.op = service.Op{Blocks: t.block[:], Notify: true, Incarnation: c.session.Incarnation(), Session: c.session.Number(), Sink: t}
}

// arrived takes bytes that have come. It is called with the shard's lock. An error ends the session.
func (c *Conn) arrived(length uint32, d data) error {
	c.mu.Lock()
	in := &c.in
	if c.released {
		c.mu.Unlock()
		return nil
	}
	if in.ended || in.tail+uint64(length)-in.credited > uint64(len(in.ring)) {
		c.mu.Unlock()
		return fmt.Errorf("%w: %d bytes of stream %d behind its end, or without room", errProtocol, length, c.id)
	}
	in.tail += uint64(length)
	in.ended, in.cut = d.end, d.cut
	c.peer.traffic.received.Add(uint64(length))
	if d.cut && !in.stopped {
		c.peer.traffic.resets.Add(1)
	}
	late := c.closed && length > 0
	if late {
		c.unwanted()
	}
	signal(in.wake)
	c.unlock()
	if late {
		c.push()
	}
	return nil
}

// teller is an operation that tells the peer what was read.
type teller struct {
	conn  *Conn
	op    service.Op
	block [1]service.Block
}

// tell tells the peer what was read, if it is enough and nothing is being told.
func (c *Conn) tell() {
	c.mu.Lock()
	in := &c.in
	unit := uint64(len(in.ring) / creditUnits)
	read := (in.head - in.credited) / unit * unit
	enough := read >= uint64(len(in.ring)/4)
	if in.stopped {
		enough = !in.told
	}
	if !enough || !c.open || c.err != nil || in.telling || in.ended {
		c.mu.Unlock()
		return
	}
	in.credited += read
	in.telling, in.told = true, in.stopped
	in.teller.op.Imm = credit{id: c.far, stop: in.stopped, count: uint32(in.credited / unit)}.encode()
	c.mu.Unlock()
	c.peer.service.Submit(&in.teller.op)
}

// End implements service.Sink.
func (t *teller) End(_ *service.Op, err error) {
	c := t.conn
	c.mu.Lock()
	if c.in.telling = false; err != nil {
		c.fail(reset(err))
	}
	c.unlock()
	if err == nil {
		c.tell()
	}
}

// Read reads what is there, and waits if there is nothing.
func (c *Conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	from, err := c.unread(len(b) > 0)
	if err != nil {
		return 0, c.readError(err)
	}
	n := copy(b, from)
	c.taken(n)
	return n, nil
}

// WriteTo writes everything up to the end of the stream to w, straight from the ring.
func (c *Conn) WriteTo(w io.Writer) (sum int64, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	defer c.stopCopying(&c.in.copying) // w may panic
	for {
		from, err := c.unread(true)
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
		c.taken(n)
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

// unread returns bytes of the ring that have come. It waits until there are some, if wait is set. Without an error, taken must follow. The caller
// has reading.
func (c *Conn) unread(wait bool) ([]byte, error) {
	in := &c.in
	for {
		c.mu.Lock()
		var err error
		switch n := in.tail - in.head; {
		case c.closed:
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
		case in.ended && !in.cut:
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
		c.await(&in.patience, in.wake)
	}
}

// taken says that n bytes of what unread has returned were read.
func (c *Conn) taken(n int) {
	c.mu.Lock()
	c.in.copying = false
	c.in.head += uint64(n)
	tell := c.in.head-c.in.credited >= uint64(len(c.in.ring)/4)
	c.unlock()
	if tell {
		c.tell()
	}
}
