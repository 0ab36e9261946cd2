package node

import (
	"errors"
	"fmt"
	"sync"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

const (
	maxRealms    = 64
	maxRealmName = 64
	maxShards    = 64 // of a realm
)

// Queue sizes of a session's VirtualQP. Each side proposes its own, and the smaller ones are used.
const (
	sendDepth   = 256
	recvDepth   = receives
	laneDepth   = 32
	notifyDepth = 16
	// minDepth is the smallest sendDepth and laneDepth that this side accepts.
	minDepth = 16
)

// realm is a group of peers with access to the same memory: protection domains, and shards on them.
type realm struct {
	name  string
	rails *ibverbx.Rails
	lanes int
	// depth is the completion queue depth; 0 means the default.
	depth int

	// addingShard serializes addShard.
	addingShard sync.Mutex
	// mu guards the list of shards and their peer counts. It is not held while a shard is created.
	mu     sync.Mutex
	shards []*shard
}

// newRealm returns a realm with the given number of shards. On error it closes rails.
func newRealm(name string, rails *ibverbx.Rails, shards, lanes, depth int) (*realm, error) {
	r := &realm{name: name, rails: rails, lanes: lanes, depth: depth}
	for range shards {
		if _, err := r.addShard(0); err != nil {
			return nil, errors.Join(fmt.Errorf("realm %q: %w", name, err), r.close())
		}
	}
	return r, nil
}

// addShard adds a shard with a number of peers.
func (r *realm) addShard(peers int) (*shard, error) {
	if r.count() == maxShards {
		return nil, fmt.Errorf("%w: all %d shards are full", verbs.ErrLimit, maxShards)
	}
	s, err := newShard(r.rails, r.depth)
	if err != nil {
		return nil, err
	}
	s.peers = peers
	s.capacity, err = r.capacity(s.cq)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shards = append(r.shards, s)
	return s, err
}

// capacity returns the number of VirtualQPs that fit a VirtualCQ, limited by the rail with the most lanes.
func (r *realm) capacity(cq *ibverbx.VirtualCQ) (int, error) {
	each := ((r.lanes-1)/r.rails.Len()+1)*(laneDepth+notifyDepth) + laneDepth + recvDepth
	first, err := cq.CQ(0)
	if err != nil {
		return 0, err
	}
	room := first.Depth() / each
	if room == 0 {
		return 0, verbs.Invalidf("completion queues of %d do not hold the %d lanes of one session", first.Depth(), r.lanes)
	}
	return room, nil
}

// reserve reserves a slot on the shard with the fewest Peers. If all are full, it adds a shard.
func (r *realm) reserve() (*shard, error) {
	if s := r.reserveFree(); s != nil {
		return s, nil
	}
	r.addingShard.Lock()
	defer r.addingShard.Unlock()
	if s := r.reserveFree(); s != nil {
		return s, nil // another goroutine added one
	}
	return r.addShard(1)
}

// reserveFree is reserve without adding a shard: it returns nil if all are full.
func (r *realm) reserveFree() *shard {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *shard
	for _, s := range r.shards {
		if s.peers < s.capacity && (best == nil || s.peers < best.peers) {
			best = s
		}
	}
	if best != nil {
		best.peers++
	}
	return best
}

// release undoes reserve.
func (r *realm) release(s *shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.peers--
}

// count returns the number of shards.
func (r *realm) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.shards)
}

func (r *realm) close() error {
	var errs []error
	for _, s := range r.shards {
		errs = append(errs, s.close())
	}
	return errors.Join(append(errs, r.rails.Close())...)
}

// memory is a service.Memory.
type memory struct {
	node *Node
	mem  *verbs.Memory

	mu      sync.Mutex
	regions map[registration]*ibverbx.Region
	closed  bool
}

// registration is the key of a Region.
type registration struct {
	realm  *realm
	access verbs.Access
}

// Region implements service.Memory.
func (m *memory) Region(p service.Peer, access verbs.Access) (*ibverbx.Region, error) {
	if access == 0 {
		access = verbs.AccessLocalWrite
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.region(registration{p.(servicePeer).realm, access})
}

// Remote implements service.Memory.
func (m *memory) Remote(p service.Peer, access verbs.Access) (ibverbx.RemoteRegion, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, err := m.region(registration{p.(servicePeer).realm, access})
	if err != nil {
		return ibverbx.RemoteRegion{}, err
	}
	return *g.Remote(), nil
}

// region returns a registration, and creates it if necessary. mu must be held.
func (m *memory) region(key registration) (*ibverbx.Region, error) {
	if m.closed {
		return nil, fmt.Errorf("register memory: %w", ErrClosed)
	}
	if g := m.regions[key]; g != nil {
		return g, nil
	}
	g, err := key.realm.rails.Register(m.mem, key.access)
	if err == nil {
		m.regions[key] = g
	}
	return g, err
}

// Close implements service.Memory. The Node forgets the memory last, so that a concurrent Node.Close waits for the registrations.
func (m *memory) Close() error {
	err := m.close()
	if err == nil {
		m.node.forget(m)
	}
	return err
}

// close closes the registrations. One that a NIC cannot close remains for the next call.
func (m *memory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	var errs []error
	for key, g := range m.regions {
		if err := g.Close(); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(m.regions, key)
	}
	return errors.Join(errs...)
}
