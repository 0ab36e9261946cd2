package stream

import (
	"errors"
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
	service.Peers[*peer]
	node    *node.Node
	service service.Node
	now     func() int64
	// linger is how long Close waits until the peer has all bytes. reap is how long the peer may then take to end its
	// direction. An honest peer does so at once.
	linger, reap time.Duration

	mu        sync.RWMutex
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
			listeners: map[string]*Listener{}, traffic: map[string]*traffic{},
		}
		h.Init(service.StreamID, h.newPeer)
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

// reserve counts memory that is to be allocated, and reports whether there may be so much. It frees what is not used if
// that helps.
func (h *host) reserve(bytes, limit int64) bool {
	for range 2 {
		h.mu.Lock()
		ok := h.used+bytes <= limit
		if ok {
			h.used += bytes
		}
		h.mu.Unlock()
		if ok {
			return true
		}
		for _, p := range h.All() {
			p.pool.sweep()
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
