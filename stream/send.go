package stream

import (
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

const (
	// chunkBytes is the number of bytes copied before a message is posted. Shorter messages are small: while one is in flight, less
	// than a chunk is held for coalescing. During a call, twice that per message in flight is held.
	chunkBytes = 64 << 10
	// maxFlight limits a stream's messages in flight.
	maxFlight = 8
	// sampleEvery is the number of messages per RTT sample.
	sampleEvery = 16
)

// outbound is the direction to the peer. Conn.mu guards it.
type outbound struct {
	ring []byte
	// tail counts the bytes written, posted the bytes posted, and done the bytes delivered. The ring holds the bytes from done to tail.
	// acked counts the bytes read by the peer, so posted is at most acked + Conn.ring.Length.
	tail, posted, done, acked uint64
	// end is set once writing is over, ending once the end was sent, and ended once it was
	// delivered. finished is set by CloseWrite.
	end, ending, ended, finished bool
	// more is set while the call that wrote the bytes up to tail continues.
	more bool
	// truncated is set when bytes were dropped.
	truncated bool
	// copying is set while a goroutine writes to the ring without mu, pushing while one posts messages.
	copying, pushing bool
	// messages are used round-robin. flight counts messages in flight, small the small ones among them.
	messages      [maxFlight]message
	count         uint64
	flight, small int
	flow          service.Flow
	// rtt is the smoothed time from posting a message to its completion, in ns.
	rtt int64

	deadline deadline
	// wake wakes the waiting goroutine.
	wake chan struct{}
}

// message is an operation that sends bytes.
type message struct {
	conn   *Conn
	op     service.Op
	block  [1]service.Block
	length uint64
	small  bool
	last   bool
	// at is the time of posting; 0 if not sampled.
	at int64
}

func (o *outbound) init(c *Conn) {
	o.ring, o.wake = c.block.send(), make(chan struct{}, 1)
}

// bind prepares the messages for the peer's ring.
func (o *outbound) bind(c *Conn) {
	for i := range o.messages {
		m := &o.messages[i]
		m.conn, m.block[0] = c, service.Block{Local: c.block.region, Remote: &c.ring, Opcode: verbs.OpRDMAWrite}
		m.op = service.Op{
			Blocks: m.block[:], Notify: true, Incarnation: c.session.Incarnation(), Session: c.session.Number(), Flow: &o.flow, Sink: m,
		}
	}
}

// next prepares the next message. It returns nil if none is due. mu is held.
func (c *Conn) next() *message {
	o := &c.out
	if c.err != nil || !c.open || o.ending || o.flight == maxFlight {
		return nil
	}
	pending := o.tail - o.posted
	size, far := uint64(len(o.ring)), c.ring.Length
	n := min(pending, o.acked+far-o.posted, size-o.posted&(size-1), far-o.posted&(far-1), service.MaxNotify)
	last := o.end && n == pending && (!o.copying || c.closed || o.truncated) // commit drops bytes copied after dropUnposted
	small := pending < min(chunkBytes, size/4)
	grows := o.more && pending < min(2*chunkBytes*uint64(o.flight), size/4)
	if !last && (n == 0 || grows || small && o.small > 0) {
		return nil
	}
	m := &o.messages[o.count%maxFlight]
	m.length, m.small, m.last, m.at = n, small, last, 0
	if o.count%sampleEvery == 0 {
		m.at = c.peer.owner.now()
	}
	m.block[0].LocalOffset = uint64(c.block.offset) + size + o.posted&(size-1)
	m.block[0].RemoteOffset = o.posted & (far - 1)
	m.block[0].Length = n
	m.op.Imm = data{id: c.remoteID, end: last, cut: last && o.truncated}.encode()
	o.count++
	o.flight++
	if small {
		o.small++
	}
	o.posted += n
	o.ending = last
	return m
}

// push posts the due messages. Only one goroutine does so at a time, to keep their order. It reports whether bytes wait for a message in
// flight.
func (c *Conn) push() (waits bool) {
	o := &c.out
	c.mu.Lock()
	for !o.pushing {
		m := c.next()
		if m == nil {
			break
		}
		o.pushing = true
		c.mu.Unlock()
		c.peer.service.Submit(&m.op)
		c.mu.Lock()
		o.pushing = false
	}
	waits = o.small > 0 && o.tail > o.posted
	c.unlock()
	return waits
}

// End implements service.Sink.
func (m *message) End(_ *service.Op, err error) {
	c := m.conn
	c.mu.Lock()
	o := &c.out
	o.flight--
	if m.small {
		o.small--
	}
	if err != nil {
		c.fail(reset(err))
	} else {
		o.done += m.length
		c.peer.traffic.sent.Add(m.length)
		if m.last {
			o.ended = true
			closeOnce(c.drained)
		}
	}
	if m.at != 0 {
		d := c.peer.owner.now() - m.at
		if o.rtt == 0 {
			o.rtt = d
		}
		o.rtt += (d - o.rtt) / 8
	}
	broadcast.Wake(o.wake)
	c.unlock()
	c.push()
}

// credited processes credit from the peer. It is called with the shard's lock held. An error closes the session.
func (c *Conn) credited(m credit) error {
	c.mu.Lock()
	o := &c.out
	switch {
	case c.released:
		c.mu.Unlock()
		return nil
	case m.stop: // it may overtake the peer's response
		c.dropUnposted()
	case !c.open:
		c.mu.Unlock()
		return fmt.Errorf("%w: credit for stream %d, which is not open", errProtocol, c.id)
	default:
		unit := c.ring.Length / creditUnits
		more := (uint64(m.count) - o.acked/unit) & countMask * unit
		if o.acked+more > o.posted {
			c.mu.Unlock()
			return fmt.Errorf("%w: stream %d: the peer has read %d bytes of %d", errProtocol, c.id, o.acked+more, o.posted)
		}
		o.acked += more
	}
	c.unlock()
	c.push()
	return nil
}

// dropUnposted drops the unposted bytes and closes the direction. mu is held.
func (c *Conn) dropUnposted() {
	o := &c.out
	o.truncated = o.truncated || !o.ending
	o.end, o.tail = true, o.posted
	closeOnce(c.drained)
	broadcast.Wake(o.wake)
}

// Write copies b into the send ring, and blocks while the ring is full. It does not wait for delivery. It returns syscall.EPIPE after
// CloseWrite or if the peer has stopped reading, syscall.ECONNRESET if the session is lost, os.ErrDeadlineExceeded after the write
// deadline, and net.ErrClosed after Close. On error, the first n bytes may still reach the peer.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for first := true; first || n < len(b); first = false {
		room, err := c.freeSpace(len(b) > 0)
		if err != nil {
			return n, c.opError("write", err)
		}
		k := ntcopy.Copy(room, b[n:])
		if err := c.commit(k, n+k < len(b)); err != nil {
			return n, c.opError("write", err)
		}
		n += k
	}
	return n, nil
}

