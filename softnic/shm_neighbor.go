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

// neighbor is another process of this user on this host. Each side has a segment, which the other side
// only reads. The grants in a segment let the other side execute WRITEs and READs directly in its
// owner's memory. The lock of the NIC's core guards neighbor.
type neighbor struct {
	nic  *NIC
	conn *shm.Conn
	// ring carries lines, and on a ShmLink packets. It is nil if the two sides only access each other's
	// memory.
	ring *shmRing
	// own is the local segment, peers the remote one.
	own, peers shm.Segment
	// epoch is odd while this side accesses the peer's memory, peerEpoch while the peer accesses local
	// memory.
	epoch, peerEpoch *atomic.Uint32
	files            shmFiles
	// batch holds the device copies of one call of direct. It is empty between calls.
	batch deviceBatch
	// process is the peer if its memory can be accessed without files, otherwise nil.
	process *shm.Process
	// at is the UDP receive address of the peer's NIC. It is the zero value on a ShmLink, which has no
	// other path for packets.
	at netip.AddrPort
	// introduced is set if the program introduced the peer (Introduce). Regions are then shared on
	// request.
	introduced bool
	// seal is the Seal of the QPs that use the neighbor; nil means QPs without one. release drops the
	// reference to the Seal.
	seal    verbs.Seal
	release func()
	// wrongKeys counts the peer's requests for regions denied to it.
	wrongKeys int
	// used is set once requests were executed in the peer's memory.
	used bool
	// gone is set once the peer has exited.
	gone atomic.Bool
}

// exchangeSegments exchanges segments of size bytes with the peer, and the random numbers that identify the two
// sides. The local segment advertises at to the peer. On error the neighbor has no segments.
func (b *neighbor) exchangeSegments(size int, at netip.AddrPort) (id, theirs uint64, err error) {
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
		return 0, 0, verbs.Invalidf("cannot send to the peer: the socket is full or closed")
	}
	m, fd, err := b.receiveHello()
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
	b.epoch, b.peerEpoch = b.own.In(), b.peers.In()
	pid := b.conn.Peer
	if !at.IsValid() {
		pid = m.Key // another process may have created the sockets of a ShmLink
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

// listen serves the socket until the peer exits. The caller must not hold the core's lock. A child of
// the peer may keep the socket open, so listen also watches for the exit of the process: its process ID
// may be reused, and the new process must not be written to.
func (b *neighbor) listen() {
	var watch sync.WaitGroup
	if b.process != nil {
		watch.Go(func() {
			if b.process.Ended() {
				b.gone.Store(true)
				_ = b.conn.Close() // stops the loop below
			}
		})
	}
	defer watch.Wait()
	defer b.process.Close()
	for {
		m, fd, err := b.conn.Receive()
		if err != nil || !b.handleMessage(m, fd) {
			break
		}
		b.serveAnnounced()
	}
	b.gone.Store(true)
	_ = b.conn.Close() // the peer has closed it or violated the protocol
}

// unmap releases all memory of the peer, and the local segment.
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

// endAccess marks the end of an access to the peer's memory. It is a no-op outside one.
func (b *neighbor) endAccess() {
	if b.epoch.Load()&1 == 1 {
		b.epoch.Add(1)
	}
}
