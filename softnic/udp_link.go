package softnic

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// UDPConfig describes a UDPLink. The zero value, or a nil pointer, means the defaults.
type UDPConfig struct {
	// Addrs are the addresses for NICs whose Config has none, in this order. Empty means the
	// addresses of the host's interfaces, loopback last.
	Addrs []netip.Addr
	// Port is the UDP port on which NICs receive. If another process has it, a NIC takes the
	// next free port and names it in its endpoints. Zero means 4791, the port of RoCE v2.
	Port uint16
	// Sockets is how many source ports a NIC sends from. A path keeps one, so switches see as
	// many flows. Zero means 16, or 1 on the loopback, where no switch looks at the port.
	Sockets int
	// Buffer is the size of the socket buffers to request from the kernel, in bytes. An
	// unprivileged process may get less. Zero means 4 MiB.
	Buffer int
	// NoSegment does without UDP_SEGMENT, as on a kernel or device that lacks it.
	NoSegment bool
	// NoCoalesce does without UDP_GRO, as on a kernel or device that lacks it.
	NoCoalesce bool
	// Window is how many packets a QP may have unacknowledged. A small socket buffer of the peer
	// lowers it. Zero means 512 packets and at most 1 MiB of full ones.
	Window int
	// NICWindow is how many packets all QPs of a NIC together may have unacknowledged. Zero means
	// 1024.
	NICWindow int
	// Spin is how long a NIC looks for more packets after the last one before it sleeps, if the
	// program does not poll. Zero means 20 microseconds, a negative value none.
	Spin time.Duration
	// Capture takes every packet that a NIC sends, and every intact one that it receives from
	// outside this link. Sealed packets are captured sealed, received ones before they are checked. Nil
	// means none.
	Capture Capture
	// CapturePlain takes the same packets before they are sealed and after they are opened, so that
	// tools can read them. They are shown as any RoCE v2 NIC would send them: without fill, to
	// port 4791, with the ICRC of that. Received packets that do not open are left out. Nil means none.
	CapturePlain Capture
	// AssumeSoftNICs says that peers that did not describe themselves are softnics too, with the same buffer. Programs that
	// exchange their own addresses, and never an Endpoint, otherwise get the small window of a stranger. It must be false
	// if a peer may be another kind of NIC. It concerns plain packets only: whether a QP is sealed does not depend on it.
	AssumeSoftNICs bool
	// PortGIDs makes QueryGID, and the GRH of datagrams, name IPv4 addresses together with UDP ports. Programs that exchange GIDs and no
	// LIDs then reach several processes on one address. Every NIC on a UDPLink understands such a GID. Other NICs do not.
	PortGIDs bool
	// SharedMemory lets plain RC QPs do WRITEs and READs on the memory of the peer, without packets, if its NIC belongs to
	// another process of this user on this host and has SharedMemory too. Captures, Impairment and Cut do not see them. Systems
	// other than Linux ignore it.
	SharedMemory bool
	// Seed decides what Impairment does to each packet.
	Seed uint64
	// Impairment applies to packets that NICs send, as on a FaultLink. Zero is none.
	Impairment Impairment
}

// Capture takes packets as a UDPLink sends and receives them.
type Capture interface {
	// Packet takes one packet: the time in nanoseconds since 1970, the two ends, the
	// identification of the IPv4 header, the traffic class (IPv4: TOS) and hop limit (TTL), and
	// the parts of the UDP datagram from the BTH to the ICRC. Of a received packet class and
	// hops are not known: they are 0 and 64. The parts are valid only during the call. Packet
	// must be quick and must not call a NIC.
	Packet(at int64, src, dst netip.AddrPort, id uint16, class, hops uint8, parts ...[]byte)
}

const (
	// defaultUDPWindow is the window of a QP in packets.
	defaultUDPWindow = 512
	// defaultUDPInFlight is the window of a QP in bytes of full packets. What is under way should
	// fit the second-level caches of both sides: the more there is, the colder are the bytes
	// when the receiver reads them (docs/performance.md).
	defaultUDPInFlight  = 1 << 20
	defaultUDPNICWindow = 1024
	defaultUDPSpin      = 20 * time.Microsecond

	// udpReadAhead is how many packets one READ request asks for over UDP. Answers to READs are
	// not acknowledged, so only this number, the limit of outstanding READs and the window hold
	// them back.
	udpReadAhead = 64

	// udpProbeAfter is much more than a round trip, and much less than the usual timeout of a QP.
	udpProbeAfter = 2 * time.Millisecond

	// udpQueue is how many packets of a NIC an Impairment may keep under way.
	udpQueue = 1024
)

