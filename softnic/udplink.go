package softnic

import (
	"net"
	"net/netip"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// UDPConfig describes a UDPLink. The zero value, or a nil pointer, is a good one.
type UDPConfig struct {
	// Addrs are the addresses for NICs whose Config has none, in this order. Empty means
	// those of the host's interfaces, the loopback last.
	Addrs []netip.Addr
	// Port is the UDP port on which NICs receive. If another process has it, a NIC takes
	// the next free one and says so in its endpoints. Zero means 4791, that of RoCE v2.
	Port uint16
	// Sockets is how many source ports a NIC sends from. A path keeps one, so that
	// switches see as many flows. Zero means 16.
	Sockets int
	// Buffer is the size of the socket buffers to ask the kernel for, in bytes; an
	// unprivileged process may get less. Zero means 4 MiB.
	Buffer int
	// NoSegment and NoCoalesce do without UDP_SEGMENT and UDP_GRO, as on a kernel or a
	// device that has neither.
	NoSegment, NoCoalesce bool
	// Window is how many packets a QP may have unacknowledged, NICWindow how many all
	// QPs of a NIC. A QP whose peer has a small socket buffer takes less. Zero means 512,
	// but a MiB of full packets, and 1024.
	Window, NICWindow int
	// Spin is how long a NIC looks for more packets after the last before it sleeps, if
	// the program does not poll. Zero means 20 microseconds, less than zero not at all.
	Spin time.Duration
	// Capture takes every packet that a NIC sends, and every good one that it receives
	// from elsewhere than a NIC of this link. Nil means none.
	Capture Capture
	// Seed and Impairment make a bad network of a good one: they decide what happens to
	// packets on their way out, as on a FaultLink. Zero does nothing.
	Seed       uint64
	Impairment Impairment
}

// Capture takes packets as a UDPLink sends and receives them.
type Capture interface {
	// Packet takes one packet: the time in nanoseconds since 1970, the two ends, the
	// identification of the IPv4 header, and the parts of which the UDP datagram is
	// made, from the BTH to the ICRC. They are valid during the call only. It must be
	// quick and must not call a NIC.
	Packet(at int64, src, dst netip.AddrPort, id uint16, parts ...[]byte)
}

const (
	// The window of a QP: what is under way should fit the second-level caches of
	// both sides. The more there is, the colder are the bytes when the receiver comes to them,
	// and the longer it takes it to catch up (docs/performance.md).
	defaultUDPWindow    = 512
	defaultUDPInFlight  = 1 << 20 // bytes
	defaultUDPNICWindow = 1024
	defaultUDPSpin      = 20 * time.Microsecond

	// udpReadAhead is how many packets one READ request asks for over UDP: answers to
	// READs are not acknowledged, so this, the READs that may be outstanding and the
	// window are all that holds them back.
	udpReadAhead = 64

	// udpProbeAfter is much more than a round trip, and much less than the usual
	// timeout of a QP.
	udpProbeAfter = 2 * time.Millisecond

	// udpQueue is how many packets of a NIC an Impairment may keep under way.
	udpQueue = 1024
)

// UDPLink carries packets as RoCE v2 over UDP, to another process or another host, or to the
// kernel's Soft-RoCE and to hardware. Every NIC on it has sockets of its own on its address;
// it needs no privilege. It lives in real time.
type UDPLink struct {
	core  core
	cfg   UDPConfig
	dirty []*udpPort // those with packets to flush

	explain roce.Explainer
	faults
	directions map[udpDirection]*direction
}

// udpDirection is one way from a NIC to an address.
type udpDirection struct {
	from *NIC
	to   verbs.GID
}

// NewUDPLink returns a link without NICs. A nil cfg means the defaults.
func NewUDPLink(cfg *UDPConfig) (*UDPLink, error) {
	l := &UDPLink{directions: make(map[udpDirection]*direction)}
	if cfg != nil {
		l.cfg = *cfg
	}
	if err := l.cfg.complete(); err != nil {
		return nil, verbs.NewOpError("make UDP link", "", 0, err)
	}
	l.core.init(l, nil)
	l.core.batched, l.core.probeAfter = true, udpProbeAfter
	l.init(&l.core, l.cfg.Seed, udpQueue, l.land)
	l.core.timed = l.cfg.Impairment != Impairment{}
	return l, nil
}

func (cfg *UDPConfig) complete() error {
	for _, f := range [...]struct {
		name      string
		value     *int
		zero, max int
	}{
		{"Sockets", &cfg.Sockets, udp.DefaultSockets, 1024},
		{"Buffer", &cfg.Buffer, udp.DefaultBuffer, 1 << 30},
		{"Window", &cfg.Window, 0, maxWindow},
		{"NICWindow", &cfg.NICWindow, defaultUDPNICWindow, maxWindow},
	} {
		if *f.value < 0 || *f.value > f.max {
			return verbs.Invalidf("UDPConfig.%s is %d: want 0 to %d", f.name, *f.value, f.max)
		}
		if *f.value == 0 {
			*f.value = f.zero
		}
	}
	if cfg.Port == 0 {
		cfg.Port = roce.Port
	}
	if cfg.Spin == 0 {
		cfg.Spin = defaultUDPSpin
	}
	return cfg.Impairment.validate()
}

// Step runs what is due and returns when something will be next; see MemoryLink.Step. The link
// runs by itself: there is no need to call it.
func (l *UDPLink) Step() (next int64, pending bool) { return l.core.step() }

// Impair sets what happens to packets from a NIC to an address; the way back is not touched.
func (l *UDPLink) Impair(from *NIC, to netip.Addr, imp Impairment) error {
	if from == nil || from.link != Link(l) {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("the NIC is nil or of another link"))
	}
	if err := imp.validate(); err != nil {
		return verbs.NewOpError("impair", from.name, 0, err)
	}
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.impaired()
	l.direction(from, verbs.GIDFromAddr(to)).imp = imp
	return nil
}

