package udp

import "net/netip"

// Dest is where datagrams go: an address as the kernel wants it. It is for one Writer.
type Dest struct {
	addr netip.AddrPort
	raw  rawAddr
	// runs says that the receiver can tell the datagrams of a run apart.
	runs bool
	// refused says that the kernel has refused a run: datagrams leave one by one.
	refused bool
	marks   Marks
}

// Marks is what the IP headers of datagrams say to routers. The zero value is no class, and
// DefaultHops.
type Marks struct {
	Class uint8 // the traffic class of IPv6, the type of service of IPv4
	Hops  uint8 // the hop limit of IPv6, the time to live of IPv4; 0 means DefaultHops
}

// DefaultHops is how far datagrams go.
const DefaultHops = 64

// NewDest returns the destination addr. With runs, datagrams to it may leave in runs of equal
// ones (UDP_SEGMENT).
func NewDest(addr netip.AddrPort, runs bool) *Dest {
	d := &Dest{addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), runs: runs, marks: Marks{Hops: DefaultHops}}
	d.raw.set(d.addr)
	return d
}

// Mark sets the marks of the datagrams to the destination; none may be under way. It returns d.
func (d *Dest) Mark(m Marks) *Dest {
	if m.Hops == 0 {
		m.Hops = DefaultHops
	}
	d.marks = m
	return d
}

// Marks returns the marks of the datagrams to the destination.
func (d *Dest) Marks() Marks { return d.marks }

// Runs reports whether datagrams to the destination may leave in runs, as NewDest was told.
func (d *Dest) Runs() bool { return d.runs }

// Addr returns the address and port.
func (d *Dest) Addr() netip.AddrPort { return d.addr }
