package core

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"ibverbx/internal/ring"
	"ibverbx/reliable/wire"
)

// explorer visits every reachable state of a small rig: in each one, any next packet arrives, a timer fires,
// or a fault happens, within the bounds.
//
// Paths are queues whose first packet may arrive at any time, or never if it is lost. Late originals and any
// order across paths are therefore covered without counting as faults. Control packets arrive in any order.
type explorer struct {
	bounds  bounds
	seen    map[uint64]struct{}
	good    map[uint64]struct{} // states that a fair schedule finishes from
	seed    maphash.Seed
	states  int
	ends    int
	limit   int // maximum number of states; 0 is unlimited
	trail   []string
	found   string
	finish  func(*model) bool
	fairRun int // step limit of a fair schedule
}

// bounds limits the remaining faults and ticks.
type bounds struct {
	faults, ticks int
}

// model is a state: two ends and the packets between them.
type model struct {
	rig
	paths [2][]([]*packet) // by sender, path
	ctrl  [2][]*packet     // by sender
	dead  uint             // paths that no longer carry packets
	left  bounds
}

func newModel(a, b Config, inbox int) (*model, error) {
	r, err := newRig(a, b, inbox)
	if err != nil {
		return nil, err
	}
	m := &model{rig: *r}
	for i := range m.paths {
		m.paths[i] = make([][]*packet, a.Paths)
	}
	m.send = m.take
	return m, nil
}

func (m *model) take(from int, p *packet) {
	p.rec.RxDelay = 0 // no round trip is measured
	if p.route < RoutePath {
		m.ctrl[from] = append(m.ctrl[from], p)
		return
	}
	if i := int(p.route - RoutePath); m.dead&(1<<i) == 0 {
		m.paths[from][i] = append(m.paths[from][i], p)
	}
}

// clone returns a copy that does not share mutable state.
func (m *model) clone() *model {
	n := new(model)
	*n = *m
	n.send = n.take // of the copy
	for i := range n.ends {
		n.ends[i] = m.ends[i].clone()
		n.ctrl[i] = slices.Clone(m.ctrl[i])
		n.paths[i] = make([][]*packet, len(m.paths[i]))
		for j := range n.paths[i] {
			n.paths[i][j] = slices.Clone(m.paths[i][j])
		}
	}
	return n
}

func (e *end) clone() end {
	n := *e
	c := *e.conn
	c.out = nil
	c.paths = slices.Clone(c.paths)
	for i := range c.paths {
		c.paths[i].c = &c
		c.paths[i].ledger = slices.Clone(c.paths[i].ledger)
	}
	c.up = append(make([]uint16, 0, len(c.paths)), c.up...)
	c.credits.c, c.congestion.c = &c, &c
	c.cloneSchedule()
	n.conn = &c
	n.qps = slices.Clone(e.qps)
	n.inbox = slices.Clone(e.inbox)
	n.settled = slices.Clone(e.settled)
	n.flows = make([]*modelFlow, len(e.flows))
	for i, f := range e.flows {
		n.flows[i] = f.clone()
	}
	n.modelFlow = n.flows[0]
	n.events = nil
	n.copies = slices.Clone(e.copies)
	return n
}

func (f *modelFlow) clone() *modelFlow {
	n := *f
	n.out = slices.Clone(f.out)
	n.done = slices.Clone(f.done)
	n.got = slices.Clone(f.got)
	n.receives = make([][]byte, len(f.receives))
	for i := range n.receives {
		n.receives[i] = slices.Clone(f.receives[i])
	}
	n.answers = slices.Clone(f.answers)
	for i := range n.out {
		n.out[i].got = slices.Clone(f.out[i].got)
	}
	return &n
}

