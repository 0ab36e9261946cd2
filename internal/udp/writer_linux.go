package udp

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxSegments is how many datagrams a run has at the most: UDP_MAX_SEGMENTS of
	// kernels before 6.9.
	maxSegments = 64

	// What a batch of one socket holds before it must be sent.
	batchMessages = 64
	batchVectors  = 2048
	batchBytes    = 128 << 10
	// batchPayload is about how much a batch has before it is sent: two full runs. The
	// receiver works on them while the sender prepares the next two, and what the sender
	// has just read to sum it up is still in its second-level cache when the kernel
	// copies it.
	batchPayload = 120 << 10

	// sendPatience is how long a full socket buffer is waited for, in milliseconds,
	// before datagrams are dropped.
	sendPatience = 20
)

// Writer sends datagrams of a Conn in batches, one per socket: what is written to one socket
// leaves in the order in which it was written. It is for one goroutine at a time.
type Writer struct {
	conn    *Conn
	batches []*batch // by socket, made when first used
	pending []*batch // those with something to send
	now     *batch   // that of the datagram being written
	dropped int
}

// batch is what will be sent from one socket.
type batch struct {
	fd       int
	msgs     [batchMessages]mmsghdr
	controls [batchMessages]control
	counts   [batchMessages]uint8 // datagrams of a message
	dests    [batchMessages]*Dest
	iovs     []unix.Iovec
	bytes    []byte
	n        int // messages
	payload  int // bytes of all messages
	vectors  int // used of iovs
	used     int // of bytes

	// The last message, to which more datagrams may be added.
	to    *Dest
	size  int // of a datagram
	total int
	first int // its first vector
	open  bool
}

// NewWriter returns a Writer that sends from the Conn's sockets.
func (c *Conn) NewWriter() *Writer { return &Writer{conn: c, batches: make([]*batch, len(c.send))} }

// Begin begins a datagram of size bytes, from a socket of the pool. The caller gives its bytes
// by Take and Attach, in their order, before it begins the next; at most vectors calls of
// Attach and room bytes of Take. It returns the number of the datagram within its run: 0 if
// it is the first or leaves alone.
func (w *Writer) Begin(to *Dest, socket, size, vectors, room int) int {
	b := w.batches[socket]
	if b == nil {
		b = &batch{fd: w.conn.send[socket], iovs: make([]unix.Iovec, batchVectors), bytes: make([]byte, batchBytes)}
		w.batches[socket] = b
	}
	w.now = b
	if b.vectors+2*vectors+2 > len(b.iovs) || b.used+room > len(b.bytes) {
		w.send(b)
	}
	if b.open && to == b.to && size <= b.size && b.total+size <= MaxDatagram {
		k := int(b.counts[b.n-1])
		if k < int(w.conn.segments.Load()) {
			b.counts[b.n-1]++
			b.total += size
			b.payload += size
			b.open = size == b.size // a shorter one ends the run
			return k
		}
	}
	if b.n == batchMessages || b.payload >= batchPayload {
		w.send(b)
	}
	b.end()
	if b.n == 0 {
		w.pending = append(w.pending, b)
	}
	b.to, b.size, b.total, b.first, b.open = to, size, size, b.vectors, to.runs && !to.refused
	b.counts[b.n], b.dests[b.n] = 1, to
	b.n++
	b.payload += size
	return 0
}

// Take returns the next n bytes of the datagram, for the caller to fill.
func (w *Writer) Take(n int) []byte {
	b := w.now
	p := b.bytes[b.used : b.used+n : b.used+n]
	b.used += n
	w.Attach(p)
	return p
}

// Attach makes p the next bytes of the datagram. It must not change before Flush.
func (w *Writer) Attach(p []byte) {
	if len(p) == 0 {
		return
	}
	b := w.now
	if b.vectors > b.first {
		if v := &b.iovs[b.vectors-1]; startsAt(v, p) {
			v.SetLen(int(v.Len) + len(p))
			return
		}
	}
	v := &b.iovs[b.vectors]
	v.Base = &p[0]
	v.SetLen(len(p))
	b.vectors++
}

// end completes the last message.
func (b *batch) end() {
	if b.n == 0 || b.vectors == b.first {
		return
	}
	m := &b.msgs[b.n-1]
	m.vectors(b.iovs[b.first:b.vectors])
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

// Flush sends what was begun. It returns how many datagrams could not be sent since the last
// Flush.
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

// send hands the messages of a batch to the kernel. Those that it refuses are dropped, as a
// network may do.
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
			w.conn.segments.Store(1) // the device cannot: none from now on
		case errno == syscall.EINVAL || errno == syscall.EMSGSIZE:
			b.dests[from].refused = true // the way there cannot, or has a smaller MTU
		}
		w.dropped += int(b.counts[from])
		from++
	}
	// What was sent is the program's memory, which may be unmapped and used again.
	clear(b.iovs[:b.vectors])
	clear(b.dests[:b.n])
	b.n, b.vectors, b.used, b.payload, b.first, b.open, b.to = 0, 0, 0, 0, 0, false, nil
}

// writable waits until a socket takes more, for a while.
func writable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(fds[:], sendPatience)
		if !errors.Is(err, unix.EINTR) {
			return n > 0 && err == nil
		}
	}
}
