package softnic

import (
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// UDPConfig configures a UDPLink. The zero value, or a nil pointer, means the defaults.
type UDPConfig struct {
	// Addrs are the addresses for NICs without Config.Addr, assigned in order. Empty means the addresses
	// of the host's interfaces, loopback last.
	Addrs []netip.Addr
	// Port is the UDP port on which NICs receive. If it is in use, a NIC uses the next free port and
	// includes it in its endpoints. Zero means 4791, the RoCE v2 port.
	Port uint16
	// Sockets is the number of source ports per NIC. Each path keeps one, so switches see this many
	// flows. Zero means 16, or 1 on loopback.
	Sockets int
	// Buffer is the requested size of socket buffers in bytes. The kernel may limit it for unprivileged
	// processes. Zero means 4 MiB.
	Buffer int
	// NoSegment disables UDP_SEGMENT, as on a kernel or device without it.
	NoSegment bool
	// NoCoalesce disables UDP_GRO, as on a kernel or device without it.
	NoCoalesce bool
	// Window is the maximum number of a QP's unacknowledged packets. It shrinks if the peer has a small
	// socket buffer. Zero means 512 packets and at most 1 MiB of full ones.
	Window int
	// NICWindow is the maximum number of a NIC's unacknowledged packets over all QPs. Zero means 1024.
	NICWindow int
	// Spin is the time that a NIC spins for more packets after the last one before it sleeps, while the
	// program does not poll. Zero means 20 µs; negative disables spinning.
	Spin time.Duration
	// Capture receives every packet that a NIC sends, and every intact packet that it receives from
	// outside this link. Sealed packets are captured sealed, received ones before verification. Nil
	// disables it.
	Capture Capture
	// CapturePlain receives the same packets unsealed, so that tools can decode them. They look like any
	// RoCE v2 NIC's packets: without padding, to port 4791, with a matching ICRC. Received packets that
	// fail verification are omitted. Nil disables it.
	CapturePlain Capture
	// AssumeSoftNICs treats peers with unknown capabilities as softnics with the same buffer. Set it for
	// programs that exchange addresses without an Endpoint; they otherwise get the small window of an
	// unknown NIC. It must be false if a peer may be another kind of NIC. It affects plain packets only,
	// never whether a QP is sealed.
	AssumeSoftNICs bool
	// ICRC selects the part of plain packets that the ICRC covers if the peer is a softnic. The zero
	// value, ICRCAuto, leaves out the payload toward NICs on this host.
	ICRC ICRC
	// PortGIDs encodes UDP ports together with IPv4 addresses in the GIDs of QueryGID and of UD GRHs.
	// Programs that exchange GIDs but not LIDs can then reach several processes on one address. Only
	// NICs on a UDPLink understand such GIDs.
	PortGIDs bool
	// SharedMemory lets plain RC QPs execute WRITEs and READs directly in the peer's memory, without
	// packets, if its NIC belongs to another process of this user on this host and sets SharedMemory
	// too. Captures, Impairment and Cut do not apply to them. Without these and ICRCFull, SENDs and
	// immediates travel through shared memory as well. Linux only; ignored elsewhere.
	SharedMemory bool
	// Seed determines the faults that Impairment injects.
	Seed uint64
	// Impairment applies to packets that NICs send, as on a FaultLink. Zero means no faults.
	Impairment Impairment
}

// ICRC selects the part of a plain packet between two softnics that its ICRC covers: everything, as RoCE v2
// requires, or only the headers. The UDP checksum and the Ethernet checksum of each hop then protect the
// payload, as with TCP, and long messages need less CPU time. NICs agree through their endpoints, separately
// for each direction. Peers that are not softnics send and receive full ICRCs. Captures contain full ICRCs.
type ICRC uint8

const (
	// ICRCAuto covers only the headers toward loopback addresses and addresses that this host had when the
	// NIC was opened, unless the peer sets ICRCFull, and everything toward other addresses.
	ICRCAuto ICRC = iota
	// ICRCFull covers everything, in both directions.
	ICRCFull
	// ICRCHeaders covers only the headers, toward other hosts only if both ends set it.
	ICRCHeaders
)

// Capture receives packets as a UDPLink sends and receives them, for example to write a pcap file. A
// link calls it from one goroutine at a time. Plain packets have full ICRCs.
type Capture interface {
	// Packet receives one packet: the time in nanoseconds since 1970, the two addresses, the IPv4
	// header's identification, the traffic class (IPv4: TOS) and hop limit (TTL), and the UDP datagram's
	// parts from the BTH to the ICRC. For received packets, class and hops are unknown: they are 0 and
	// 64. The parts are valid only during the call. Packet must be fast and must not call a NIC.
	Packet(at int64, src, dst netip.AddrPort, id uint16, class, hops uint8, parts ...[]byte)
}

const (
	// defaultUDPWindow is the window of a QP in packets.
	defaultUDPWindow = 512
	// defaultUDPInFlight is the window of a QP in bytes of full packets. The data in flight should fit
	// the second-level caches of both sides: with more data, the receiver reads colder bytes
	// (docs/performance.md).
	defaultUDPInFlight  = 1 << 20
	defaultUDPNICWindow = 1024
	defaultUDPSpin      = 20 * time.Microsecond

	// udpReadAhead is the maximum number of response packets per READ request over UDP. READ responses
	// are not acknowledged, so only this limit, the limit of outstanding READs and the window throttle
	// them.
	udpReadAhead = 64

	// udpProbeAfter is much longer than a round trip, and much shorter than a QP's usual timeout.
	udpProbeAfter = 2 * time.Millisecond

	// udpQueue is the maximum number of a NIC's packets delayed by an Impairment.
	udpQueue = 1024

	// maxSockets is the maximum of UDPConfig.Sockets.
	maxSockets = 1024
)

// UDPLink carries RoCE v2 packets over UDP: to another process or host, to the kernel's Soft-RoCE, or to
// hardware. Each NIC has its own sockets, on its address, and its own lock, so NICs do not wait for each
// other. It needs no privileges and runs in real time.
type UDPLink struct {
	cfg UDPConfig
	// nonce is shared by the cores of all NICs.
	nonce uint32

	// mu guards the fields below. It may be locked under a NIC's lock, but not the other way round.
	mu   sync.Mutex
	nics map[verbs.GID]*NIC
	// senders maps source addresses to the NICs of the link.
	senders map[udpAddr]*NIC
	// count is the number of NICs ever attached.
	count uint32

	// capturing serializes calls of Captures, and guards plain.
	capturing sync.Mutex
	// plain is the buffer for a packet passed to cfg.CapturePlain.
	plain    []byte
	order    kernelOrder
	spinners spinLimiter
}

// NewUDPLink returns a link without NICs. A nil cfg means the defaults. Values out of range return
// verbs.ErrInvalid.
func NewUDPLink(cfg *UDPConfig) (*UDPLink, error) {
	l := &UDPLink{nonce: newRand(0).Uint32(), nics: make(map[verbs.GID]*NIC), senders: make(map[udpAddr]*NIC)}
	l.spinners.init()
	if cfg != nil {
		l.cfg = *cfg
	}
	if err := l.cfg.complete(); err != nil {
		return nil, verbs.NewOpError("create UDP link", "", 0, err)
	}
	return l, nil
}

// Step does nothing: NICs on a UDPLink run by themselves.
func (l *UDPLink) Step() (next int64, pending bool) { return 0, false }

// complete sets the defaults and validates the rest.
func (cfg *UDPConfig) complete() error {
	setDefault(&cfg.Buffer, udp.DefaultBuffer)
	setDefault(&cfg.NICWindow, defaultUDPNICWindow)
	setDefault(&cfg.Port, roce.Port)
	setDefault(&cfg.Spin, defaultUDPSpin)
	cfg.SharedMemory = cfg.SharedMemory && runtime.GOOS == "linux"
	if err := checkRanges("UDPConfig",
		bounded{"Sockets", cfg.Sockets, maxSockets},
		bounded{"Buffer", cfg.Buffer, 1 << 30},
		bounded{"Window", cfg.Window, maxWindow},
		bounded{"NICWindow", cfg.NICWindow, maxWindow}); err != nil {
		return err
	}
	if cfg.ICRC > ICRCHeaders {
		return verbs.Invalidf("UDPConfig.ICRC is %d: want ICRCAuto, ICRCFull or ICRCHeaders", cfg.ICRC)
	}
	return cfg.Impairment.validate()
}

// takesLines reports whether requests to neighbors may be lines. Captures and injected faults apply to
// packets, and ICRCFull protects all bytes.
func (cfg *UDPConfig) takesLines() bool {
	return cfg.Capture == nil && cfg.CapturePlain == nil && cfg.Impairment == Impairment{} && cfg.ICRC != ICRCFull
}

// directionTo returns the direction from a NIC to an address.
func directionTo(from *NIC, to verbs.GID) directionKey { return directionKey{from: from, gid: to} }

// Impair sets the faults for packets from a NIC to an address, in this direction only. It returns
// verbs.ErrInvalid if the NIC is not on this link or a value is out of range.
func (l *UDPLink) Impair(from *NIC, to netip.Addr, imp Impairment) error {
	w := l.udpNICOf(from)
	if w == nil {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("the NIC is nil or belongs to another link"))
	}
	return w.faults.impair(directionTo(from, verbs.GIDFromAddr(to)), imp)
}

