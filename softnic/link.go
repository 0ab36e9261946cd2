package softnic

import (
	"net/netip"

	"ibverbx/verbs"
)

// Link is what carries the packets of the NICs that are plugged into it. The package's
// links are MemoryLink, FaultLink and UDPLink. A link needs no closing: when its last NIC is
// closed nothing of it is left.
//
// All methods but Step are called with the core's lock held.
type Link interface {
	// Step runs what is due: see MemoryLink.Step.
	Step() (next int64, pending bool)

	// shared returns the state that the NICs of the link share.
	shared() *core
	// kind names the link for DeviceAttr.Link.
	kind() string
	// segment returns the payload bytes of one packet at a path MTU.
	segment(mtu verbs.MTU) uint32
	// window returns how many packets a requester may have unacknowledged on a path, and how
	// many to send another full one, of seg bytes.
	window(p *path, seg uint32) (n, long uint32)
	// readAhead returns how many packets one READ request may ask for; 0 is without
	// limit. A longer READ is made of several.
	readAhead() uint32
	// send carries p. p and its payload are valid only during the call.
	send(from *NIC, p *packet)
	// direct returns the QP to which every packet of q goes, unharmed and at once,
	// until the work list is next looked at; nil if that cannot be said. It saves
	// finding the QP anew for every packet of a burst.
	direct(q *qp) *qp
	// room reports whether from may send another packet now. If not, the link
	// schedules q when it may.
	room(from *NIC, q *qp) bool
	// deliver hands on at most budget packets that are due at now, and reports how
	// many it handed on.
	deliver(now int64, budget int) int
	// next is the time at which a packet is due, never if there is none.
	next() int64
	// pump takes the packets that have arrived, on a link to which others send, and
	// reports whether there were any, or that somebody else is at it.
	pump() (read, busy bool)
	// flush hands on what send has collected. It is called before the lock is released.
	flush()
	// address returns an address for a NIC that was given none.
	address() (netip.Addr, error)
	// plug makes the link ready for a NIC that has its address.
	plug(n *NIC) error
	// route fills in what the link needs to know about a path of n.
	route(n *NIC, p *path) error
	// forget drops what the link keeps about a NIC that is being closed.
	forget(n *NIC)
}

var (
	_ Link = (*MemoryLink)(nil)
	_ Link = (*FaultLink)(nil)
	_ Link = (*UDPLink)(nil)
)
