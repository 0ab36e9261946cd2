package cm

import (
	"net/netip"
	"syscall"

	"ibverbx/verbs"
)

// defaultQKey is the Q_Key of datagrams unless the accepting side chooses another (RDMA_UDP_QKEY).
const defaultQKey = 0x01234567

// groupQPN is the QP number of a multicast group.
const groupQPN = 0xffffff

// limits holds the maximum private data of a request and its response, in bytes.
type limits struct{ request, response uint8 }

func (i *id) limits() limits {
	if i.space == SpaceUDP {
		return limits{privateSIDRREQ, privateSIDRREP}
	}
	return limits{privateREQ, privateREP}
}

// acceptDatagrams responds to a request with this side's QP, which completes the exchange.
func (i *id) acceptDatagrams() {
	if k := i.own.Param.QKey; k != 0 {
		i.qkey = k
	}
	i.own.Param.QKey = i.qkey
	i.conn.Send(&Message{Kind: REP, Side: i.own})
	i.setOver()
}

// datagramsAccepted reports the peer's QP.
func (i *id) datagramsAccepted(m *Message) {
	i.peer, i.qkey = m.Side, m.Side.Param.QKey
	i.setOver()
	i.post(Established, 0, Param{QPN: i.peer.Param.QPN, QKey: i.qkey, Private: i.peer.Param.Private.padded(privateSIDRREP)})
}

// group is a multicast group that an id has joined.
type group struct {
	id *id
	// delivered counts the events that the program has consumed.
	delivered uint32
}

// Join determines the address of a multicast group. The id must belong to SpaceUDP and have a
// device. The program attaches its QP itself, and identifies the membership by uid. MulticastJoin
// follows.
func (f *File) Join(number uint32, uid uint64, addr netip.Addr) (membership uint32, err error) {
	err = f.with(number, func(i *id) error {
		if i.space != SpaceUDP || i.device == nil || !addr.IsMulticast() {
			return syscall.EINVAL
		}
		m := i.m
		m.lastGroup++
		membership = m.lastGroup
		g := &group{id: i}
		m.groups[membership] = g
		e := i.event(MulticastJoin, 0, Param{QPN: groupQPN, QKey: i.qkey})
		e.UID, e.ID, e.AH.DGID, e.AH.DLID = uid, membership, verbs.GIDFromAddr(addr.WithZone("")), 0
		f.push(pending{Event: e, of: i, group: g})
		return nil
	})
	return membership, err
}

// Leave removes a membership and returns the number of its delivered events.
func (f *File) Leave(membership uint32) (delivered uint32, err error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	g := f.m.groups[membership]
	switch {
	case g == nil:
		return 0, syscall.ENOENT
	case g.id.file != f:
		return 0, syscall.EINVAL
	}
	delete(f.m.groups, membership)
	f.drop(func(p pending) bool { return p.group == g })
	return g.delivered, nil
}
