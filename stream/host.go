package stream

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/clock"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

// host is the service of a Node. It is made by the first Listen or Dial and stays as long as the Node.
//
// Locks: a shard's lock, then a Conn's mu, then a peer's mu, a pool's mu or mu. No method of package service is called with one of the latter.
type host struct {
	node    *node.Node
	service service.Node
	now     func() int64
	// linger is how long Close waits until the peer has all bytes. reap is how long the peer may then take to end its
	// direction. An honest peer does so at once.
	linger, reap time.Duration

	mu        sync.RWMutex
	peers     map[service.Peer]*peer
	listeners map[string]*Listener
	used      int64 // bytes of all slabs
	spent     spent
	// traffic has the counters of streams by the host of the peer, at most maxHosts. None is ever removed, so that sums never go back.
	traffic map[string]*traffic
	counts  counts
}

// counts are the counters of Stats that are not those of a peer's host.
type counts struct{ dialed, accepted, refused, unclaimed atomic.Uint64 }

// traffic counts the streams with the peers of a host.
type traffic struct {
	streams                atomic.Int64
	resets, sent, received atomic.Uint64
}

const (
	maxHosts  = 256
	otherHost = "other"
)

// trafficOf returns the counters of a host. mu is held.
func (h *host) trafficOf(name string) *traffic {
	t := h.traffic[name]
	if t == nil && len(h.traffic) >= maxHosts {
		name = otherHost
		t = h.traffic[name]
	}
	if t == nil {
		t = &traffic{}
		h.traffic[name] = t
	}
	return t
}

// hostOf returns the service of a Node, and attaches it if it is not.
func hostOf(n *node.Node) (*host, error) {
	for {
		select {
		case <-n.Service().Done():
			return nil, node.ErrClosed
		default:
		}
		if h, ok := n.Service().Attached(service.StreamID).(*host); ok {
			return h, nil
		}
		h := &host{
			node: n, service: n.Service(), now: clock.Monotonic(), linger: lingerTime, reap: reapTime,
			peers: map[service.Peer]*peer{}, listeners: map[string]*Listener{}, traffic: map[string]*traffic{},
		}
		err := h.service.Attach(service.Service{ID: service.StreamID, Version: version, Classes: 1<<classData | 1<<classCredit, Handler: h})
		if err == nil {
			return h, nil
		}
		if h.service.Attached(service.StreamID) == nil || !errors.Is(err, verbs.ErrBusy) {
			return nil, err
		}
	}
}

// addr is the address of a service of this side.
func (h *host) addr(service string) Addr {
	a := Addr{Service: service}
	if at := h.node.Addr(); at != nil {
		a.Host = at.String()
	}
	return a
}

// opError is the error of a method.
func (h *host) opError(op, service string, remote net.Addr, err error) error {
	return &net.OpError{Op: op, Net: Addr{}.Network(), Source: h.addr(service), Addr: remote, Err: err}
}

// peer returns what is known of a peer, and makes it if it is new.
func (h *host) peer(s service.Peer) *peer {
	p := h.known(s)
	if p != nil {
		return p
	}
	name := hostName(s.Identity().Addr)
	h.mu.Lock()
	defer h.mu.Unlock()
	if p = h.peers[s]; p == nil {
		p = newPeer(h, s, h.trafficOf(name))
		h.peers[s] = p
	}
	return p
}

// known returns what is known of a peer, nil if it is new or forgotten.
func (h *host) known(s service.Peer) *peer {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.peers[s]
}

// hostName is an address without its port.
func hostName(addr net.Addr) string {
	if addr == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

// forget removes a closed peer that has no session, so that no Down or Gone of it is to come.
func (h *host) forget(p *peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.Session == nil && p.conns.Len() == 0 && h.peers[p.service] == p {
		delete(h.peers, p.service)
	}
}

// reserve counts memory that is to be allocated, and reports whether there may be so much. It frees what is not used if
// that helps.
func (h *host) reserve(bytes, limit int64) bool {
	for range 2 {
		h.mu.Lock()
		ok := h.used+bytes <= limit
		if ok {
			h.used += bytes
		}
		var pools []*pool
		for _, p := range h.peers {
			pools = append(pools, &p.pool)
		}
		h.mu.Unlock()
		if ok {
			return true
		}
		for _, q := range pools {
			q.sweep()
		}
		h.spent.free(h)
	}
	return false
}

func (h *host) unreserve(bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used -= bytes
}

// reserved returns how many bytes all slabs have.
func (h *host) reserved() int64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.used
}

// Hello implements service.Handler. It has no fields yet.
func (h *host) Hello(s service.Session) ([]byte, bool) {
	p := h.peer(s.Peer())
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Expect()
	return nil, true
}

// Up implements service.Handler.
func (h *host) Up(s service.Session, _ []byte) { h.peer(s.Peer()).up(s) }

// Down implements service.Handler.
func (h *host) Down(s service.Session, cause error) { h.peer(s.Peer()).down(s, cause) }

// Gone implements service.Handler.
func (h *host) Gone(s service.Peer, cause error) {
	closed := node.Of(s).State() == node.StateClosed
	h.mu.Lock()
	p := h.peers[s]
	if closed {
		delete(h.peers, s)
	}
	h.mu.Unlock()
	if p != nil {
		p.gone(cause)
	}
}

// Message implements service.Handler.
func (h *host) Message(s service.Session, body []byte) {
	m, err := decode(body)
	if err == nil {
		err = h.peer(s.Peer()).message(s, m)
	}
	if err != nil {
		s.End(fmt.Errorf("stream: %w", err))
	}
}

// Immediate implements service.Handler. It is called with the shard's lock.
func (h *host) Immediate(s service.Session, imm, length uint32) {
	p := h.known(s.Peer())
	if p == nil {
		h.counts.unclaimed.Add(1)
		return
	}
	var err error
	switch service.Class(imm) {
	case classData:
		var d data
		if d, err = decodeData(imm); err != nil {
			break
		}
		if c := p.find(s, d.id); c != nil {
			err = c.arrived(length, d)
		}
	case classCredit:
		m := decodeCredit(imm)
		if c := p.find(s, m.id); c != nil {
			err = c.credited(m)
		}
	}
	if err != nil {
		s.End(fmt.Errorf("stream: %w", err))
	}
}
