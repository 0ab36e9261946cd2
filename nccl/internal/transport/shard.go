package transport

import (
	"errors"
	"fmt"
	"log/slog"
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
	rails  *ibverbx.Rails
	// turns counts polls.
	turns atomic.Uint64
	// idle is closed when the last user has left.
	idle chan struct{}

	// mu guards everything below, and the VirtualQPs of the VirtualCQ.
	mu sync.Mutex
	cq *ibverbx.VirtualCQ
	// comms finds a Comm by the number of its VirtualQP.
	comms table.Table[*Comm]
	all   map[*Comm]struct{}
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

// Open returns a Shard and its number.
func (p *Plugin) Open() (*Shard, uint32, error) {
	rails, err := p.base.Fork()
	if err != nil {
		return nil, 0, err
	}
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	if err != nil {
		_ = rails.Close() // the error of NewCQ matters
		return nil, 0, err
	}
	s := &Shard{plugin: p, rails: rails, cq: cq, users: 1, idle: make(chan struct{}), all: map[*Comm]struct{}{}}
	s.number = p.shards.add(s)
	return s, s.number, nil
}

// Shard returns the Shard with a number, nil if it is unknown.
func (p *Plugin) Shard(n uint32) *Shard { return p.shards.get(n) }

// Close gives up the Shard. It keeps serving its connections and is freed with the last one. Close waits briefly for connections that are
// closing.
func (s *Shard) Close() {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return
	}
	if all := s.plugin.attempts.all.Load(); all != nil {
		for _, a := range *all {
			if a != nil && a.shard == s {
				a.abandon()
			}
		}
	}
	s.release()
	select {
	case <-s.idle:
	case <-time.After(finishTime):
	}
}

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
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	s.plugin.shards.remove(s.number)
	if err := s.cq.Close(); err != nil {
		s.plugin.log.Warn("cannot close a completion queue", slog.Any("cause", err))
	}
	if err := s.rails.Close(); err != nil {
		s.plugin.log.Warn("cannot free a protection domain", slog.Any("cause", err))
	}
	close(s.idle)
}

// on implements peer.Config.SharedCQ.
func (s *Shard) on(step func(*ibverbx.VirtualCQ) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		return fmt.Errorf("the communicator: %w", verbs.ErrClosed)
	}
	return step(s.cq)
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
	n, err := s.cq.Poll(s.wcs[:])
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		if c := s.comms.Find(wc.QP.Num()); c != nil {
			c.completed(wc)
		}
	}
	if err != nil {
		s.pollFailed(err)
	}
}

// pollFailed handles an error of a poll. The lock is held.
func (s *Shard) pollFailed(err error) {
	if errors.Is(err, verbs.ErrNotFound) {
		return // some NICs still report completions of a VirtualQP after its Close
	}
	for c := range s.all {
		c.fail(err)
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
	for n := s.cq.Events(s.events[:]); n > 0; n = s.cq.Events(s.events[:]) {
		s.epoch++
		for i := range s.events[:n] {
			s.noted(&s.events[i])
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
func (s *Shard) noted(e *ibverbx.Event) {
	down := e.Kind == ibverbx.EventRailDown
	c := s.comms.Find(e.QP.Num())
	if c == nil || !down && e.Kind != ibverbx.EventRailUp || c.down[e.Rail] == down {
		return
	}
	c.down[e.Rail] = down
	s.plugin.railChanged(e.Rail, down, e.Err)
}
