package service

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// PeerHandler is a service's state for one peer. Its methods correspond to Handler. An error closes
// the session.
type PeerHandler interface {
	comparable
	Hello(s Session) (body []byte, ok bool, err error)
	Up(s Session, body []byte) error
	Down(s Session, cause error)
	// Gone may be called before any other method, and more than once. If forgotten is set, it is
	// the last call.
	Gone(cause error, forgotten bool)
	Message(s Session, body []byte) error
	Immediate(s Session, imm, length uint32) error
}

// Peers is the Handler of a service with a PeerHandler for each peer, from the first use until the
// Node forgets the peer.
type Peers[P PeerHandler] struct {
	id   ID
	make func(p Peer) P

	mu  sync.RWMutex
	all map[Peer]P
}

// Init initializes Peers. make returns the PeerHandler of a new peer; its result may be discarded.
func (t *Peers[P]) Init(id ID, make func(p Peer) P) {
	t.id, t.make, t.all = id, make, map[Peer]P{}
}

// Of returns the PeerHandler of a peer, creating it if needed. If the Node has already forgotten
// the peer, Of calls Gone and forgets it too.
func (t *Peers[P]) Of(s Peer) P {
	if p, ok := t.known(s); ok {
		return p
	}
	fresh := t.make(s)
	t.mu.Lock()
	p, ok := t.all[s]
	if !ok {
		p = fresh
		t.all[s] = p
	}
	t.mu.Unlock()
	if cause := s.Forgotten(); !ok && cause != nil { // the Node may have called Gone earlier
		t.Gone(s, cause)
	}
	return p
}

func (t *Peers[P]) known(s Peer) (P, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p, ok := t.all[s]
	return p, ok
}

// All returns the PeerHandlers of all peers, unordered.
func (t *Peers[P]) All() []P {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.all))
}

// Clear forgets all peers and returns their PeerHandlers.
func (t *Peers[P]) Clear() []P {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.all))
	clear(t.all)
	return all
}

// check closes the session if err is not nil.
func (t *Peers[P]) check(s Session, err error) {
	if err != nil {
		s.End(fmt.Errorf("%v: %w", t.id, err))
	}
}

// Hello implements Handler.
func (t *Peers[P]) Hello(s Session) ([]byte, bool) {
	body, ok, err := t.Of(s.Peer()).Hello(s)
	t.check(s, err)
	return body, ok && err == nil
}

// Up implements Handler.
func (t *Peers[P]) Up(s Session, body []byte) { t.check(s, t.Of(s.Peer()).Up(s, body)) }

// Down implements Handler.
func (t *Peers[P]) Down(s Session, cause error) {
	if p, ok := t.known(s.Peer()); ok {
		p.Down(s, cause)
	}
}

// Gone implements Handler.
func (t *Peers[P]) Gone(s Peer, cause error) {
	forgotten := s.Forgotten() != nil
	t.mu.Lock()
	p, ok := t.all[s]
	if forgotten {
		delete(t.all, s)
	}
	t.mu.Unlock()
	if ok {
		p.Gone(cause, forgotten)
	}
}

// Message implements Handler.
func (t *Peers[P]) Message(s Session, body []byte) {
	if p, ok := t.known(s.Peer()); ok {
		t.check(s, p.Message(s, body))
	}
}

// Immediate implements Handler.
func (t *Peers[P]) Immediate(s Session, imm, length uint32) {
	if p, ok := t.known(s.Peer()); ok {
		t.check(s, p.Immediate(s, imm, length))
	}
}