// UDPLink carries packets as RoCE v2 over UDP: to another process or host, to the kernel's
// Soft-RoCE, or to hardware. Every NIC on it has its own sockets on its address, and its own lock: NICs
// do not wait for each other. It needs no privilege. It runs in real time.
type UDPLink struct {
	cfg UDPConfig
	// nonce is that of every NIC's core.
	nonce uint32

	// mu guards the fields below. A NIC's lock may be held while mu is taken, but not the other way round.
	mu   sync.Mutex
	nics map[verbs.GID]*NIC
	// senders are the addresses from which NICs of the link send.
	senders map[udpAddr]*NIC
	// count is the number of NICs ever plugged in.
	count uint32

	// capturing is held while a Capture takes a packet. It guards plain.
	capturing sync.Mutex
	// plain is where a packet for cfg.CapturePlain is made.
	plain []byte
	order kernelOrder
	watch udpWatch
}

// NewUDPLink returns a link without NICs. A nil cfg means the defaults.
func NewUDPLink(cfg *UDPConfig) (*UDPLink, error) {
	l := &UDPLink{nonce: newRand(0).Uint32(), nics: make(map[verbs.GID]*NIC), senders: make(map[udpAddr]*NIC)}
	l.watch.init()
	if cfg != nil {
		l.cfg = *cfg
	}
	if err := l.cfg.complete(); err != nil {
		return nil, verbs.NewOpError("make UDP link", "", 0, err)
	}
	return l, nil
}

// Step does nothing: the NICs of the link run by themselves.
func (l *UDPLink) Step() (next int64, pending bool) { return 0, false }

// complete fills in the defaults and checks the rest.
func (cfg *UDPConfig) complete() error {
	setDefault(&cfg.Buffer, udp.DefaultBuffer)
	setDefault(&cfg.NICWindow, defaultUDPNICWindow)
	setDefault(&cfg.Port, roce.Port)
	setDefault(&cfg.Spin, defaultUDPSpin)
	cfg.SharedMemory = cfg.SharedMemory && runtime.GOOS == "linux"
	if err := checkRanges("UDPConfig",
		bounded{"Sockets", cfg.Sockets, 1024},
		bounded{"Buffer", cfg.Buffer, 1 << 30},
		bounded{"Window", cfg.Window, maxWindow},
		bounded{"NICWindow", cfg.NICWindow, maxWindow}); err != nil {
		return err
	}
	return cfg.Impairment.validate()
}

// toward names the direction from a NIC to an address.
func toward(from *NIC, to verbs.GID) directionKey { return directionKey{from: from, gid: to} }

// Impair sets what happens to packets from a NIC to an address. The opposite direction is not
// affected.
func (l *UDPLink) Impair(from *NIC, to netip.Addr, imp Impairment) error {
	w := l.wireOf(from)
	if w == nil {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("the NIC is nil or belongs to another link"))
	}
	return w.faults.impair(toward(from, verbs.GIDFromAddr(to)), imp)
}

// wireOf returns the wire of a NIC, nil if the NIC is not on the link.
func (l *UDPLink) wireOf(n *NIC) *udpWire {
	if n == nil || n.udp == nil || n.udp.wire.link != l {
		return nil
	}
	return n.core.wire
}

// Cut makes every packet from a NIC of the link to an address disappear until Restore.
func (l *UDPLink) Cut(from *NIC, to netip.Addr) { l.setCut(from, to, true) }

// Restore ends a Cut.
func (l *UDPLink) Restore(from *NIC, to netip.Addr) { l.setCut(from, to, false) }

func (l *UDPLink) setCut(from *NIC, to netip.Addr, cut bool) {
	if w := l.wireOf(from); w != nil {
		w.faults.change(toward(from, verbs.GIDFromAddr(to)), func(d *direction) { d.cut = cut })
	}
}

// FaultStats returns what happened to packets from a NIC of the link to an address.
func (l *UDPLink) FaultStats(from *NIC, to netip.Addr) (s FaultStats) {
	if w := l.wireOf(from); w != nil {
		s = w.faults.statsOf(toward(from, verbs.GIDFromAddr(to)))
	}
	return s
}

// address returns an address that no NIC of the link has. mu is held.
func (l *UDPLink) address() (netip.Addr, error) {
	addrs := l.cfg.Addrs
	if len(addrs) == 0 {
		addrs = hostAddrs()
	}
	for _, a := range addrs {
		if a = a.Unmap(); a.IsValid() && l.nics[verbs.GIDFromAddr(a)] == nil {
			return a, nil
		}
	}
	return netip.Addr{}, verbs.Invalidf("Config.Addr is empty and every address of the link has a NIC (%v): name another", addrs)
}

// hostAddrs returns the addresses of the host to which other hosts may send, IPv4 first, and
// then some of the loopback.
func hostAddrs() []netip.Addr {
	var four, six []netip.Addr
	all, _ := net.InterfaceAddrs() // after an error the loopback is left
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if addr := p.Addr().Unmap(); addr.Is4() {
			four = append(four, addr)
		} else {
			six = append(six, addr)
		}
	}
	addrs := append(four, six...)
	for k := range byte(8) {
		addrs = append(addrs, netip.AddrFrom4([4]byte{127, 0, 0, 1 + k}))
	}
	return addrs
}