// ReadFrom implements io.ReaderFrom. It reads r until io.EOF, directly into the send ring. A concurrent Write blocks until ReadFrom
// returns, even past its deadline. Errors are as for Write, or an error of r.
func (c *Conn) ReadFrom(r io.Reader) (sum int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	defer c.stopCopying(&c.out.copying) // r may panic
	for {
		room, err := c.freeSpace(true)
		if err != nil {
			return sum, c.opError("write", err)
		}
		n, err := r.Read(room)
		if n < 0 || n > len(room) {
			n, err = 0, io.ErrShortBuffer
		}
		if err := c.commit(n, n == len(room)); err != nil {
			return sum, c.opError("write", err)
		}
		sum += int64(n)
		if err == io.EOF { //nolint:errorlint // a Reader returns EOF itself, and an error that wraps it is another one
			return sum, nil
		} else if err != nil {
			return sum, err
		}
	}
}

// stopCopying records that the program no longer uses a ring. After a panic, the end of the stream may wait for that.
func (c *Conn) stopCopying(copying *bool) {
	c.mu.Lock()
	panicked := *copying
	*copying = false
	c.unlock()
	if panicked {
		c.push()
	}
}

// freeSpace returns free space in the ring, at most a chunk. If wait is set, it blocks until some is available. On success, commit must follow.
// The caller holds writing.
func (c *Conn) freeSpace(wait bool) ([]byte, error) {
	o := &c.out
	for {
		c.mu.Lock()
		size := uint64(len(o.ring))
		free := size - (o.tail - o.done)
		var err error
		switch {
		case c.isClosed():
			err = net.ErrClosed
		case o.deadline.expired:
			err = os.ErrDeadlineExceeded
		case c.err != nil:
			err = c.err
		case o.end:
			err = syscall.EPIPE
		case free > 0 || !wait:
			at := o.tail & (size - 1)
			o.copying = true
			c.mu.Unlock()
			return o.ring[at:][:min(free, size-at, chunkBytes)], nil
		}
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		c.await(nil, o.wake)
	}
}

// commit sends n of the bytes returned by freeSpace; more is set if the call continues. If the stream was closed meanwhile, the bytes are
// dropped.
func (c *Conn) commit(n int, more bool) (err error) {
	c.mu.Lock()
	o := &c.out
	switch o.copying = false; {
	case c.closed:
		err = net.ErrClosed
	case o.truncated:
		err = syscall.EPIPE
	default:
		o.tail += uint64(n)
		o.more = more
	}
	c.mu.Unlock()
	if c.push() {
		c.peer.service.Help() // messages in flight may have been delivered
	}
	return err
}
