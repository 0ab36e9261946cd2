package node

import "ibverbx/internal/counter"

// Counters count what was done with peers.
type Counters struct {
	// Operations counts operations that have ended, and Failed those that ended with an error.
	Operations, Failed uint64
	// BytesWritten and BytesRead count the bytes of pieces that have ended in success.
	BytesWritten, BytesRead uint64
	// Notified counts immediates that were sent, and Notifications those that came.
	Notified, Notifications uint64
	// Unclaimed counts immediates and messages that came for a service that is not attached.
	Unclaimed uint64
	// Replays counts operations that went on in another session.
	Replays uint64
}

// add adds the counters of another.
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

// counters are the Counters of a queue, written with the lock of its shard.
type counters struct {
	operations, failed, written, read, notified, notifications, replays counter.Counter
	// activity counts what keeps a session from being idle.
	activity counter.Counter
}

// counters returns the Counters of a Peer.
func (p *Peer) counters() Counters {
	c := &p.queue.counts
	return Counters{
		Operations: c.operations.Load(), Failed: c.failed.Load(), BytesWritten: c.written.Load(), BytesRead: c.read.Load(),
		Notified: c.notified.Load(), Notifications: c.notifications.Load(), Unclaimed: p.unclaimed.Load(), Replays: c.replays.Load(),
	}
}

// Stats says how a Node is.
type Stats struct {
	// Ready, Parked and Lost count the peers in that state, Connecting all others.
	Ready, Parked, Lost, Connecting int
	// Sessions counts the sessions that were made, and Losses those that were lost.
	Sessions, Losses uint64
	// Duplicates counts connections that were closed because there was a session with the peer already.
	Duplicates uint64
	// Refused counts connections of authenticated peers that ended before there was a session, without Duplicates.
	Refused uint64
	// Realms and Shards are how many there are.
	Realms, Shards int
	// Counters are the sums over all peers since New.
	Counters Counters
}

// Stats returns the state and the counters of all peers. It never waits for a shard.
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
