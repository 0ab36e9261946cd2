package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/internal/table"
	"ibverbx/verbs"
)

// Shard holds the connections of a communicator. All methods are safe for concurrent use.
type Shard struct {
	plugin *Plugin
	number uint32
	// turns counts polls.
	turns atomic.Uint64
	// idle is closed when the last user has left.
	idle chan struct{}

	// mu guards everything below, and the VirtualQPs of the groups.
	mu sync.Mutex
	// groups begins with the one of the NICs.
	groups []*group
	all    map[*Comm]struct{}
	// users counts connections, attempts and Listeners, and the Shard's owner.
	users  int
	closed bool
	// epoch counts changes of rails. Descriptions of regions from an earlier epoch may lack a key.
	epoch uint64
	// seen is the value of turns at the last tick, and ticks counts ticks.
	seen, ticks uint64
	wcs         [64]ibverbx.WC
	events      [16]ibverbx.Event
}

// group holds the connections of a Shard that use the same NICs: all NICs of the process, or shared memory with one peer.
type group struct {
	shard *Shard
	near  *near // nil: the process's NICs
	rails *ibverbx.Rails
	// The lock of the Shard guards everything below.
	cq *ibverbx.VirtualCQ
	// comms finds a Comm by the number of its VirtualQP.
	comms table.Table[*Comm]
	// users counts connections and attempts.
	users int
}

// Open returns a Shard and its number.
func (p *Plugin) Open() (*Shard, uint32, error) {
	s := &Shard{plugin: p, users: 1, idle: make(chan struct{}), all: map[*Comm]struct{}{}}
	if _, err := s.join(nil); err != nil {
		return nil, 0, err
	}
	s.number = p.shards.add(s)
	return s, s.number, nil
}

// join returns the group of a near, or of the NICs if that is nil, with another user.
func (s *Shard) join(n *near) (*group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if g.near == n {
			g.users++
			return g, nil
		}
	}
	base := s.plugin.base
	if n != nil {
		base = n.session.Rails
	}
	rails, err := base.Fork()
	if err != nil {
		return nil, err
	}
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	if err != nil {
		return nil, errors.Join(err, rails.Close())
	}
	if n != nil {
		s.plugin.mu.Lock()
		n.users++
		s.plugin.mu.Unlock()
	}
	g := &group{shard: s, near: n, rails: rails, cq: cq, users: 1}
	s.groups = append(s.groups, g)
	return g, nil
}

// leave removes a user of a group. The last one closes it.
func (s *Shard) leave(g *group) {
	s.mu.Lock()
	g.users--
	last := g.users == 0
	if last {
		s.groups = slices.DeleteFunc(s.groups, func(other *group) bool { return other == g })
		if err := errors.Join(g.cq.Close(), g.rails.Close()); err != nil {
			s.plugin.log.Warn("cannot close a completion queue", slog.Any("cause", err))
		}
	}
	s.mu.Unlock()
	if last && g.near != nil {
		s.plugin.leaveNear(g.near)
	}
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

// release removes a user. The last one frees the Shard.
func (s *Shard) release() {
	s.mu.Lock()
	s.users--
	last := s.users == 0
	s.mu.Unlock()
	if last {
		s.plugin.shards.remove(s.number)
		s.leave(s.groups[0]) // connections have left theirs
		close(s.idle)
	}
}

// on implements peer.Config.SharedCQ.
func (g *group) on(step func(*ibverbx.VirtualCQ) error) error {
	s := g.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return ErrGone
	}
	return step(g.cq)
}

// Poll makes progress on all connections of the Shard, unless another thread does.
func (s *Shard) Poll() {
	if s.mu.TryLock() {
		s.turn()
		s.mu.Unlock()
	}
}

// turn polls once. The lock is held.
func (s *Shard) turn() {
	if s.users == 0 {
		return
	}
	s.turns.Add(1)
	for _, g := range s.groups {
		if g.comms.Len() == 0 {
			continue // polling sockets costs system calls
		}
		n, err := g.cq.Poll(s.wcs[:])
		for i := range s.wcs[:n] {
			wc := &s.wcs[i]
			if c := g.comms.Find(wc.QP.Num()); c != nil {
				c.completed(wc)
			}
		}
		if err != nil {
			g.pollFailed(err)
		}
	}
}

// pollFailed handles an error of a poll. The lock is held.
func (g *group) pollFailed(err error) {
	if errors.Is(err, verbs.ErrNotFound) {
		return // some NICs still report completions of a VirtualQP after its Close
	}
	for c := range g.shard.all {
		if c.group == g {
			c.fail(err)
		}
	}
}

// tick polls the Shard if no thread has polled it since the last tick. It reports whether the Shard has users besides its owner.
func (s *Shard) tick() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turns := s.turns.Load(); turns == s.seen {
		s.turn()
	}
	s.seen = s.turns.Load()
	if s.users == 0 {
		return false
	}
	for _, g := range s.groups {
		for n := g.cq.Events(s.events[:]); n > 0; n = g.cq.Events(s.events[:]) {
			s.epoch++
			for i := range s.events[:n] {
				g.noted(&s.events[i])
			}
		}
	}
	// A VirtualQP without outstanding requests fails silently. Outstanding ones complete: some may have succeeded before.
	if s.ticks++; s.ticks%16 == 0 {
		for c := range s.all {
			if err := c.session.QP.Err(); err != nil && c.used == c.done {
				c.fail(err)
			}
		}
	}
	return s.users > 1 || s.closed
}

// noted passes an event of a rail to the Plugin. The lock is held.
func (g *group) noted(e *ibverbx.Event) {
	down := e.Kind == ibverbx.EventRailDown
	c := g.comms.Find(e.QP.Num())
	if c == nil || g.near != nil || !down && e.Kind != ibverbx.EventRailUp || c.down[e.Rail] == down {
		return
	}
	c.down[e.Rail] = down
	g.shard.plugin.railChanged(e.Rail, down, e.Err)
}