// udpNICOf returns the udpNIC of a NIC, nil if the NIC is not on the link.
func (l *UDPLink) udpNICOf(n *NIC) *udpNIC {
	if n == nil || n.udp == nil || n.udp.udpNIC.link != l {
		return nil
	}
	return n.core.udpNIC
}

// Cut drops every packet from a NIC on the link to an address until Restore.
func (l *UDPLink) Cut(from *NIC, to netip.Addr) { l.setCut(from, to, true) }

// Restore undoes Cut.
func (l *UDPLink) Restore(from *NIC, to netip.Addr) { l.setCut(from, to, false) }

func (l *UDPLink) setCut(from *NIC, to netip.Addr, cut bool) {
	if w := l.udpNICOf(from); w != nil {
		w.faults.change(directionTo(from, verbs.GIDFromAddr(to)), func(d *direction) { d.cut = cut })
	}
}

// FaultStats returns the counters of packets from a NIC on the link to an address.
func (l *UDPLink) FaultStats(from *NIC, to netip.Addr) (s FaultStats) {
	if w := l.udpNICOf(from); w != nil {
		s = w.faults.statsOf(directionTo(from, verbs.GIDFromAddr(to)))
	}
	return s
}

// address returns an unused address of the link. The caller holds mu.
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

// isLocal reports whether an address is a loopback address or belonged to this host when the NIC was opened.
func (w *udpNIC) isLocal(to verbs.GID) bool {
	return to.Addr().IsLoopback() || slices.Contains(w.own, to)
}

// ownAddrs returns all addresses of this host.
func ownAddrs() (own []verbs.GID) {
	all, _ := net.InterfaceAddrs() // on error packets have full ICRCs
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, verbs.GIDFromAddr(p.Addr().Unmap()))
		}
	}
	return own
}

// hostAddrs returns this host's addresses that other hosts can reach, IPv4 first, followed by some
// loopback addresses.
func hostAddrs() []netip.Addr {
	var four, six []netip.Addr
	all, _ := net.InterfaceAddrs() // on error only loopback addresses remain
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
