package node

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// serviceTable holds the attached services. It is immutable.
type serviceTable struct {
	byID    [service.IDs]*service.Service
	byClass [16]*service.Service
}

// serviceNode is a Node as a service.Node.
type serviceNode struct{ *Node }

// Attach implements service.Node.
func (n serviceNode) Attach(s service.Service) error {
	if !n.isOpen() {
		return fmt.Errorf("attach service %d: %w", s.ID, ErrClosed)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	t := *n.services.Load()
	switch {
	case n.ctx.Err() != nil:
		return fmt.Errorf("attach service %d: %w", s.ID, ErrClosed)
	case s.ID == service.NodeID || s.ID >= service.IDs || s.Handler == nil || s.Version == 0:
		return fmt.Errorf("attach service %d: %w", s.ID, verbs.Invalidf("no such service, no Version or no Handler"))
	case t.byID[s.ID] != nil:
		return fmt.Errorf("attach service %d: %w: the Node has it already", s.ID, verbs.ErrBusy)
	}
	t.byID[s.ID] = &s
	for class := range t.byClass {
		if s.Classes&(1<<class) == 0 {
			continue
		}
		if t.byClass[class] != nil {
			return fmt.Errorf("attach service %d: %w: class %d is that of another service", s.ID, verbs.ErrBusy, class)
		}
		t.byClass[class] = &s
	}
	n.services.Store(&t)
	for _, p := range n.peers {
		if p.current != nil {
			p.current.wake()
		}
	}
	return nil
}

// Detach implements service.Node.
func (n serviceNode) Detach(id service.ID) {
	n.mu.Lock()
	t := *n.services.Load()
	if id >= service.IDs || t.byID[id] == nil {
		n.mu.Unlock()
		return
	}
	gone := t.byID[id]
	t.byID[id] = nil
	for class, s := range t.byClass {
		if s != nil && s.ID == id {
			t.byClass[class] = nil
		}
	}
	n.services.Store(&t)
	callers := slices.Collect(maps.Keys(n.callers))
	n.mu.Unlock()
	shards := map[*shard]struct{}{}
	for _, p := range callers { // wait for running calls
		p.endIfIntroduced(id) // already now: a call may be sending to a peer that does not read
		p.calling.Lock()
		p.up[id].CompareAndSwap(gone, nil) // another one may be attached by now
		p.endIfIntroduced(id)
		p.calling.Unlock()
		shards[p.shard] = struct{}{}
	}
	for s := range shards {
		s.do(func() {})
	}
}

// Attached implements service.Node.
func (n serviceNode) Attached(id service.ID) service.Handler {
	if id >= service.IDs || !n.isOpen() {
		return nil
	}
	if s := n.services.Load().byID[id]; s != nil {
		return s.Handler
	}
	return nil
}

// callGone calls Gone on all services. calling is held.
func (p *Peer) callGone(err error) {
	for _, sv := range p.node.services.Load().byID {
		if sv != nil {
			sv.Handler.Gone(servicePeer{p}, err)
		}
	}
}

// adjustCallers adds to the number of possible Handler calls for a Peer: open sessions, and calls of Gone. After the last one for a removed
// Peer, all its operations have ended, and adjustCallers keeps its counters. The lock is held.
func (n *Node) adjustCallers(p *Peer, more int) {
	if n.callers[p] += more; n.callers[p] > 0 {
		return
	}
	delete(n.callers, p)
	if p.state == StateClosed {
		n.retire(p)
	}
}

// Alloc implements service.Node.
func (n serviceNode) Alloc(size int, cfg *verbs.MemoryConfig) (*verbs.Memory, error) {
	if cfg == nil {
		cfg = &verbs.MemoryConfig{}
	}
	c := *cfg
	c.Shared = c.Shared || n.sharesMemory && !c.HugePages
	return verbs.AllocMemory(size, &c)
}

// Register implements service.Node.
func (n serviceNode) Register(mem *verbs.Memory) service.Memory {
	m := &memory{node: n.Node, mem: mem, regions: map[registration]*ibverbx.Region{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.closed = n.memory == nil; !m.closed {
		n.memory[m] = struct{}{}
	}
	return m
}

// forget removes closed memory.
func (n *Node) forget(m *memory) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.memory, m)
}

// Log implements service.Node.
func (n serviceNode) Log() *slog.Logger { return n.log }

// Done implements service.Node.
func (n serviceNode) Done() <-chan struct{} {
	if !n.isOpen() {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return n.ctx.Done()
}
