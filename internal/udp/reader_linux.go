package udp

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// A run of datagrams may have 64 KiB.
	runSlots, runSlotSize = 16, 1 << 16
	// Without runs a slot needs to hold one datagram; RoCE has 4 KiB and its headers.
	plainSlots, plainSlotSize = 64, 8 << 10
)

// Reader receives datagrams of a Conn in batches. It is for one goroutine at a time.
type Reader struct {
	conn      *Conn
	slot      int // bytes
	bytes     []byte
	msgs      []mmsghdr
	iovs      []unix.Iovec
	names     []rawAddr
	controls  []control
	datagrams []Datagram
}

// NewReader returns a Reader of the Conn's datagrams.
func (c *Conn) NewReader() *Reader {
	n, slot := plainSlots, plainSlotSize
	if c.gro {
		n, slot = runSlots, runSlotSize
	}
	r := &Reader{
		conn: c, slot: slot, bytes: make([]byte, n*slot), msgs: make([]mmsghdr, n), iovs: make([]unix.Iovec, n),
		names: make([]rawAddr, n), controls: make([]control, n), datagrams: make([]Datagram, n),
	}
	for i := range r.msgs {
		r.iovs[i].Base = &r.bytes[i*slot]
		r.iovs[i].SetLen(slot)
		r.msgs[i].vectors(r.iovs[i : i+1])
		r.prepare(i)
	}
	return r
}

// prepare makes message i ready to be filled again: the kernel has written lengths.
func (r *Reader) prepare(i int) {
	m := &r.msgs[i]
	m.name(&r.names[i], unix.SizeofSockaddrInet6)
	m.hdr.Flags = 0
	if r.conn.gro {
		m.controls(&r.controls[i], len(r.controls[i]))
	}
}

// Read takes the datagrams that are there, up to what fits, and returns how many entries
// Datagram has; 0 if there are none. It never blocks. What it returned before is
// overwritten.
func (r *Reader) Read() (int, error) {
	n, errno := recvmmsg(r.conn.recv, r.msgs)
	if errno != 0 {
		if errno == syscall.EAGAIN || errno == syscall.EINTR {
			return 0, nil
		}
		return 0, fmt.Errorf("udp: receive on %v: %w", r.conn.Addr(), os.NewSyscallError("recvmmsg", errno))
	}
	for i := range n {
		r.take(i)
	}
	return n, nil
}

func (r *Reader) take(i int) {
	m, d := &r.msgs[i], &r.datagrams[i]
	size := int(m.len)
	d.Data = r.bytes[i*r.slot:][:size]
	if m.hdr.Flags&unix.MSG_TRUNC != 0 {
		d.Data = d.Data[:0] // longer than any datagram that can be meant for us
	}
	d.Segment = size
	if r.conn.gro {
		if s := r.controls[i].segment(int(m.hdr.Controllen)); s > 0 {
			d.Segment = s
		}
	}
	d.Port = r.names[i].get(&d.From)
	r.prepare(i)
}

// Datagram returns entry i of the last Read. It is valid until the next.
func (r *Reader) Datagram(i int) *Datagram { return &r.datagrams[i] }
