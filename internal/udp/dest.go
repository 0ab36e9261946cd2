package udp

import "net/netip"

// Dest is a destination of datagrams, with its address in the form of the kernel. It is for one
// Writer.
type Dest struct {
	addr netip.AddrPort
	raw  rawAddr
	// runs says that the receiver can tell the datagrams of a run apart.
	runs bool
	// fills says that the receiver finds the end of a datagram that was filled up.
	fills bool
	// refused says that the kernel has refused a run. Datagrams then leave one by one.
	refused bool
	marks   Marks
}

// Marks are the fields of IP headers that routers act on. The zero value means no class and
// DefaultHops.
type Marks struct {
	// Class is the traffic class of IPv6 or the type of service of IPv4.
	Class uint8
	// Hops is the hop limit of IPv6 or the time to live of IPv4. 0 means DefaultHops.
	Hops uint8
}

// DefaultHops is the usual hop limit.
const DefaultHops = 64

// NewDest returns the destination addr. With runs, datagrams to it may leave in runs of equal
// ones (UDP_SEGMENT).
func NewDest(addr netip.AddrPort, runs bool) *Dest {
	d := &Dest{addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), runs: runs, marks: Marks{Hops: DefaultHops}}
	d.raw.set(d.addr)
	return d
}

// Mark sets the marks of the datagrams to the destination and returns d. No datagram may be under way.
func (d *Dest) Mark(m Marks) *Dest {
	if m.Hops == 0 {
		m.Hops = DefaultHops
	}
	d.marks = m
	return d
}

// Fill makes the Writer fill up datagrams to the length of their run and returns d.
func (d *Dest) Fill() *Dest {
	d.fills = true
	return d
}

// Fills reports whether Fill was called.
func (d *Dest) Fills() bool { return d.fills }

// Marks returns the marks of the datagrams to the destination.
func (d *Dest) Marks() Marks { return d.marks }

// Runs returns the argument of NewDest: whether datagrams to the destination may leave in runs.
func (d *Dest) Runs() bool { return d.runs }

// Addr returns the address and port.
func (d *Dest) Addr() netip.AddrPort { return d.addr }
