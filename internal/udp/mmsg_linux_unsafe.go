//go:build linux

package udp

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr: a message of sendmmsg and recvmmsg. The compiler pads it to the
// alignment of Msghdr, like C.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// control is space for control messages: UDP_SEGMENT and two marks for sending, or UDP_GRO and a
// longer, ignored one for receiving. Each is
//
//	0 length of header and value, 8 (4 on 32-bit systems) | level 4 | type 4 | value
type control [80]byte

// rawAddr is a socket address of either family in kernel format.
type rawAddr struct {
	any unix.RawSockaddrInet6
	len uint32
}

func (r *rawAddr) set(addr netip.AddrPort) {
	port := addr.Port()
	if a := addr.Addr(); a.Is4() {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.any))
		v4.Family, v4.Addr = unix.AF_INET, a.As4()
		putPort(&v4.Port, port)
		r.len = unix.SizeofSockaddrInet4
		return
	}
	r.any.Family, r.any.Addr = unix.AF_INET6, addr.Addr().As16()
	putPort(&r.any.Port, port)
	r.len = unix.SizeofSockaddrInet6
}

// putPort writes a port in network order.
func putPort(dst *uint16, port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(dst))[:], port)
}

// get returns the address and the port. IPv4 addresses are mapped into IPv6.
func (r *rawAddr) get(addr *[16]byte) (port uint16) {
	if r.any.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.any))
		*addr = [16]byte{10: 0xff, 11: 0xff}
		copy(addr[12:], v4.Addr[:])
	} else {
		*addr = r.any.Addr
	}
	return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&r.any.Port))[:])
}

// name sets the address of a message.
func (h *mmsghdr) name(r *rawAddr, n uint32) {
	h.hdr.Name, h.hdr.Namelen = (*byte)(unsafe.Pointer(&r.any)), n
}

// vectors sets the payload of a message.
func (h *mmsghdr) vectors(iovs []unix.Iovec) {
	h.hdr.Iov = &iovs[0]
	h.hdr.SetIovlen(len(iovs))
}

// controls sets the control messages of a message to the first n bytes of c.
func (h *mmsghdr) controls(c *control, n int) {
	h.hdr.Control = &c[0]
	h.hdr.SetControllen(n)
}

// addSegment appends the control message UDP_SEGMENT after the first n bytes of c and returns the
// new length.
func (c *control) addSegment(n int, size uint16) int {
	binary.NativeEndian.PutUint16(c.add(n, unix.SOL_UDP, unix.UDP_SEGMENT, 2), size)
	return n + unix.CmsgSpace(2)
}

// addMarks appends control messages for marks that differ from the socket's.
func (c *control) addMarks(n int, m Marks, ipv6 bool) int {
	level, class, hops := int32(unix.SOL_IP), int32(unix.IP_TOS), int32(unix.IP_TTL)
	if ipv6 {
		level, class, hops = unix.SOL_IPV6, unix.IPV6_TCLASS, unix.IPV6_HOPLIMIT
	}
	if m.Class != 0 {
		binary.NativeEndian.PutUint32(c.add(n, level, class, 4), uint32(m.Class))
		n += unix.CmsgSpace(4)
	}
	if m.Hops != DefaultHops {
		binary.NativeEndian.PutUint32(c.add(n, level, hops, 4), uint32(m.Hops))
		n += unix.CmsgSpace(4)
	}
	return n
}

// add writes the header of a control message after the first n bytes of c, and returns the space
// for its value.
func (c *control) add(n int, level, kind int32, size int) []byte {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[n]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	return c[n+unix.CmsgLen(0):][:size]
}

// segment returns the value of UDP_GRO if it is the first control message in the n bytes written by
// the kernel, otherwise 0. No other control message was requested.
func (c *control) segment(n int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	if n < unix.CmsgLen(4) || h.Level != unix.SOL_UDP || h.Type != unix.UDP_GRO {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(c[unix.CmsgLen(0):])))
}

// The two calls below never block and copy at most one batch, so they bypass the scheduler
// (RawSyscall). The scheduler retakes the P of a goroutine that spends more than 20 us in a system
// call if another goroutine needs it. A batch takes about as long, so a busy program would lose its
// Ps at random.

// sendmmsg sends messages and returns the number accepted.
func sendmmsg(fd int, msgs []mmsghdr) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

// recvmmsg receives waiting messages and returns their number.
func recvmmsg(fd int, msgs []mmsghdr) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}
