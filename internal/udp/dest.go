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
}

// NewDest returns the destination addr. With runs, datagrams to it may leave in runs of equal
// ones (UDP_SEGMENT).
func NewDest(addr netip.AddrPort, runs bool) *Dest {
	d := &Dest{addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), runs: runs}
	d.raw.set(d.addr)
	return d
}

// Runs reports whether datagrams to the destination may leave in runs, as NewDest was told.
func (d *Dest) Runs() bool { return d.runs }

// Addr returns the address and port.
func (d *Dest) Addr() netip.AddrPort { return d.addr }
