package softnic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// Multicast (IBTA 1.4 section 10.5) on a UDPLink is IP multicast on the interface of the NIC's address.
// A NIC has a separate port for every group, whose socket has joined the group. All members on a host
// share the group's UDP port 4791. The sender's host loops packets back to its own members, and a
// sending QP receives its own packets if attached: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB is not supported.
// Packets are plain. Sealed QPs cannot participate, because they share their keys with one peer.

// group is a multicast group joined by a NIC. The core's lock guards it.
type group struct {
	// mgid identifies the group to programs.
	mgid verbs.GID
	// port receives the group's packets.
	port *udpPort
	// members holds the attached QPs, without duplicates.
	members []*qp
}

// groupQPN is the destination QPN of packets to a group.
const groupQPN = 1<<24 - 1

// maxGroups is the maximum number of groups per NIC. Each has a socket, a goroutine and a buffer of 1
// MiB.
const maxGroups = 64

// AttachMulticast makes a UD QP receive the packets to a group (ibv_attach_mcast(3)). A QP attached
// twice receives one copy. On a NIC with an IPv4 address, the group ::ffff:a.b.c.d has the address
// a.b.c.d on the wire, and an IPv6 group has the address 239.x.y.z, with the last three bytes of its
// GID. Of several groups with the same address, a NIC can join one. AttachMulticast is not part of
// verbs.QP; callers use a type assertion.
func (q *qp) AttachMulticast(mgid verbs.GID) error {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	err := q.usable()
	if err == nil {
		err = q.attach(mgid)
	}
	return q.opError("attach to group", err)
}

// DetachMulticast reverts AttachMulticast. A QP must be detached from all groups before it can be
// closed. It is not part of verbs.QP either.
func (q *qp) DetachMulticast(mgid verbs.GID) error {
	err := q.detach(mgid)
	if err == nil {
		err = q.nic.leaveGroups()
	}
	return q.opError("detach from group", err)
}

func (q *qp) attach(mgid verbs.GID) error {
	w := q.core.udpNIC
	switch {
	case q.typ != verbs.UD:
		return verbs.Invalidf("a QP of type %v: only UD QPs can be attached", q.typ)
	case q.sealing != nil:
		return fmt.Errorf("%w: a sealed QP shares its keys with one peer, and a group has many", verbs.ErrNotSupported)
	case w == nil:
		return fmt.Errorf("%w: multicast needs a UDPLink", verbs.ErrNotSupported)
	}
	addr, err := q.nic.groupAddr(mgid)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(w.groups, func(g *group) bool { return g.port.conn.Addr().Addr() == addr })
	if i < 0 {
		if err := w.join(addr, mgid); err != nil {
			return err
		}
		i = len(w.groups) - 1
	}
	g := w.groups[i]
	switch {
	case g.mgid != mgid:
		return verbs.Invalidf("group %s: the NIC has joined %s, which has the same address on the wire", mgid, g.mgid)
	case slices.Contains(g.members, q):
		return nil
	}
	g.members = append(g.members, q)
	g.port.use(1)
	return nil
}

func (q *qp) detach(mgid verbs.GID) error {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	for _, g := range q.nic.joined() {
		if g.mgid == mgid && g.drop(q) {
			return nil
		}
	}
	return verbs.Invalidf("group %s: the QP is not attached to it", mgid)
}

// drop removes member q and reports whether it was one.
func (g *group) drop(q *qp) bool {
	i := slices.Index(g.members, q)
	if i >= 0 {
		g.members = slices.Delete(g.members, i, i+1)
		g.port.use(-1)
	}
	return i >= 0
}

// attached reports whether the QP is attached to a group.
func (q *qp) attached() bool {
	return slices.ContainsFunc(q.nic.joined(), func(g *group) bool { return slices.Contains(g.members, q) })
}

// joined returns the groups joined by the NIC.
func (n *NIC) joined() []*group {
	if n.core.udpNIC == nil {
		return nil
	}
	return n.core.udpNIC.groups
}

