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

	writerMessages = 64
	writerVectors  = 2048
	writerBytes    = 128 << 10

	// sendPatience is how long a full socket buffer is waited for, in milliseconds,
	// before datagrams are dropped.
	sendPatience = 20
)

// Writer sends datagrams of a Conn in batches. It is for one goroutine at a time.
type Writer struct {
	conn     *Conn
	msgs     [writerMessages]mmsghdr
	controls [writerMessages]control
	sockets  [writerMessages]int16
	counts   [writerMessages]uint8 // datagrams of a message
	iovs     []unix.Iovec
	bytes    []byte
	n        int // messages
	vectors  int // used of iovs
	used     int // of bytes

	// The last message, to which more datagrams may be added.
	to       *Dest
	socket   int
	size     int // of a datagram
	total    int
	firstVec int
	open     bool

	dropped int
}

// NewWriter returns a Writer that sends from the Conn's sockets.
func (c *Conn) NewWriter() *Writer {
	return &Writer{conn: c, iovs: make([]unix.Iovec, writerVectors), bytes: make([]byte, writerBytes)}
}

// Begin begins a datagram of size bytes, from a socket of the pool. The caller gives its bytes
// by Take and Attach, in their order, before it begins the next; at most vectors calls of
// Attach and room bytes of Take. It returns the number of the datagram within its run: 0 if
// it is the first or leaves alone.
func (w *Writer) Begin(to *Dest, socket, size, vectors, room int) int {
	if w.vectors+2*vectors+2 > len(w.iovs) || w.used+room > len(w.bytes) {
		w.send()
	}
	if w.n > 0 && w.open && to == w.to && socket == w.socket && size <= w.size && w.total+size <= MaxDatagram {
		k := int(w.counts[w.n-1])
		if k < int(w.conn.segments.Load()) {
			w.counts[w.n-1]++
			w.total += size
			w.open = size == w.size // a shorter one ends the run
			return k
		}
	}
	if w.n == writerMessages {
		w.send()
	}
	w.end()
	w.to, w.socket, w.size, w.total, w.firstVec = to, socket, size, size, w.vectors
	w.open = to.runs
	w.sockets[w.n], w.counts[w.n] = int16(socket), 1
	w.n++
	return 0
}

// Take returns the next n bytes of the datagram, for the caller to fill.
func (w *Writer) Take(n int) []byte {
	b := w.bytes[w.used : w.used+n : w.used+n]
	w.used += n
	w.Attach(b)
	return b
}

// Attach makes b the next bytes of the datagram. It must not change before Flush.
func (w *Writer) Attach(b []byte) {
	if len(b) == 0 {
		return
	}
	if w.vectors > w.firstVec {
		if v := &w.iovs[w.vectors-1]; startsAt(v, b) {
			v.SetLen(int(v.Len) + len(b))
			return
		}
	}
	v := &w.iovs[w.vectors]
	v.Base = &b[0]
	v.SetLen(len(b))
	w.vectors++
}

// end completes the last message.
func (w *Writer) end() {
	if w.n == 0 || w.vectors == w.firstVec {
		return
	}
	m := &w.msgs[w.n-1]
	m.vectors(w.iovs[w.firstVec:w.vectors])
	m.name(&w.to.raw, w.to.raw.len)
	if w.counts[w.n-1] > 1 {
		c := &w.controls[w.n-1]
		c.setSegment(uint16(w.size))
		m.controls(c, segmentControlLen)
	} else {
		m.hdr.Control = nil
		m.hdr.SetControllen(0)
	}
}

// Flush sends what was begun. It returns how many datagrams could not be sent since the last
// Flush.
func (w *Writer) Flush() (dropped int) {
	if w.n > 0 {
		w.send()
	}
	dropped, w.dropped = w.dropped, 0
	return dropped
}

// send hands all messages to the kernel, those of one socket with one call.
func (w *Writer) send() {
	w.end()
	for from := 0; from < w.n; {
		to := from + 1
		for to < w.n && w.sockets[to] == w.sockets[from] {
			to++
		}
		w.sendFrom(w.conn.send[w.sockets[from]], from, to)
		from = to
	}
	// What was sent is the program's memory, which may be unmapped and used again.
	clear(w.iovs[:w.vectors])
	w.n, w.vectors, w.used, w.firstVec, w.open, w.to = 0, 0, 0, 0, false, nil
}

// sendFrom sends messages from one socket. Those that the kernel refuses are dropped, as a
// network may do.
func (w *Writer) sendFrom(fd, from, to int) {
	for from < to {
		n, errno := sendmmsg(fd, w.msgs[from:to])
		if errno == 0 {
			from += n
			continue
		}
		if errno == syscall.EINTR || (errno == syscall.EAGAIN && writable(fd)) {
			continue
		}
		if w.counts[from] > 1 && refusesRuns(errno) {
			w.conn.segments.Store(1) // the device cannot: none from now on
		}
		w.dropped += int(w.counts[from])
		from++
	}
}

// refusesRuns reports whether an error may mean that the device takes no UDP_SEGMENT.
func refusesRuns(errno syscall.Errno) bool {
	return errno == syscall.EIO || errno == syscall.EINVAL || errno == syscall.EOPNOTSUPP
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