// cloneSchedule gives a copied connection its own flows. Between steps no flow is touched.
func (c *Conn) cloneSchedule() {
	n := len(c.flows)
	c.flows = slices.Clone(c.flows)
	for i, f := range c.flows {
		g := *f
		g.c = c
		g.send.msgs = slices.Clone(g.send.msgs)
		g.send.chunks = slices.Clone(g.send.chunks)
		g.send.acked = slices.Clone(g.send.acked)
		g.recv.early = slices.Clone(g.recv.early)
		g.recv.slots = slices.Clone(g.recv.slots)
		g.fetches.msgs = slices.Clone(g.fetches.msgs)
		g.answers.early = slices.Clone(g.answers.early)
		g.answers.msgs = slices.Clone(g.answers.msgs)
		c.flows[i] = &g
	}
	ready := ring.New[uint16](n)
	for i := c.ready.Head(); i != c.ready.Tail(); i++ {
		ready.Push(*c.ready.At(i))
	}
	c.ready = ready
	c.lossy = append(make([]uint16, 0, n), c.lossy...)
	c.owing = append(make([]uint16, 0, n), c.owing...)
	c.touched = make([]uint16, 0, n)
	c.heap = slices.Clone(c.heap)
}

// move is one possible next event.
type move struct {
	kind  moveKind
	from  int
	index int
	place int // in the queue of a path that reorders
}

type moveKind uint8

const (
	moveArrive moveKind = iota // the first packet of a path arrives
	moveCtrl                   // a control packet arrives
	moveTick
	moveLose // the first packet of a path is lost
	moveLoseCtrl
	moveRepeatCtrl
	moveKill // a path dies
	moveCopy // the oldest copy completes
	moveDrop // all copies are refused
)

var moveNames = [...]string{"arrive", "control", "tick", "lose", "lose control", "repeat control", "kill path", "copy", "drop copies"}

func (v move) String() string {
	return fmt.Sprintf("%s %d/%d/%d", moveNames[v.kind], v.from, v.index, v.place)
}

// moves returns the possible next events.
func (m *model) moves() (all []move) {
	for from := range m.paths {
		for i := range m.paths[from] {
			if len(m.paths[from][i]) > 0 {
				all = append(all, move{moveArrive, from, i, 0})
				if m.left.faults > 0 {
					all = append(all, move{moveLose, from, i, 0})
				}
				for k := 1; k < len(m.paths[from][i]) && m.ends[from].conn.cfg.Carrier.Unordered; k++ {
					all = append(all, move{moveArrive, from, i, k})
				}
			}
		}
		for i := range m.ctrl[from] {
			all = append(all, move{moveCtrl, from, i, 0})
			if m.left.faults > 0 {
				all = append(all, move{moveLoseCtrl, from, i, 0}, move{moveRepeatCtrl, from, i, 0})
			}
		}
		if len(m.ends[from].copies) > 0 {
			all = append(all, move{moveCopy, from, 0, 0})
			if m.left.faults > 0 {
				all = append(all, move{moveDrop, from, 0, 0})
			}
		}
		if m.left.ticks > 0 && m.ends[from].conn.Deadline() != Never {
			all = append(all, move{moveTick, from, 0, 0})
		}
	}
	if m.left.faults > 0 && m.dead == 0 { // one path survives: GiveUp is unreachable
		for i := range m.paths[0] {
			all = append(all, move{moveKill, 0, i, 0})
		}
	}
	return all
}

// play executes a move.
func (m *model) play(v move) {
	switch v.kind {
	case moveArrive:
		q := m.paths[v.from][v.index]
		p := q[v.place]
		m.paths[v.from][v.index] = slices.Delete(q, v.place, v.place+1)
		m.hand(1-v.from, p)
		m.forget()
	case moveLose:
		m.left.faults--
		m.paths[v.from][v.index] = m.paths[v.from][v.index][1:]
	case moveCtrl, moveLoseCtrl, moveRepeatCtrl:
		q := m.ctrl[v.from]
		p := q[v.index]
		if v.kind != moveRepeatCtrl {
			m.ctrl[v.from] = slices.Delete(q, v.index, v.index+1)
		}
		if v.kind != moveCtrl {
			m.left.faults--
		}
		if v.kind != moveLoseCtrl {
			m.hand(1-v.from, p)
			m.forget()
		}
	case moveTick:
		m.left.ticks--
		m.tick(v.from)
	case moveCopy:
		m.placed(v.from)
		m.step(v.from, Event{Kind: EvFlush})
	case moveDrop:
		m.left.faults--
		m.dropCopies(v.from)
	case moveKill:
		m.left.faults--
		m.dead |= 1 << v.index
	}
}

