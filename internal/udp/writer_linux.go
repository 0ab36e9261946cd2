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

	// batchPieces is the maximum number of pieces of memory in a batch. Two full runs of datagrams
	// with 4 KiB of external payload have 62.
	batchPieces = 256
	// maxPieces is the maximum number of pieces of a payload.
	maxPieces = 16

	// maxFill is the maximum padding of a datagram to the length of its run, in bytes.
	maxFill = 252

	// sendTimeout is the time in milliseconds that the Writer waits for a full socket buffer
	// before it drops datagrams.
	sendTimeout = 20
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
	// pieces holds the pieces of all messages, in order: ranges of bytes, and external payloads.
	pieces [batchPieces]unix.Iovec
	// bytes holds all messages, one after the other, without external payloads.
	bytes []byte
	// n is the number of messages.
	n int
	// used is the number of bytes in use.
	used int
	// external is the number of payload bytes that stay in the caller's memory (NextWith).
	external int
	// numPieces is the number of complete pieces.
	numPieces int
	// first is the first piece of the last message.
	first int
	// from is the offset of the incomplete piece in bytes.
	from int

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
	b, k, fill := w.next(to, socket, size, most)
	return b.take(size, fill), k, fill
}

// NextWith is NextIn for a datagram whose payload stays in the caller's memory. The caller writes head
// and tail, which precede and follow it. The payload has at most maxPieces pieces, which must stay valid
// until the next Flush. The kernel reads them at any time until then.
func (w *Writer) NextWith(to *Dest, socket, headSize, tailSize, most int, payload [][]byte) (head, tail []byte, k, fill int) {
	size := headSize + tailSize
	for _, p := range payload {
		size += len(p)
	}
	b, k, fill := w.next(to, socket, size, most)
	head = b.take(headSize, 0)
	b.cut()
	for _, p := range payload {
		if len(p) == 0 {
			continue
		}
		v := &b.pieces[b.numPieces]
		v.Base = &p[0]
		v.SetLen(len(p))
		b.numPieces++
	}
	b.external += size - headSize - tailSize
	return head, b.take(tailSize, fill), k, fill
}

// next prepares the batch of a socket for a datagram, and sends the batch first if it is full.
func (w *Writer) next(to *Dest, socket, size, most int) (b *batch, k, fill int) {
	b = w.batches[socket]
	if b == nil {
		b = &batch{fd: w.conn.send[socket], bytes: make([]byte, slotOffset+batchBytes)[slotOffset:]}
		w.batches[socket] = b
	}
	segments := int(w.conn.segments.Load())
	if !to.fills || to.refused || segments == 1 {
		most = size
	}
	if k, fill = b.grow(to, size, segments); k == 0 {
		if b.n == batchMessages || b.used+b.external >= batchEnough || !b.hasPieces() {
			w.send(b)
		}
		if b.n == 0 {
			w.pending = append(w.pending, b)
		}
		fill = most - size
		b.begin(to, most)
	}
	return b, k, fill
}

// hasPieces reports whether the batch has capacity for another datagram: its payload, and the pieces of
// bytes before and after the payload and at the end of the last message.
func (b *batch) hasPieces() bool { return b.numPieces+maxPieces+3 <= batchPieces }

// take returns the next size bytes of the batch, followed by fill cleared bytes in their capacity.
func (b *batch) take(size, fill int) []byte {
	at := b.used
	b.used += size + fill
	clear(b.bytes[at+size : b.used])
	return b.bytes[at : at+size : b.used]
}

// cut completes the incomplete piece.
func (b *batch) cut() {
	v := &b.pieces[b.numPieces]
	v.Base = &b.bytes[b.from]
	v.SetLen(b.used - b.from)
	b.numPieces++
	b.from = b.used
}

// grow adds a datagram to the last message, a run of at most segments datagrams. It returns the
// datagram's index and fill; an index of 0 means that the datagram does not fit.
func (b *batch) grow(to *Dest, size, segments int) (k, fill int) {
	if !b.open || to != b.to || size > b.size || b.total+b.size > MaxDatagram || !b.hasPieces() {
		return 0, 0
	}
	if k = int(b.counts[b.n-1]); k >= segments {
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
	b.first = b.numPieces
	b.n++
}

// end completes the last message.
func (b *batch) end() {
	if b.n == 0 {
		return
	}
	b.cut()
	m := &b.msgs[b.n-1]
	m.vectors(b.pieces[b.first:b.numPieces])
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
	clear(b.pieces[:b.numPieces]) // payloads may be freed
	b.n, b.used, b.open, b.to = 0, 0, false, nil
	b.external, b.numPieces, b.first, b.from = 0, 0, 0, 0
}

// writable waits, up to sendTimeout, until a socket accepts more data.
func writable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(fds[:], sendTimeout)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && err == nil
		}
	}
}
