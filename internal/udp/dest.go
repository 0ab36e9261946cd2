package udp

import "net/netip"

// Dest is a destination, with its address in kernel format. It belongs to one Writer.
type Dest struct {
	addr netip.AddrPort
	raw  rawAddr
	// runs is set if the receiver can split a run into datagrams.
	runs bool
	// fills is set if the receiver can find the end of a padded datagram.
	fills bool
	// refused is set after the kernel has refused a run. Datagrams are then sent individually.
	refused bool
	marks   Marks
}

// Marks are the IP header fields that routers act on. The zero value means class 0 and DefaultHops.
type Marks struct {
	// Class is the traffic class of IPv6 or the type of service of IPv4.
	Class uint8
	// Hops is the hop limit of IPv6 or the time to live of IPv4. 0 means DefaultHops.
	Hops uint8
}

// DefaultHops is the usual hop limit.
const DefaultHops = 64

// NewDest returns the destination addr. If runs is set, equally long datagrams may be sent as a run
// (UDP_SEGMENT).
func NewDest(addr netip.AddrPort, runs bool) *Dest {
	d := &Dest{addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), runs: runs, marks: Marks{Hops: DefaultHops}}
	d.raw.set(d.addr)
	return d
}

// Mark sets the marks of datagrams to d and returns d. It must not be called while datagrams to d
// are pending.
func (d *Dest) Mark(m Marks) *Dest {
	if m.Hops == 0 {
		m.Hops = DefaultHops
	}
	d.marks = m
	return d
}

// Fill makes the Writer pad datagrams to the length of their run and returns d.
func (d *Dest) Fill() *Dest {
	d.fills = true
	return d
}

// Fills reports whether Fill was called.
func (d *Dest) Fills() bool { return d.fills }

// Marks returns the marks of datagrams to d.
func (d *Dest) Marks() Marks { return d.marks }

// Runs returns the argument of NewDest: whether datagrams to d may be sent as runs.
func (d *Dest) Runs() bool { return d.runs }

// Addr returns the address and port.
func (d *Dest) Addr() netip.AddrPort { return d.addr }