// forget drops acknowledgements older than their receiver's state: they can never have an effect.
func (m *model) forget() {
	for from := range m.ctrl {
		flows := m.ends[1-from].conn.flows
		m.ctrl[from] = slices.DeleteFunc(m.ctrl[from], func(p *packet) bool {
			return p.rec.Type == wire.Ack && int32(p.rec.Cum-uint32(flows[p.rec.Flow].send.una)) < 0
		})
	}
}

func (m *model) hand(to int, p *packet) {
	m.arrive(to, p)
	m.step(to, Event{Kind: EvFlush})
}

func (m *model) tick(i int) {
	m.now = max(m.now, m.ends[i].conn.Deadline())
	m.step(i, Event{Kind: EvTick})
}

// run explores from m on. found names a guarantee that does not hold.
func (x *explorer) run(m *model) {
	x.seen, x.good, x.seed = map[uint64]struct{}{}, map[uint64]struct{}{}, maphash.MakeSeed()
	m.left = x.bounds
	x.visit(m)
}

func (x *explorer) visit(m *model) {
	h := m.fingerprint(x.seed, true)
	if _, ok := x.seen[h]; ok {
		return
	}
	x.seen[h] = struct{}{}
	if x.states++; x.limit > 0 && x.states > x.limit {
		return
	}
	x.hangs(m)
	if x.finish(m) {
		// Only late data remains; any other packet could merely prevent its arrival.
		x.ends++
		m = m.clone()
		m.left = bounds{}
		m.ctrl = [2][]*packet{}
	}
	for _, v := range m.moves() {
		if x.found != "" {
			return
		}
		next := m.clone()
		x.trail = append(x.trail, v.String())
		if broken := attempt(func() { next.play(v) }); broken != "" {
			x.report(broken)
			return
		}
		x.visit(next)
		x.trail = x.trail[:len(x.trail)-1]
	}
}

func (x *explorer) report(what string) {
	if x.found == "" {
		x.found = what + "\n  " + strings.Join(x.trail, "\n  ")
	}
}

// hangs checks that everything finishes once the network is fair: every packet arrives in order, and timers
// fire when nothing is in flight.
func (x *explorer) hangs(m *model) {
	if x.found != "" {
		return
	}
	var path []uint64
	n := m.clone()
	for range x.fairRun {
		h := n.fingerprint(x.seed, false)
		if _, ok := x.good[h]; ok || x.finish(n) {
			for _, h := range path {
				x.good[h] = struct{}{}
			}
			x.good[h] = struct{}{}
			return
		}
		path = append(path, h)
		if broken := attempt(func() { n.fair() }); broken != "" {
			x.report("on a fair schedule: " + broken)
			return
		}
	}
	x.report(fmt.Sprintf("hang: a fair network does not finish in %d steps: %v and %v have ended",
		x.fairRun, n.ends[0].done, n.ends[1].done))
}

// fair executes the next move of a network without faults.
func (m *model) fair() {
	for from := range m.paths {
		if len(m.ends[from].copies) > 0 {
			m.play(move{moveCopy, from, 0, 0})
			return
		}
		if len(m.ctrl[from]) > 0 {
			m.play(move{moveCtrl, from, 0, 0})
			return
		}
		for i := range m.paths[from] {
			if len(m.paths[from][i]) > 0 {
				m.play(move{moveArrive, from, i, 0})
				return
			}
		}
	}
	at, i := m.deadline()
	if at == Never {
		violatef("hang: nothing is under way and no timer is set: %v and %v have ended", m.ends[0].done, m.ends[1].done)
	}
	m.tick(i)
}

// attempt runs f and returns the violated guarantee, if any.
func attempt(f func()) (broken string) {
	defer func() {
		if v := recover(); v != nil {
			if s, ok := v.(violation); ok {
				broken = string(s)
				return
			}
			panic(v)
		}
	}()
	f()
	return ""
}
