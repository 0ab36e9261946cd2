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

// host is the stream service of a Node. The first Listen or Dial creates it; it lives as long as the Node.
//
// Lock order: a shard's lock, then a Conn's mu, then a peer's mu, a pool's mu or mu. Methods of package service are called without the
// latter.
type host struct {
	service.Peers[*peer]
	node    *node.Node
	service service.Node
	now     func() int64
	// linger bounds Close's wait for delivery. reap then bounds the wait for the peer to close its direction, which an honest peer does
	// immediately.
	linger, reap time.Duration

	mu        sync.RWMutex
	listeners map[string]*Listener
	used      int64 // bytes of all slabs
	spent     spent
	// traffic holds counters by the peer's host, at most maxHosts. Entries are never removed, so that sums never decrease.
	traffic map[string]*traffic
	counts  counts
}

// counts holds the counters of Stats that are not kept per host.
type counts struct{ dialed, accepted, refused, unclaimed atomic.Uint64 }

// traffic counts the streams with the peers on one host.
type traffic struct {
	streams                atomic.Int64
	resets, sent, received atomic.Uint64
}

const (
	maxHosts  = 256
	otherHost = "other"
)

// trafficOf returns a host's counters. mu is held.
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

// hostOf returns a Node's stream service, and attaches it if necessary.
func hostOf(n *node.Node) (*host, error) {
	if n == nil {
		return nil, verbs.Invalidf("the Node is nil")
	}
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

// addr returns the address of a local service.
func (h *host) addr(service string) Addr {
	a := Addr{Service: service}
	if at := h.node.Addr(); at != nil {
		a.Host = at.String()
	}
	return a
}

// opError wraps err in a *net.OpError.
func (h *host) opError(op, service string, remote net.Addr, err error) error {
	return &net.OpError{Op: op, Net: Addr{}.Network(), Source: h.addr(service), Addr: remote, Err: err}
}

// hostName returns an address without its port.
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

// reserve reserves memory within limit, and reports whether it succeeded. If necessary, it frees unused slabs.
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

// reserved returns the size of all slabs in bytes.
func (h *host) reserved() int64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.used
}
