package softnic

import (
	"sync/atomic"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// A side lets the peer touch its memory by two words of its segment: the grant of the QP and the key of the
// region. A side that touches the peer's memory makes neighbor.in odd, then looks at these words. A side that takes
// one back clears it, then waits until the peer's word changes if it is odd. So no access under the
// grant runs when that wait ends.

// grant publishes what all neighbors may do through q, in its present state.
func (c *core) grant(q *qp) {
	for _, b := range c.neighbors {
		b.grant(q)
	}
}

// grant publishes what the peer may do through q.
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
			q.giveCredit()
		}
	}
}

// admit grants again what all QPs may do: the port or the observer has changed.
func (n *NIC) admit() {
	for _, b := range n.core.neighbors {
		for q := range n.qps.all() {
			b.grant(q)
		}
	}
}

// revoke revokes the grants of q and serves the ring: the requests in it have completed at the peer. The caller is about to
// change something that they depend on, and then calls grant.
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
		b.ring.catchUp()
	}
}

// revoke revokes the grants of all QPs.
func (n *NIC) revoke() {
	for q := range n.qps.all() {
		q.revoke()
	}
}

// shmRemote are the accesses that can be granted.
const shmRemote = verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// shmFiles are the regions that the two sides have lent each other. The core's lock guards it.
type shmFiles struct {
	// regions are the peer's, by the low bits of their keys. Its length is a power of two, or 0.
	regions []shmRegion
	// used is how many of them are mapped or on a device, at most maxShmFiles.
	used int
	// recalls are keys of this side that the peer was not told to unmap, because the socket was full.
	recalls []uint32
	// stuck is memory of the peer that a device of this side could not close.
	stuck []*verbs.Memory
}

// shmRegion is a region of the peer.
type shmRegion struct {
	key, domain uint32
	access      verbs.Access
	addr, size  uint64
	// bytes is where it is mapped. Nil means that only the kernel, or a device, can copy to and from it.
	bytes []byte
	// far is the memory if it is that of a device, otherwise nil.
	far *farMemory
	// asked counts the requests that needed the region before the peer had lent it.
	asked uint32
	// refused says that a device has failed to copy to or from it. Packets do what needs a device.
	refused bool
}

// maxShmFiles is how many regions of the peer are known at a time. Packets serve the others.
const maxShmFiles = 1 << 12

// offer lends a region to a neighbor that gets all of them.
func (b *neighbor) offer(m *mr) {
	if !b.introduced {
		b.lend(m)
	}
}

// lend publishes a region of memory.
func (b *neighbor) lend(m *mr) {
	access := m.access & shmRemote
	if m.mem == nil || access == 0 {
		return
	}
	kind, fd, handle := shm.Name, -1, []byte(nil)
	if m.device != nil {
		var err error
		if handle, err = m.device.ExportMemory(m.base, m.length); err != nil || len(handle) == 0 || len(handle) > shm.MaxHandle {
			return // packets serve what has no handle
		}
		kind = shm.Device
	} else if f, ok := m.mem.File(); ok && shm.Share(f, access&verbs.AccessRemoteWrite != 0) {
		kind, fd = shm.Lend, f
	}
	if b.recallAll() && b.conn.Send(shm.Message{
		Kind: kind, Access: uint16(access), Key: m.key, Domain: m.pd.id, Addr: m.addr, Size: m.length, Handle: string(handle),
	}, fd) {
		b.lent(m).Store(m.key)
	}
}

// lent is the word for a region: its key if the peer has it. Another region may have the same word, but not the same key.
func (b *neighbor) lent(m *mr) *atomic.Uint32 {
	return b.own.Key(m.key)
}

// recall takes a region back. When it returns the peer does not touch the memory through the region.
func (b *neighbor) recall(m *mr) {
	word := b.lent(m)
	if word.Load() != m.key {
		return
	}
	word.Store(0)
	b.grace()
	if b.ring != nil {
		b.ring.catchUp()
	}
	b.files.recalls = append(b.files.recalls, m.key)
	b.recallAll()
}

// recallAll asks the peer to unmap what it was not asked to yet, and reports whether it could. Nothing is lent before
// that, so the queue is no longer than the number of regions.
func (b *neighbor) recallAll() bool {
	s := &b.files
	for len(s.recalls) > 0 && b.conn.Send(shm.Message{Kind: shm.Recall, Key: s.recalls[0]}, -1) {
		s.recalls = s.recalls[1:]
	}
	return len(s.recalls) == 0
}

// hear takes a message of the peer. It reports false if the peer does not keep to the protocol.
func (b *neighbor) hear(m shm.Message, fd int) bool {
	access := verbs.Access(m.Access)
	if m.Kind == shm.Want {
		return b.introduced && b.asked(m.Key)
	}
	if m.Kind == shm.Look {
		return true // the caller looks
	}
	if m.Kind == shm.Hello || m.Key == 0 || access&^shmRemote != 0 {
		shm.Close(fd)
		return false
	}
	r := shmRegion{key: m.Key, domain: m.Domain, access: access, addr: m.Addr, size: m.Size}
	switch m.Kind {
	case shm.Lend:
		var err error
		if r.bytes, err = shm.Map(fd, m.Size, access&verbs.AccessRemoteWrite != 0); err != nil {
			return true // packets carry what cannot be mapped
		}
	case shm.Device:
		r.far = &farMemory{handle: []byte(m.Handle)}
	case shm.Recall:
		r = shmRegion{}
	case shm.Name, shm.Hello, shm.Want, shm.Look: // there is no file
	}
	c := b.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.files.set(m.Key, r) {
		shm.Unmap(r.bytes)
	}
	return true
}

// set makes r the region of a key and unmaps the one before. It reports false if there is no room.
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
	s.closeFar(old.far)
	*old = r
	return true
}

// under returns the region of a key, nil if there is none.
func (s *shmFiles) under(key uint32) *shmRegion {
	if len(s.regions) > 0 {
		if r := &s.regions[int(key)&(len(s.regions)-1)]; r.key == key {
			return r
		}
	}
	return nil
}

// reach returns the peer's region under a key if n bytes at addr of it can be touched directly, otherwise nil.
func (b *neighbor) reach(domain, key uint32, addr uint64, n uint32, need verbs.Access) *shmRegion {
	r := b.files.under(key)
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
