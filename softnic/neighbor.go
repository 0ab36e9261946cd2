package softnic

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// neighbor is another process of this user on this host. Each of the two sides has a segment, which the other one only reads. By what
// the words in it grant, the other side does WRITEs and READs itself, on this side's memory. The lock of the NIC's core
// guards it.
type neighbor struct {
	nic  *NIC
	conn *shm.Conn
	// own is this side's segment, peers the other's.
	own, peers []byte
	// in is odd while this side touches the peer's memory, theirIn while the peer touches this side's.
	in, theirIn *atomic.Uint32
	files       shmFiles
	// process is the peer if its memory can be reached without files, otherwise nil.
	process *shm.Process
	// gone says that the peer has ended.
	gone atomic.Bool
}

// shmHello is how long the peer may take for its first message.
const shmHello = 10 * time.Second

// meet exchanges segments of size bytes with the peer, and the random numbers by which the sides know each other. After an error
// the neighbor has no segments.
func (b *neighbor) meet(size int) (id, theirs uint64, err error) {
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
	shm.Word64(own, shmSelf).Store(shm.Addr(own))
	shm.Word64(own, shmSelf+8).Store(id)
	sent := b.conn.Send(shm.Message{Kind: shm.Hello, Key: shm.Pid(), Addr: id, Size: uint64(size)}, fd)
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
	b.in, b.theirIn = shm.Word32(b.own, shmIn), shm.Word32(b.peers, shmIn)
	b.process = shm.NewProcess(m.Key, shm.Word64(b.peers, shmSelf).Load()+shmSelf+8, binary.NativeEndian.AppendUint64(nil, m.Addr))
	return id, m.Addr, nil
}

// expect waits for the first message of the peer.
func (b *neighbor) expect() (m shm.Message, fd int, err error) {
	if err = b.conn.SetReadDeadline(time.Now().Add(shmHello)); err != nil {
		return m, -1, err
	}
	if m, fd, err = b.conn.Receive(); err != nil {
		return m, -1, err
	}
	return m, fd, b.conn.SetReadDeadline(time.Time{})
}

// listen serves the socket until the peer ends. The core's lock must not be held.
func (b *neighbor) listen() {
	for {
		m, fd, err := b.conn.Receive()
		if err != nil || !b.hear(m, fd) {
			break
		}
	}
	b.gone.Store(true)
	_ = b.conn.Close() // the peer has closed it or does not keep to the protocol
}

// unmap forgets all memory of the peer, and this side's segment.
func (b *neighbor) unmap() {
	for i := range b.files.regions {
		shm.Unmap(b.files.regions[i].bytes)
	}
	b.files.regions = nil
	shm.Unmap(b.own)
	shm.Unmap(b.peers)
	b.own, b.peers = nil, nil
}

// leave ends the use of the peer's memory, unless it has ended.
func (b *neighbor) leave() {
	if b.in.Load()&1 == 1 {
		b.in.Add(1)
	}
}

// grace waits until the peer no longer touches memory under a grant that was just removed. That is the time of
// one chain of requests, or longer if the peer is stopped in the middle of one.
func (b *neighbor) grace() {
	for _, other := range b.nic.core.neighbors {
		other.leave() // a request that fails ends its QP; many sides may be waiting here
	}
	in := b.theirIn.Load()
	for spins := 0; in&1 == 1 && b.theirIn.Load() == in && !b.gone.Load(); spins++ {
		if spins < 1000 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
}
