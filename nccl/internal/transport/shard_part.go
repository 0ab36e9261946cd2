package transport

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx"
	"ibverbx/internal/u32map"
	"ibverbx/verbs"
)

// part serves some connections of a Shard, over its own NICs and with its own lock, so that parts run concurrently.
type part struct {
	shard *Shard
	nics  *nics // nil: only shared memory
	// worker serves the part while there is traffic. If it is nil, NCCL's threads do.
	worker *worker
	// load counts connections and attempts. The lock of the Shard guards it.
	load int
	// turns counts polls.
	turns atomic.Uint64
	inbox inbox

	// mu guards everything below, and the VirtualQPs of the groups.
	mu     sync.Mutex
	groups []*group
	all    map[*Comm]struct{}
	// epoch counts changes of rails. Descriptions of regions from an earlier epoch may lack a key.
	epoch uint64
	// seen is the value of turns at the last tick, and ticks counts ticks.
	seen, ticks uint64
	wcs         [64]ibverbx.WC
	events      [16]ibverbx.Event
}

// group holds the connections of a part that use the same NICs: the part's, or shared memory with one peer.
type group struct {
	part      *part
	localPeer *localPeer // nil: the part's NICs
	rails     *ibverbx.Rails
	// The lock of the part guards everything below.
	cq *ibverbx.VirtualCQ
	// comms finds a Comm by the number of its VirtualQP.
	comms u32map.Map[*Comm]
	// users counts connections and attempts.
	users int
}

func newPart(s *Shard, n *nics, w *worker) *part {
	return &part{shard: s, nics: n, worker: w, all: map[*Comm]struct{}{}}
}

// join returns the group of a localPeer, or of the NICs if that is nil, with another user.
func (p *part) join(n *localPeer) (*group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		if g.localPeer == n {
			g.users++
			return g, nil
		}
	}
	var base *ibverbx.Rails
	if n != nil {
		base = n.session.Rails
	} else {
		base = p.nics.base
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
		p.shard.plugin.mu.Lock()
		n.users++
		p.shard.plugin.mu.Unlock()
	}
	g := &group{part: p, localPeer: n, rails: rails, cq: cq, users: 1}
	p.groups = append(p.groups, g)
	return g, nil
}

// leave removes a user of a group. The last one closes it.
func (p *part) leave(g *group) {
	p.mu.Lock()
	g.users--
	last := g.users == 0
	if last {
		p.groups = slices.DeleteFunc(p.groups, func(other *group) bool { return other == g })
		if err := errors.Join(g.cq.Close(), g.rails.Close()); err != nil {
			p.shard.plugin.log.Warn("cannot close a completion queue", slog.Any("cause", err))
		}
	}
	p.mu.Unlock()
	if last && g.localPeer != nil {
		p.shard.plugin.leaveLocalPeer(g.localPeer)
	}
}

// on implements peer.Config.SharedCQ. The caller is a user of the group.
func (g *group) on(step func(*ibverbx.VirtualCQ) error) error {
	g.part.mu.Lock()
	defer g.part.mu.Unlock()
	return step(g.cq)
}

// poll makes progress unless another thread does, or the worker runs. The worker takes over if there is traffic.
func (p *part) poll() {
	if w := p.worker; w != nil && w.running() || !p.mu.TryLock() {
		return
	}
	moved := p.turn()
	p.mu.Unlock()
	if moved && p.worker != nil {
		p.worker.rouse()
	}
}

// turn posts the requests in the inbox and polls once. It reports whether it has posted or completed any. The lock is held.
func (p *part) turn() (moved bool) {
	p.turns.Add(1)
	if p.inbox.some.Load() {
		moved = p.empty()
	}
	for _, g := range p.groups {
		if g.comms.Len() == 0 {
			continue // polling sockets costs system calls
		}
		n, err := g.cq.Poll(p.wcs[:])
		for i := range p.wcs[:n] {
			wc := &p.wcs[i]
			if c := g.comms.Find(wc.QP.Num()); c != nil {
				c.completed(wc)
			}
		}
		moved = moved || n > 0
		if err != nil {
			g.pollFailed(err)
		}
	}
	return moved
}

// pollFailed handles an error of a poll. The lock is held.
func (g *group) pollFailed(err error) {
	if errors.Is(err, verbs.ErrNotFound) {
		return // some NICs still report completions of a VirtualQP after its Close
	}
	for c := range g.part.all {
		if c.group == g {
			c.fail(err)
		}
	}
}

// tick polls the part if no thread has polled it since the last tick, and handles events.
func (p *part) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if turns := p.turns.Load(); turns == p.seen {
		p.turn()
	}
	p.seen = p.turns.Load()
	for _, g := range p.groups {
		for n := g.cq.Events(p.events[:]); n > 0; n = g.cq.Events(p.events[:]) {
			p.epoch++
			for i := range p.events[:n] {
				g.noted(&p.events[i])
			}
		}
	}
	// A VirtualQP without outstanding requests fails silently. Outstanding ones complete: some may have succeeded before.
	if p.ticks++; p.ticks%16 == 0 {
		for c := range p.all {
			if err := c.session.QP.Err(); err != nil && c.used == c.done.Load() {
				c.fail(err)
			}
		}
	}
}

// noted passes an event of a rail to the Plugin. The lock is held.
func (g *group) noted(e *ibverbx.Event) {
	down := e.Kind == ibverbx.EventRailDown
	c := g.comms.Find(e.QP.Num())
	if c == nil || g.localPeer != nil || !down && e.Kind != ibverbx.EventRailUp || c.down[e.Rail] == down {
		return
	}
	c.down[e.Rail] = down
	g.part.shard.plugin.railChanged(e.Rail, down, e.Err)
}

// waits reports whether requests are outstanding.
func (p *part) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.all {
		if c.result.Load() == 0 && !c.closed && c.used != c.done.Load() {
			return true
		}
	}
	return false
}
