package softnic

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// neighbor is another process of this user on this host. Each of the two sides has a segment, which the other one only reads. By what
// the words in it grant, the other side does WRITEs and READs itself, on this side's memory. The lock of the NIC's core
// guards it.
type neighbor struct {
	nic  *NIC
	conn *shm.Conn
	// ring carries lines, and on a ShmLink packets. It is nil if the two sides only touch each other's memory.
	ring *shmRing
	// own is this side's segment, peers the other's.
	own, peers shm.Segment
	// in is odd while this side touches the peer's memory, theirIn while the peer touches this side's.
	in, theirIn *atomic.Uint32
	files       shmFiles
	// run is what a device copies for a call of direct. Between calls it is empty.
	run shmRun
	// process is the peer if its memory can be reached without files, otherwise nil.
	process *shm.Process
	// at is where the peer's NIC receives over UDP. It is the zero value on a ShmLink, where packets have no other way.
	at netip.AddrPort
	// introduced is set if the program knows the peer (Introduce). Then regions are lent on request.
	introduced bool
	// seal is the Seal of the QPs that use the neighbor; nil means QPs without one. release drops the reference to the Seal.
	seal    verbs.Seal
	release func()
	// wrongKeys counts the peer's requests for regions that it cannot get.
	wrongKeys int
	// used says that requests were done on the peer's memory.
	used bool
	// gone says that the peer has ended.
	gone atomic.Bool
}

// meet exchanges segments of size bytes with the peer, and the random numbers by which the sides know each other. The peer finds at in the
// segment. After an error the neighbor has no segments.
func (b *neighbor) meet(size int, at netip.AddrPort) (id, theirs uint64, err error) {
	defer func() {
		if err != nil {
			b.unmap()
		}
	}()
	own, fd, err := shm.Create(size, true)
	if err != nil {
		return 0, 0, err
	}
	b.own = own
	id = rand.Uint64()
	b.own.Sign(id, at)
	hello := shm.Message{Kind: shm.Hello, Addr: id, Size: uint64(size)}
	if !at.IsValid() {
		hello.Key = shm.Pid()
	}
	sent := b.conn.Send(hello, fd)
	shm.Close(fd)
	if !sent {
		return 0, 0, verbs.Invalidf("the connection takes no message")
	}
	m, fd, err := b.expect()
	if err != nil {
		return 0, 0, err
	}
	if m.Kind != shm.Hello || m.Size != uint64(size) || m.Addr == id {
		shm.Close(fd)
		return 0, 0, verbs.Invalidf("the peer's first message is %+v, want a hello with %d bytes", m, size)
	}
	if b.peers, err = shm.Map(fd, uint64(size), false); err != nil {
		return 0, 0, err
	}
	b.in, b.theirIn = b.own.In(), b.peers.In()
	pid := b.conn.Peer
	if !at.IsValid() {
		pid = m.Key // another process may have made the sockets of a ShmLink
	}
	b.process = shm.NewProcess(pid, b.peers.NumberAddr(), binary.NativeEndian.AppendUint64(nil, m.Addr))
	return id, m.Addr, nil
}

// leadsTo reports whether the peer of q is the neighbor's NIC.
func (b *neighbor) leadsTo(q *qp) bool {
	if !b.at.IsValid() {
		return true
	}
	return q.path != nil && q.pathConfig.Seal == b.seal && q.path.route.dest.Addr() == b.at
}

// listen serves the socket until the peer ends. The core's lock must not be held. A child of the peer may keep the socket open, so the
// end of the process counts too: afterwards another process may get its number, and must not be written.
func (b *neighbor) listen() {
	var watch sync.WaitGroup
	if b.process != nil {
		watch.Go(func() {
			if b.process.Ended() {
				b.gone.Store(true)
				_ = b.conn.Close() // the loop below ends
			}
		})
	}
	defer watch.Wait()
	defer b.process.Close()
	for {
		m, fd, err := b.conn.Receive()
		if err != nil || !b.hear(m, fd) {
			break
		}
		b.serveNudged()
	}
	b.gone.Store(true)
	_ = b.conn.Close() // the peer has closed it or does not keep to the protocol
}

// unmap forgets all memory of the peer, and this side's segment.
func (b *neighbor) unmap() {
	b.files.closeOn(nil)
	for i := range b.files.regions {
		shm.Unmap(b.files.regions[i].bytes)
	}
	b.files.regions = nil
	shm.Unmap(b.own)
	shm.Unmap(b.peers)
	b.own, b.peers = nil, nil
	b.process.Close()
}

// leave ends the use of the peer's memory, unless it has ended.
func (b *neighbor) leave() {
	if b.in.Load()&1 == 1 {
		b.in.Add(1)
	}
}
