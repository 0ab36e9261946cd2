package interop_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/roce"
)

// tap captures the packets of a network interface.
type tap struct {
	t       *testing.T
	fd      int
	packets []packet
}

func newTap(t *testing.T, netdev string) *tap {
	t.Helper()
	dev, err := net.InterfaceByName(netdev)
	enginetest.Must(t, err)
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(all))
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, unix.Close(fd)) })
	enginetest.Must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
	enginetest.Must(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}))
	return &tap{t: t, fd: fd}
}

// take returns the RoCE packets captured since the tap was created.
func (tp *tap) take() []packet {
	tp.t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(tp.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			return tp.packets
		}
		enginetest.Must(tp.t, err)
		p, err := parse(append([]byte(nil), buf[:n]...))
		enginetest.Must(tp.t, err)
		if p.dst.Port() == roce.Port {
			tp.packets = append(tp.packets, p)
		}
	}
}

// packet is a captured packet.
type packet struct {
	bytes    []byte // from the IP header on
	src, dst netip.AddrPort
	id       uint16
	datagram []byte
}

// parse reads the IP and UDP headers; packets other than UDP have zero ports.
func parse(b []byte) (p packet, err error) {
	p.bytes = b
	var from, to netip.Addr
	var udp []byte
	switch {
	case len(b) >= 20 && b[0] == 0x45 && b[9] == unix.IPPROTO_UDP:
		b = b[:min(len(b), int(binary.BigEndian.Uint16(b[2:])))]
		from, to = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.id, udp = binary.BigEndian.Uint16(b[4:]), b[20:]
	case len(b) >= 40 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		b = b[:min(len(b), 40+int(binary.BigEndian.Uint16(b[4:])))]
		from, to = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		udp = b[40:]
	default:
		return p, nil
	}
	if len(udp) < 8 || len(udp) != int(binary.BigEndian.Uint16(udp[4:])) {
		return p, fmt.Errorf("a UDP packet of %d bytes, want the length that its header says: %x", len(udp), b)
	}
	p.bytes = b
	p.src = netip.AddrPortFrom(from, binary.BigEndian.Uint16(udp))
	p.dst = netip.AddrPortFrom(to, binary.BigEndian.Uint16(udp[2:]))
	p.datagram = udp[8:]
	return p, nil
}