// leaveGroups leaves the groups without members. The caller must not hold the core's lock. A closing
// NIC closes all ports itself.
func (n *NIC) leaveGroups() (err error) {
	w := n.core.udpNIC
	if w == nil {
		return nil
	}
	var left []*udpPort
	w.mu.Lock()
	w.groups = slices.DeleteFunc(w.groups, func(g *group) bool {
		empty := len(g.members) == 0 && !n.closed
		if empty {
			left = append(left, g.port)
		}
		return empty
	})
	if len(left) > 0 { // readers may hold the slice
		n.ports = slices.DeleteFunc(slices.Clone(n.ports), func(u *udpPort) bool { return slices.Contains(left, u) })
	}
	w.mu.Unlock()
	for _, u := range left {
		err = errors.Join(err, u.close())
	}
	return err
}

// groupAddr returns a group's address on the wire.
func (n *NIC) groupAddr(mgid verbs.GID) (netip.Addr, error) {
	addr, own := mgid.Addr(), n.udp.conn.Addr().Addr()
	switch {
	case !addr.IsMulticast():
		return addr, verbs.Invalidf("GID %s is not a multicast group: want ::ffff:224.0.0.0/100 or ff00::/8", mgid)
	case own.Is4() && addr.Is6():
		return netip.AddrFrom4([4]byte{239, mgid[13], mgid[14], mgid[15]}), nil
	case own.Is6() && addr.Is4():
		return addr, verbs.Invalidf("IPv4 group %s needs a NIC with an IPv4 address, not %s", mgid, own)
	}
	return addr, nil
}

// join opens the port of a group and adds it to the groups of the NIC.
func (w *udpNIC) join(addr netip.Addr, mgid verbs.GID) error {
	n, cfg := w.nic, &w.link.cfg
	if len(w.groups) == maxGroups {
		return fmt.Errorf("%w: the NIC has joined %d groups", verbs.ErrLimit, maxGroups)
	}
	if err := n.udp.conn.AimAt(addr); err != nil {
		return err
	}
	conn, err := udp.OpenGroup(udp.Config{
		Addr: n.udp.conn.Addr().Addr(), Port: roce.Port, Buffer: cfg.Buffer, NoCoalesce: cfg.NoCoalesce,
	}, addr)
	if err != nil {
		return err
	}
	g := &group{mgid: mgid, port: w.newPort(n, conn, n.udp.mtu, 0)}
	w.groups = append(w.groups, g)
	g.port.start()
	return nil
}

// aim replaces a destination that is a group by its address on the wire. It returns an error for
// connections and sealed packets.
func (n *NIC) aim(attr *verbs.AHAttr, datagrams bool, g *sealing) error {
	addr, err := n.groupAddr(attr.DGID)
	switch {
	case err != nil:
		return fmt.Errorf("address vector: %w", err)
	case !datagrams:
		return verbs.Invalidf("address vector: %s is a multicast group, to which only UD QPs can send", attr.DGID)
	case g != nil:
		return fmt.Errorf("address vector: %w: packets to group %s cannot be sealed", verbs.ErrNotSupported, attr.DGID)
	}
	attr.DGID, attr.DLID = verbs.GIDFromAddr(addr), 0 // a multicast LID is not a port
	return n.udp.conn.AimAt(addr)
}

// deliverGroup passes a packet received on a group's port to all members.
func (u *udpPort) deliverGroup(from *udpSource, p *packet) {
	i := slices.IndexFunc(u.udpNIC.groups, func(g *group) bool { return g.port == u })
	if i < 0 || p.DestQPN != groupQPN || p.Opcode&roce.TransportMask != roce.UD {
		u.nic.stats.UnknownQP++
		return
	}
	for _, q := range u.udpNIC.groups[i].members {
		p.DestQPN = q.num
		u.nic.udp.deliver(from, p)
	}
}
