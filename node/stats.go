package node

import "ibverbx/internal/counter"

// Counters counts operations and traffic with peers.
type Counters struct {
	// Operations counts completed operations, Failed those among them with an error.
	Operations, Failed uint64
	// BytesWritten and BytesRead count the bytes of successful requests.
	BytesWritten, BytesRead uint64
	// Notified counts immediates sent, Notifications immediates received.
	Notified, Notifications uint64
	// Unclaimed counts immediates and messages received for a service that is not attached.
	Unclaimed uint64
	// Replays counts operations that resumed in a later session.
	Replays uint64
}

// add adds o to c.
func (c *Counters) add(o Counters) {
	c.Operations += o.Operations
	c.Failed += o.Failed
	c.BytesWritten += o.BytesWritten
	c.BytesRead += o.BytesRead
	c.Notified += o.Notified
	c.Notifications += o.Notifications
	c.Unclaimed += o.Unclaimed
	c.Replays += o.Replays
}

// counters are a queue's Counters. The shard's lock guards writes.
type counters struct {
	operations, failed, written, read, notified, notifications, replays counter.Counter
	// activity counts events that keep a session from being parked.
	activity counter.Counter
}

// counters returns a Peer's Counters.
func (p *Peer) counters() Counters {
	c := &p.queue.counts
	return Counters{
		Operations: c.operations.Load(), Failed: c.failed.Load(), BytesWritten: c.written.Load(), BytesRead: c.read.Load(),
		Notified: c.notified.Load(), Notifications: c.notifications.Load(), Unclaimed: p.unclaimed.Load(), Replays: c.replays.Load(),
	}
}

// Stats is a snapshot of a Node.
type Stats struct {
	// Ready, Parked, Lost and Connecting are the numbers of peers per state.
	Ready, Parked, Lost, Connecting int
	// Sessions counts established sessions, Losses lost ones.
	Sessions, Losses uint64
	// Duplicates counts connections closed because a session with the peer already existed.
	Duplicates uint64
	// Refused counts other connections from authenticated peers that failed before a session was established.
	Refused uint64
	// Realms and Shards are the current numbers of realms and shards.
	Realms, Shards int
	// Counters sums over all peers since New, including removed ones.
	Counters Counters
}

// Stats returns the Node's current statistics. It never waits for a shard.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.stats
	for _, p := range n.peers {
		switch p.state {
		case StateReady:
			s.Ready++
		case StateParked:
			s.Parked++
		case StateLost:
			s.Lost++
		default:
			s.Connecting++
		}
		s.Counters.add(p.counters())
	}
	s.Realms = len(n.realms)
	for _, r := range n.realms {
		s.Shards += r.count()
	}
	return s
}
