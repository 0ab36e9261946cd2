package udp

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxSegments is the maximum number of datagrams per run: UDP_MAX_SEGMENTS since Linux 6.9.
	maxSegments = 128
	// oldSegments is the maximum before Linux 6.9.
	oldSegments = 64

	// batchMessages is the maximum number of messages in a batch.
	batchMessages = 64
	// batchEnough is the approximate size in bytes at which a batch is sent: two full runs. The
	// receiver works on them while the sender prepares the next two, and they are still in the
	// sender's second-level cache when the kernel copies them.
	batchEnough = 120 << 10
	// batchBytes leaves space for one more run, so that a run is never cut short.
	batchBytes = batchEnough + MaxDatagram

	// maxFill is the maximum padding of a datagram to the length of its run, in bytes.
	maxFill = 252

	// sendPatience is the time in milliseconds that the Writer waits for a full socket buffer
	// before it drops datagrams.
	sendPatience = 20
)

// Writer sends the datagrams of a Conn in batches, one per socket. Datagrams on one socket are sent
// in the order written. It is not safe for concurrent use.
type Writer struct {
	conn *Conn
	// batches are indexed by socket and created on first use.
	batches []*batch
	// pending holds the batches with datagrams to send.
	pending []*batch
	// dropped counts unsent datagrams since the last Flush.
	dropped int
}

// batch holds datagrams to be sent from one socket.
type batch struct {
	fd       int
	msgs     [batchMessages]mmsghdr
	controls [batchMessages]control
	// counts holds the number of datagrams in each message.
	counts [batchMessages]uint8
	dests  [batchMessages]*Dest
	iovs   [batchMessages]unix.Iovec
	// bytes holds all messages, one after the other.
	bytes []byte
	// n is the number of messages.
	n int
	// used is the number of bytes in use.
	used int

	// to is the destination of the last message.
	to *Dest
	// size is the length of its datagrams.
	size int
	// total is the length of the last message.
	total int
	// open is set if datagrams may be added to the last message.
	open bool
}

// NewWriter returns a Writer that sends from the Conn's sockets.
func (c *Conn) NewWriter() *Writer { return &Writer{conn: c, batches: make([]*batch, len(c.send))} }

// Next returns a buffer for the next datagram, of size bytes, from a socket of the pool. The caller
// writes it before calling another method. k is the index of the datagram in its run, 0 if it is
// the first or sent individually. The destination must not use padding.
func (w *Writer) Next(to *Dest, socket, size int) (datagram []byte, k int) {
	datagram, k, _ = w.NextIn(to, socket, size, size)
	return datagram, k
}

// NextIn is Next with padding: fill zero bytes follow the datagram to reach the length of its run.
// The receiver must be able to find the end of the datagram. fill is a multiple of 4, at most
// maxFill, and 0 unless the destination fills. If the datagram starts a run, most is the length of
// the run's datagrams; it must be at least size, and a multiple of 4 like size. The capacity of the
// datagram includes the fill.
func (w *Writer) NextIn(to *Dest, socket, size, most int) (datagram []byte, k, fill int) {
	b := w.batches[socket]
	if b == nil {
		b = &batch{fd: w.conn.send[socket], bytes: make([]byte, slotOffset+batchBytes)[slotOffset:]}
		w.batches[socket] = b
	}
	segments := int(w.conn.segments.Load())
	if !to.fills || to.refused || segments == 1 {
		most = size
	}
	if k, fill = b.grow(to, size, segments); k == 0 {
		if b.n == batchMessages || b.used >= batchEnough {
			w.send(b)
		}
		if b.n == 0 {
			w.pending = append(w.pending, b)
		}
		fill = most - size
		b.begin(to, most)
	}
	at := b.used
	b.used += size + fill
	clear(b.bytes[at+size : b.used])
	return b.bytes[at : at+size : b.used], k, fill
}

// grow adds a datagram to the last message and returns its index, 0 if that is not possible, and
// its fill.
func (b *batch) grow(to *Dest, size, most int) (k, fill int) {
	if !b.open || to != b.to || size > b.size || b.total+b.size > MaxDatagram {
		return 0, 0
	}
	if k = int(b.counts[b.n-1]); k >= most {
		return 0, 0
	}
	if to.fills && b.size-size <= maxFill {
		fill = b.size - size
	}
	b.counts[b.n-1]++
	b.total += size + fill
	b.open = size+fill == b.size // a shorter one completes the run
	return k, fill
}

// begin starts a message with a datagram of size bytes.
func (b *batch) begin(to *Dest, size int) {
	b.end()
	b.to, b.size, b.total, b.open = to, size, size, to.runs && !to.refused
	b.counts[b.n], b.dests[b.n] = 1, to
	b.iovs[b.n].Base = &b.bytes[b.used]
	b.n++
}

// end completes the last message.
func (b *batch) end() {
	if b.n == 0 {
		return
	}
	m, v := &b.msgs[b.n-1], b.iovs[b.n-1:b.n]
	v[0].SetLen(b.total)
	m.vectors(v)
	m.name(&b.to.raw, b.to.raw.len)
	c, n := &b.controls[b.n-1], 0
	if b.counts[b.n-1] > 1 {
		n = c.addSegment(n, uint16(b.size))
	}
	if n = c.addMarks(n, b.to.marks, b.to.addr.Addr().Is6()); n > 0 {
		m.controls(c, n)
	} else {
		m.hdr.Control = nil
		m.hdr.SetControllen(0)
	}
}

// Flush sends all pending datagrams. It returns the number dropped since the last Flush.
func (w *Writer) Flush() (dropped int) {
	for _, b := range w.pending {
		if b.n > 0 {
			w.send(b)
		}
	}
	w.pending = w.pending[:0]
	dropped, w.dropped = w.dropped, 0
	return dropped
}

// send passes the messages of a batch to the kernel. It drops refused messages, as a network may.
func (w *Writer) send(b *batch) {
	b.end()
	for from := 0; from < b.n; {
		n, errno := sendmmsg(b.fd, b.msgs[from:b.n])
		if errno == 0 {
			from += n
			continue
		}
		if errno == syscall.EINTR || (errno == syscall.EAGAIN && writable(b.fd)) {
			continue
		}
		switch {
		case b.counts[from] == 1:
		case errno == syscall.EIO || errno == syscall.EOPNOTSUPP:
			w.conn.segments.Store(1) // the device cannot segment: disable runs
		case errno == syscall.EINVAL || errno == syscall.EMSGSIZE:
			b.dests[from].refused = true // the route cannot segment, or has a smaller MTU
		}
		w.dropped += int(b.counts[from])
		from++
	}
	clear(b.dests[:b.n])
	b.n, b.used, b.open, b.to = 0, 0, false, nil
}

// writable waits, up to sendPatience, until a socket accepts more data.
func writable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(fds[:], sendPatience)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && err == nil
		}
	}
}