// Cut makes every packet from a NIC to an address disappear until Restore.
func (l *UDPLink) Cut(from *NIC, to netip.Addr) { l.setCut(from, to, true) }

// Restore ends a Cut.
func (l *UDPLink) Restore(from *NIC, to netip.Addr) { l.setCut(from, to, false) }

func (l *UDPLink) setCut(from *NIC, to netip.Addr, cut bool) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.impaired()
	l.direction(from, verbs.GIDFromAddr(to)).cut = cut
}

// impaired makes packets go through the layer of faults from now on.
func (l *UDPLink) impaired() {
	l.core.timed = true
	for _, n := range l.core.nics {
		for q := range n.qps.all() {
			q.paced = true
		}
	}
}

// FaultStats returns what happened to packets from a NIC to an address.
func (l *UDPLink) FaultStats(from *NIC, to netip.Addr) FaultStats {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[udpDirection{from, verbs.GIDFromAddr(to)}]; d != nil {
		return d.stats
	}
	return FaultStats{}
}

func (l *UDPLink) direction(from *NIC, to verbs.GID) *direction {
	key := udpDirection{from, to}
	d := l.directions[key]
	if d == nil {
		d = &direction{imp: l.cfg.Impairment}
		l.directions[key] = d
	}
	return d
}

func (l *UDPLink) shared() *core                { return &l.core }
func (l *UDPLink) kind() string                 { return "udp" }
func (l *UDPLink) segment(mtu verbs.MTU) uint32 { return uint32(mtu.Bytes()) }
func (l *UDPLink) direct(*qp) *qp               { return nil }
func (l *UDPLink) readAhead() uint32            { return udpReadAhead }

func (l *UDPLink) window(p *path, seg uint32) (n, long uint32) {
	n, long = uint32(l.cfg.Window), maxWindow
	if n == 0 {
		n, long = defaultUDPWindow, defaultUDPInFlight/seg
	}
	if p != nil && p.way != nil {
		n = min(n, p.way.window)
	}
	return n, min(n, long)
}

// address returns an address that no NIC of the link has.
func (l *UDPLink) address() (netip.Addr, error) {
	addrs := l.cfg.Addrs
	if len(addrs) == 0 {
		addrs = hostAddrs()
	}
	for _, a := range addrs {
		if a = a.Unmap(); a.IsValid() && l.core.nics[verbs.GIDFromAddr(a)] == nil {
			return a, nil
		}
	}
	return netip.Addr{}, verbs.Invalidf("no address is left for another NIC: name one in Config.Addr (the link's are %v)", addrs)
}

// hostAddrs returns the addresses of the host to which others may send, IPv4 ones first, and
// then some of the loopback.
func hostAddrs() []netip.Addr {
	var four, six []netip.Addr
	all, _ := net.InterfaceAddrs() // without them there is still the loopback
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

// forget drops what the link keeps about a NIC that is being closed, but for its sockets.
func (l *UDPLink) forget(n *NIC) {
	for key := range l.directions {
		if key.from == n {
			delete(l.directions, key)
		}
	}
	l.faults.forget(n)
}

// flush hands all collected packets to the kernel.
func (l *UDPLink) flush() {
	for i, u := range l.dirty {
		l.dirty[i] = nil
		u.flush()
	}
	l.dirty = l.dirty[:0]
}
