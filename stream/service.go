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

// streamService is the stream service of a Node. The first Listen or Dial creates it; it lives as long as the Node.
//
// Lock order: a shard's lock, then a Conn's mu, then a peer's mu, a pool's mu or mu. Methods of package service are called without the
// latter.
type streamService struct {
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
	retired   retiredSlabs
	traffic   service.ByHost[traffic]
	counts    counts
}

// counts holds the counters of Stats that are not kept per host.
type counts struct{ dialed, accepted, refused, unclaimed atomic.Uint64 }

// traffic counts the streams with the peers on one host.
type traffic struct {
	streams                atomic.Int64
	resets, sent, received atomic.Uint64
}

// serviceOf returns a Node's stream service, and attaches it if necessary.
func serviceOf(n *node.Node) (*streamService, error) {
	if n == nil {
		return nil, verbs.Invalidf("the Node is nil")
	}
	for {
		select {
		case <-n.Service().Done():
			return nil, node.ErrClosed
		default:
		}
		if h, ok := n.Service().Attached(service.StreamID).(*streamService); ok {
			return h, nil
		}
		h := &streamService{
			node: n, service: n.Service(), now: clock.Monotonic(), linger: lingerTime, reap: reapTime,
			listeners: map[string]*Listener{}, traffic: service.ByHost[traffic]{},
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
func (h *streamService) addr(service string) Addr {
	a := Addr{Service: service}
	if at := h.node.Addr(); at != nil {
		a.Host = at.String()
	}
	return a
}

// opError wraps err in a *net.OpError.
func (h *streamService) opError(op, service string, remote net.Addr, err error) error {
	return &net.OpError{Op: op, Net: Addr{}.Network(), Source: h.addr(service), Addr: remote, Err: err}
}

// reserve reserves memory within limit, and reports whether it succeeded. If necessary, it frees unused slabs.
func (h *streamService) reserve(bytes, limit int64) bool {
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
		h.retired.free(h)
	}
	return false
}

func (h *streamService) unreserve(bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used -= bytes
}

// reserved returns the size of all slabs in bytes.
func (h *streamService) reserved() int64 {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.used
}
