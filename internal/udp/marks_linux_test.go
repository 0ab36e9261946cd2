package udp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// marked returns a socket that reports the marks of received datagrams.
func marked(t *testing.T, addr netip.Addr) (fd int, at netip.AddrPort) {
	t.Helper()
	c := &Conn{addr: addr}
	fd, port, err := c.bindFrom(testPort, 1<<20)
	if err != nil {
		t.Fatalf("bind: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	level, options := unix.SOL_IP, []int{unix.IP_RECVTOS, unix.IP_RECVTTL}
	if addr.Is6() {
		level, options = unix.SOL_IPV6, []int{unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT}
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, level, o, 1); err != nil {
			t.Fatalf("setsockopt %d: %v", o, err)
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatalf("set blocking: %v", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatalf("setsockopt SO_RCVTIMEO: %v", err)
	}
	return fd, netip.AddrPortFrom(addr, port)
}

// marksOf receives a datagram and returns its size and marks.
func marksOf(t *testing.T, fd int) (int, Marks) {
	t.Helper()
	b, oob := make([]byte, 1<<16), make([]byte, 256)
	n, k, _, _, err := unix.Recvmsg(fd, b, oob, 0)
	if err != nil {
		t.Fatalf("recvmsg: %v", err)
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:k])
	if err != nil {
		t.Fatalf("control messages: %v", err)
	}
	var m Marks
	for _, c := range cmsgs {
		switch c.Header.Type {
		case unix.IP_TOS:
			m.Class = c.Data[0]
		case unix.IPV6_TCLASS:
			m.Class = uint8(binary.NativeEndian.Uint32(c.Data))
		case unix.IP_TTL, unix.IPV6_HOPLIMIT:
			m.Hops = uint8(binary.NativeEndian.Uint32(c.Data))
		}
	}
	return n, m
}

// TestMarks: datagrams have the marks of their own destination, individually and in runs.
func TestMarks(t *testing.T) {
	for _, addr := range []netip.Addr{loopback4, loopback6} {
		t.Run(addr.String(), func(t *testing.T) {
			c := open(t, Config{Addr: addr})
			fd, at := marked(t, addr)
			w := c.NewWriter()
			var want []Marks
			for _, m := range []Marks{{}, {Class: 0xb8}, {Hops: 3}, {Class: 0x2a, Hops: 255}, {}} {
				to := NewDest(at, true).Mark(m)
				if m.Hops == 0 {
					m.Hops = DefaultHops
				}
				for range 3 {
					put(w, to, 0, pattern(500, 1))
					want = append(want, m)
				}
			}
			if dropped := w.Flush(); dropped != 0 {
				t.Fatalf("%d datagrams dropped, want 0", dropped)
			}
			for i, m := range want {
				if n, got := marksOf(t, fd); n != 500 || got != m {
					t.Errorf("datagram %d: %d bytes with %+v, want 500 with %+v", i, n, got, m)
				}
			}
		})
	}
}
