package transport

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"ibverbx/verbs"
)

// Shard holds the connections of a communicator. All methods are safe for concurrent use.
type Shard struct {
	plugin *Plugin
	number uint32
	// parts serve the connections: one part per set of NICs, then one for shared memory. With one set of NICs, its part serves both.
	parts []*part
	// idle is closed when the last user has left.
	idle chan struct{}

	// mu guards everything below, and part.load. It may be locked while the lock of a part is held.
	mu sync.Mutex
	// users counts connections, attempts and Listeners, and the Shard's owner.
	users  int
	closed bool
}

// Open returns a Shard and its number.
func (p *Plugin) Open() (*Shard, uint32, error) {
	s := &Shard{plugin: p, users: 1, idle: make(chan struct{})}
	for i, n := range p.nics {
		s.parts = append(s.parts, newPart(s, n, p.workers[i]))
	}
	if len(s.parts) > 1 {
		s.parts = append(s.parts, newPart(s, nil, nil))
	}
	s.number = p.shards.add(s)
	return s, s.number, nil
}

// join returns the group of a localPeer, or of the NICs if that is nil, with another user. Connections over the NICs join the part with the
// fewest.
func (s *Shard) join(n *localPeer) (*group, error) {
	s.mu.Lock()
	p := s.parts[len(s.parts)-1]
	if n == nil {
		p = slices.MinFunc(s.parts[:len(s.plugin.nics)], func(a, b *part) int { return a.load - b.load })
	}
	p.load++
	if p.load == 1 && p.worker != nil {
		p.worker.add(p)
	}
	s.mu.Unlock()
	g, err := p.join(n)
	if err != nil {
		s.unload(p)
	}
	return g, err
}

// leave removes a user of a group.
func (s *Shard) leave(g *group) {
	g.part.leave(g)
	s.unload(g.part)
}

// unload removes a connection from the load of a part.
func (s *Shard) unload(p *part) {
	s.mu.Lock()
	p.load--
	if p.load == 0 && p.worker != nil {
		p.worker.remove(p)
	}
	s.mu.Unlock()
}

// Shard returns the Shard with a number, nil if it is unknown.
func (p *Plugin) Shard(n uint32) *Shard { return p.shards.get(n) }

// Close gives up the Shard. It keeps serving its users, which may add others, and is freed with the last one. Close waits briefly for
// connections that are closing.
func (s *Shard) Close() {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return
	}
	s.release()
	select {
	case <-s.idle:
	case <-time.After(finishTime):
	}
}

// finalized reports whether Close was called.
func (s *Shard) finalized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// ErrGone is returned, unwrapped, by methods of a Shard that is freed.
var ErrGone = fmt.Errorf("the communicator: %w", verbs.ErrClosed)

// acquire adds a user. It returns false if the Shard is freed.
func (s *Shard) acquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return false
	}
	s.users++
	s.plugin.stir()
	return true
}

// release removes a user. The last one frees the Shard: connections and attempts have left their groups.
func (s *Shard) release() {
	s.mu.Lock()
	s.users--
	last := s.users == 0
	s.mu.Unlock()
	if last {
		s.plugin.shards.remove(s.number)
		close(s.idle)
	}
}

// Poll makes progress on all connections of the Shard that no running worker serves, unless another thread does.
func (s *Shard) Poll() {
	for _, p := range s.parts {
		p.poll()
	}
}

// tick serves the Shard if no thread has polled it since the last tick. It reports whether the Shard has users besides its owner.
func (s *Shard) tick() bool {
	for _, p := range s.parts {
		p.tick()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users > 0 && (s.users > 1 || s.closed)
}
