package softnic

import (
	"sync/atomic"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// Access to a side's memory requires two words in its segment: the QP's grant and the region's key. The
// accessing side makes neighbor.epoch odd before it reads these words. To revoke access, the owner clears
// a word, then waits for the peer's counter to change if it is odd. Afterwards no access under that
// word is running.

// grant publishes the rights of all neighbors on q, in its current state.
func (c *core) grant(q *qp) {
	for _, b := range c.neighbors {
		b.grant(q)
	}
}

// grant publishes the rights of the peer on q.
func (b *neighbor) grant(q *qp) {
	var want uint64
	begun := q.state == verbs.StateRTS || q.state == verbs.StateSQD || (q.state == verbs.StateRTR && q.commEst) // after the event
	if q.typ == verbs.RC && begun && q.nic.portUp && q.nic.observe == nil && b.leadsTo(q) {
		g := shm.Grant{
			Domain: q.pd.id,
			Read:   q.attr.Access&verbs.AccessRemoteRead != 0 && q.attr.MaxDestRdAtomic != 0,
			Write:  q.attr.Access&verbs.AccessRemoteWrite != 0,
		}
		want = shm.GrantWord(g, q.attr.RQPSN+q.attr.DestQPN, q.num)
	}
	if b.gone.Load() && !b.at.IsValid() {
		want = 0
	}
	if word := b.own.Grant(q.num); word.Load() != want {
		b.revoke(q)
		word.Store(want)
		if want != 0 && b.ring != nil {
			q.startCredits()
		}
	}
}

// grantAll publishes the grants of all QPs again, after a change of the port or the observer.
func (n *NIC) grantAll() {
	for _, b := range n.core.neighbors {
		for q := range n.qps.all() {
			b.grant(q)
		}
	}
}

// revoke revokes the grants of q and serves the ring, because requests in it have completed at the
// peer. The caller is about to change state that they depend on, and then calls grant.
func (q *qp) revoke() {
	for _, b := range q.core.neighbors {
		b.revoke(q)
	}
}

func (b *neighbor) revoke(q *qp) {
	word := b.own.Grant(q.num)
	if word.Load() == 0 {
		return
	}
	word.Store(0)
	b.withdrawCredit(q)
	b.grace()
	if b.ring != nil {
		b.ring.serveAll()
	}
}

// revoke revokes the grants of all QPs.
func (n *NIC) revoke() {
	for q := range n.qps.all() {
		q.revoke()
	}
}

// shmRemote is the set of grantable access flags.
const shmRemote = verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// shmFiles holds the regions shared between the two sides. The core's lock guards it.
type shmFiles struct {
	// regions holds the peer's regions, indexed by the low bits of their keys. Its length is 0 or a
	// power of two.
	regions []shmRegion
	// used counts regions, at most maxShmFiles.
	used int
	// recalls lists local keys that the peer must still unmap. It is not empty while the socket is
	// full.
	recalls []uint32
	// stuck is memory of the peer that a local device could not close.
	stuck []*verbs.Memory
}

// shmRegion is a region of the peer.
type shmRegion struct {
	key, domain uint32
	access      verbs.Access
	addr, size  uint64
	// bytes is the mapping. Nil means that only the kernel, or a device, can access the region.
	bytes []byte
	// deviceMem is the region's device memory, nil for host memory.
	deviceMem *peerDeviceMemory
	// requests counts the requests that needed the region before the peer shared it.
	requests uint32
	// refused is set once a device copy has failed. Packets then carry requests that need a device.
	refused bool
}

// maxShmFiles is the maximum number of known regions per peer. Packets serve the others.
const maxShmFiles = 1 << 12

// offer shares a region with a neighbor, unless that was introduced and must request regions.
func (b *neighbor) offer(m *mr) {
	if !b.introduced {
		b.publish(m)
	}
}

// publish shares a region, if its memory and access flags allow.
func (b *neighbor) publish(m *mr) {
	access := m.access & shmRemote
	if m.mem == nil || access == 0 {
		return
	}
	kind, fd, handle := shm.ShareAddress, -1, []byte(nil)
	if m.device != nil {
		var err error
		if handle, err = m.device.ExportMemory(m.base, m.length); err != nil || len(handle) == 0 || len(handle) > shm.MaxHandle {
			return // packets carry requests without a handle
		}
		kind = shm.ShareDevice
	} else if f, ok := m.mem.File(); ok && shm.Share(f, access&verbs.AccessRemoteWrite != 0) {
		kind, fd = shm.ShareFile, f
	}
	if b.recallAll() && b.conn.Send(shm.Message{
		Kind: kind, Access: uint16(access), Key: m.key, Domain: m.pd.id, Addr: m.addr, Size: m.length, Handle: string(handle),
	}, fd) {
		b.published(m).Store(m.key)
	}
}

// published returns the segment word for a region. It holds the region's key while shared. Regions may share
// a word, but never a key.
func (b *neighbor) published(m *mr) *atomic.Uint32 {
	return b.own.Key(m.key)
}

// recall revokes access to a region. Once it returns, the peer does not access the memory through the
// region.
func (b *neighbor) recall(m *mr) {
	word := b.published(m)
	if word.Load() != m.key {
		return
	}
	word.Store(0)
	b.grace()
	if b.ring != nil {
		b.ring.serveAll()
	}
	b.files.recalls = append(b.files.recalls, m.key)
	b.recallAll()
}

// recallAll sends the pending recalls and reports whether all were sent. New regions are shared only
// afterwards, which bounds the list by the number of regions.
func (b *neighbor) recallAll() bool {
	s := &b.files
	for len(s.recalls) > 0 && b.conn.Send(shm.Message{Kind: shm.Revoke, Key: s.recalls[0]}, -1) {
		s.recalls = s.recalls[1:]
	}
	return len(s.recalls) == 0
}

// handleMessage handles a message from the peer. It returns false on a protocol violation.
func (b *neighbor) handleMessage(m shm.Message, fd int) bool {
	access := verbs.Access(m.Access)
	if m.Kind == shm.RequestRegion {
		return b.introduced && b.handleRequest(m.Key)
	}
	if m.Kind == shm.ReadRing {
		return true // the caller serves the ring
	}
	if m.Kind == shm.Hello || m.Key == 0 || access&^shmRemote != 0 {
		shm.Close(fd)
		return false
	}
	r := shmRegion{key: m.Key, domain: m.Domain, access: access, addr: m.Addr, size: m.Size}
	switch m.Kind {
	case shm.ShareFile:
		var err error
		if r.bytes, err = shm.Map(fd, m.Size, access&verbs.AccessRemoteWrite != 0); err != nil {
			return true // packets serve an unmapped region
		}
	case shm.ShareDevice:
		r.deviceMem = &peerDeviceMemory{handle: []byte(m.Handle)}
	case shm.Revoke:
		r = shmRegion{}
	case shm.ShareAddress, shm.Hello, shm.RequestRegion, shm.ReadRing: // no file
	}
	c := b.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.files.set(m.Key, r) {
		shm.Unmap(r.bytes)
	}
	return true
}

// set stores r under a key and unmaps the previous region. It returns false if the table is full.
func (s *shmFiles) set(key uint32, r shmRegion) bool {
	i := int(key) & (len(s.regions) - 1)
	for len(s.regions) == 0 || (s.regions[i].key != 0 && s.regions[i].key != key) {
		if r.key == 0 || len(s.regions) == shm.Places {
			return r.key == 0
		}
		larger := make([]shmRegion, max(minKeys, 2*len(s.regions)))
		for _, o := range s.regions {
			if o.key != 0 {
				larger[int(o.key)&(len(larger)-1)] = o
			}
		}
		s.regions, i = larger, int(key)&(len(larger)-1)
	}
	old := &s.regions[i]
	if r.key != 0 && old.key == 0 && s.used == maxShmFiles {
		return false
	}
	s.used += index(r.key != 0) - index(old.key != 0)
	shm.Unmap(old.bytes)
	s.closeDeviceMem(old.deviceMem)
	*old = r
	return true
}

// lookup returns the region under a key, or nil.
func (s *shmFiles) lookup(key uint32) *shmRegion {
	if len(s.regions) > 0 {
		if r := &s.regions[int(key)&(len(s.regions)-1)]; r.key == key {
			return r
		}
	}
	return nil
}

// regionFor returns the peer's region under a key if its n bytes at addr can be accessed directly,
// otherwise nil.
func (b *neighbor) regionFor(domain, key uint32, addr uint64, n uint32, need verbs.Access) *shmRegion {
	r := b.files.lookup(key)
	if r == nil {
		return nil
	}
	off := addr - r.addr
	if r.domain != domain || r.access&need != need || off > r.size || uint64(n) > r.size-off {
		return nil
	}
	if b.peers.Key(key).Load() != key {
		return nil
	}
	return r
}
