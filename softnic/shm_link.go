package softnic

import (
	"encoding/binary"
	"net"
	"net/netip"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// ShmLink connects a NIC in this process with one in another process of the same user on this host, at
// memory speed. The sender executes WRITEs and READs directly in the peer's memory: one copy, without
// the peer's CPU. It is fastest if the peer's memory was allocated as Shared. The kernel copies other
// memory (process_vm_writev(2)) if the system permits it. Everything else travels as packets in shared
// memory.
//
// The link is lossless. It works until either process exits or either NIC is closed: then requests of
// the other NIC fail with RETRY_EXC_ERR and its port goes down. A ShmLink accepts one NIC, once, and
// chooses its address.
type ShmLink struct {
	core
	ring shmRing
	// peer is the other process.
	peer       neighbor
	background shmBackground
}

const (
	// shmWindow is the maximum number of unacknowledged packets per QP.
	shmWindow = shm.Slots
	// shmReserve is the number of ring entries reserved for ACKs.
	shmReserve = shm.Slots / 4
	// shmPlaced marks an entry whose payload is already in place. The mark is the last byte of the
	// entry's header, after the packet's headers.
	shmPlaced = 1
)

// NewShmLink creates a link over a unix socket connection; the other end must do the same. It takes
// ownership of conn and closes it on error. Peers of other users are rejected. It works on Linux only;
// elsewhere it returns an error.
func NewShmLink(conn *net.UnixConn) (*ShmLink, error) {
	l, err := newShmLink(conn)
	if err != nil {
		if conn != nil {
			_ = conn.Close() // the first error is more specific
		}
		return nil, verbs.NewOpError("create shared-memory link", "", 0, err)
	}
	return l, nil
}

func newShmLink(conn *net.UnixConn) (*ShmLink, error) {
	if conn == nil {
		return nil, verbs.Invalidf("no connection")
	}
	c, err := shm.NewConn(conn)
	if err != nil {
		return nil, err
	}
	l := &ShmLink{peer: neighbor{conn: c}}
	id, theirs, err := l.peer.exchangeSegments(shm.SegmentSize, netip.AddrPort{})
	if err != nil {
		return nil, err
	}
	from := &l.ring.from
	from.sgid, from.dgid = shmAddr(theirs), shmAddr(id)
	from.attr = verbs.AHAttr{DGID: from.dgid, HopLimit: 64, Port: 1}
	l.ring.packets = l
	l.ring.open(&l.peer)
	l.init(l, linkTraits{kind: "shm", window: shmWindow, shm: l}, nil)
	return l, nil
}

// shmAddr derives the address of a side from its number: a never-routed IPv6 address (RFC 4193).
func shmAddr(id uint64) (g verbs.GID) {
	copy(g[:], "\xfdshm")
	binary.BigEndian.PutUint64(g[8:], id)
	return g
}

// plug starts the link for its NIC.
func (l *ShmLink) plug(n *NIC) error {
	if l.peer.nic != nil {
		return verbs.Invalidf("a ShmLink takes one NIC, and %s has been on it", l.peer.nic.name)
	}
	l.peer.nic, l.neighbors = n, []*neighbor{&l.peer}
	n.gids = []verbs.GIDEntry{{GID: l.ring.from.dgid, Index: 0, Type: verbs.GIDTypeRoCEv2}}
	l.start()
	return nil
}

func (l *ShmLink) send(from *NIC, p *packet) {
	switch {
	case !from.portUp:
		from.stats.PortDownDrops++
	case p.path.dgid == l.ring.from.dgid:
		from.receive(p)
	case p.path.dgid != l.ring.from.sgid:
		from.stats.Unroutable++
	case l.peer.gone.Load() || !l.ring.writer.Room(1):
		from.stats.SendDrops++ // the ring cannot be full: see room
	default:
		l.write(p)
	}
}

// write adds a packet to the ring. A payload without segments is already in place.
func (l *ShmLink) write(p *packet) {
	length, mark := int(p.length), byte(0)
	if p.numSegs == 0 && length > 0 {
		length, mark = 0, shmPlaced
	}
	header, payload := l.ring.writer.Begin(length)
	p.Encode(header, length)
	header[shm.Header-1] = mark
	for k := range p.numSegs {
		payload = payload[copy(payload, p.segs[k]):]
	}
	l.ring.writer.Publish()
	l.ring.dirty = true
}

// ringBell wakes a sleeping peer whose ring needs attention.
func (l *ShmLink) ringBell() {
	if l.ring.dirty {
		l.ring.dirty = false
		l.ring.bell.Ring()
	}
}

// room reports whether q may send another packet. Otherwise the QP is scheduled once the peer has
// freed slots.
func (l *ShmLink) room(q *qp) bool { return l.hasRoom(q, 1+shmReserve) }

// ackRoom reports whether the ring has slots for an ACK and a NAK.
func (l *ShmLink) ackRoom(q *qp) bool { return l.hasRoom(q, 2) }

func (l *ShmLink) hasRoom(q *qp, n uint32) bool {
	if l.peer.gone.Load() || l.ring.writer.Room(n) {
		return true
	}
	l.peer.nic.waiting.push(q)
	l.peer.own.Wants().Store(1)
	return l.ring.writer.Room(n) // the peer may have freed slots before it could see the word
}

// resume schedules the waiting QPs once the ring has free slots.
func (l *ShmLink) resume() {
	w := &l.peer.nic.waiting
	if w.empty() || !l.ring.writer.Room(1+shmReserve) {
		return
	}
	l.peer.own.Wants().Store(0)
	for q := w.pop(); q != nil; q = w.pop() {
		l.lists.tx.push(q)
		if q.ackDue || q.nakSyndrome != 0 {
			l.lists.acks.push(q)
		}
	}
}
