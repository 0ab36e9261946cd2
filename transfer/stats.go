package transfer

import (
	"errors"
	"sync"

	"ibverbx/internal/counter"
)

// Stats counts the work of an Engine since New, with all peers.
type Stats struct {
	// Transfers counts completed batches, Failed those among them with an error.
	Transfers, Failed uint64
	// Bytes is the size of the blocks of successful batches.
	Bytes uint64
	// Notified counts notifications submitted to peers, Notifications those received.
	Notified, Notifications uint64
	// Retries counts batches repeated because digests differed, DigestErrors the ones that failed
	// for that reason.
	Retries, DigestErrors uint64
}

// counts are a Peer's part of Stats. Peer.link.Mu guards writes.
type counts struct {
	transfers, failed, bytes, notified, notifications, retries, digestErrors counter.Counter
}

// addTo adds the counters to s.
func (c *counts) addTo(s *Stats) {
	s.Transfers += c.transfers.Load()
	s.Failed += c.failed.Load()
	s.Bytes += c.bytes.Load()
	s.Notified += c.notified.Load()
	s.Notifications += c.notifications.Load()
	s.Retries += c.retries.Load()
	s.DigestErrors += c.digestErrors.Load()
}

// finished counts a transfer.
func (c *counts) finished(t *Transfer, err error) {
	c.transfers.Add(1)
	switch {
	case err == nil:
		c.bytes.Add(t.total)
		return
	case errors.Is(err, ErrDigest):
		c.digestErrors.Add(1)
	}
	c.failed.Add(1)
}

// statsRegistry sums the counters of all Peers of an Engine.
type statsRegistry struct {
	mu sync.Mutex
	// peers holds the peers with counters; past sums the counters of forgotten ones.
	peers map[*Peer]struct{}
	past  Stats
}

// add adds a Peer, unless it was added.
func (c *statsRegistry) add(p *Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.peers == nil {
		c.peers = map[*Peer]struct{}{}
	}
	c.peers[p] = struct{}{}
}

// remove keeps the counters of a Peer.
func (c *statsRegistry) remove(p *Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.peers[p]; ok {
		p.counts.addTo(&c.past)
		delete(c.peers, p)
	}
}

// Stats returns the current counters. They are kept when a peer disconnects, and after Close.
func (e *Engine) Stats() Stats {
	if !e.isOpen() {
		return Stats{}
	}
	e.registry.mu.Lock()
	defer e.registry.mu.Unlock()
	s := e.registry.past
	for p := range e.registry.peers {
		p.counts.addTo(&s)
	}
	return s
}
