package node

import (
	"cmp"
	"slices"
	"sync"

	"ibverbx"
	"ibverbx/internal/counter"
	ibpeer "ibverbx/peer"
)

// Counters counts operations and traffic with peers.
type Counters struct {
	// Operations counts completed operations, Failed those among them with an error.
	Operations, Failed uint64
	// BytesWritten and BytesRead count the bytes of successful requests.
	BytesWritten, BytesRead uint64
	// Notified counts immediates sent, Notifications immediates received.
	Notified, Notifications uint64
	// Unclaimed counts immediates and messages received for detached services.
	Unclaimed uint64
	// Replays counts operations that resumed in a later session.
	Replays uint64
}

// add adds o to c.
func (c *Counters) add(o *Counters) {
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

// Totals sums the states and counters of several peers. Counters start with the Node and include removed peers and closed sessions.
type Totals struct {
	// Ready, Parked, Lost and Connecting are the numbers of peers per state.
	Ready, Parked, Lost, Connecting int
	// Sessions counts established sessions, Reconnects those among them that replaced a lost one.
	Sessions, Reconnects uint64
	// Losses counts lost sessions, Closed the sessions closed in order by one side.
	Losses, Closed uint64
	// Connected is the number of open VirtualQPs, Failed the number of failed ones among them, and Lanes the number of their lanes.
	Connected, Failed, Lanes int
	// QP sums the statistics of all VirtualQPs, without Stats.Lanes.
	QP ibverbx.Stats
	// Counters sums the Counters of the peers.
	Counters Counters
}

// add adds o to t.
func (t *Totals) add(o *Totals) {
	t.Ready += o.Ready
	t.Parked += o.Parked
	t.Lost += o.Lost
	t.Connecting += o.Connecting
	t.Sessions += o.Sessions
	t.Reconnects += o.Reconnects
	t.Losses += o.Losses
	t.Closed += o.Closed
	t.Connected += o.Connected
	t.Failed += o.Failed
	t.Lanes += o.Lanes
	t.QP.Add(&o.QP)
	t.Counters.add(&o.Counters)
}

// count adds a peer in state s.
func (t *Totals) count(s State) {
	switch s {
	case StateReady:
		t.Ready++
	case StateParked:
		t.Parked++
	case StateLost:
		t.Lost++
	case StateConnecting:
		t.Connecting++
	case StateClosed:
	}
}

// qpTotals sums the statistics of a Peer's VirtualQPs.
type qpTotals struct {
	mu sync.Mutex
	// qp is the open VirtualQP, nil without one. past sums the closed ones.
	qp   *ibverbx.VirtualQP
	past ibverbx.Stats
}

// open starts counting a VirtualQP.
func (t *qpTotals) open(qp *ibverbx.VirtualQP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.qp = qp
}

// close keeps the counters of the VirtualQP, which the caller closes.
func (t *qpTotals) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.qp != nil {
		s := t.qp.Stats()
		past := s.Past()
		t.qp = nil
		t.past.Add(&past)
	}
}

// addTo adds the counters to sum. It returns the statistics of the open VirtualQP, zero without
// one.
func (t *qpTotals) addTo(sum *Totals) (open ibverbx.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum.QP.Add(&t.past)
	if t.qp == nil {
		return open
	}
	open = t.qp.Stats()
	sum.QP.Add(&open)
	sum.Connected++
	sum.Lanes += len(open.Lanes)
	if t.qp.Err() != nil {
		sum.Failed++
	}
	return open
}

// retire keeps the counters of a removed Peer. The lock is held.
func (n *Node) retire(p *Peer) {
	t := Totals{Counters: p.counters()}
	p.tally.addTo(&t)
	t.Connected, t.Failed, t.Lanes, t.QP = 0, 0, 0, t.QP.Past()
	n.hosts[p.host].add(&t)
}

// Stats is a snapshot of a Node.
type Stats struct {
	// Totals sums over all peers.
	Totals
	// Duplicates counts connections closed because a session with the peer already existed.
	Duplicates uint64
	// Refused counts other connections from authenticated peers that failed before a session was established.
	Refused uint64
	// Realms and Shards are the current numbers of realms and shards.
	Realms, Shards int
}

// Stats returns the Node's current statistics. It never waits for a shard.
func (n *Node) Stats() Stats {
	if !n.isOpen() {
		return Stats{}
	}
	s, hosts := n.stats()
	for _, h := range hosts {
		s.add(h)
	}
	return s
}

// StatsByHost returns the statistics of the peers by host address: the address from which the peer
// first connected. Beyond 256 hosts, peers are counted under "other". Hosts without peers keep
// their counters.
func (n *Node) StatsByHost() map[string]*Totals {
	if !n.isOpen() {
		return nil
	}
	_, hosts := n.stats()
	return hosts
}

// stats returns the Node-wide statistics and the statistics by host.
func (n *Node) stats() (s Stats, hosts map[string]*Totals) {
	n.mu.Lock()
	s = n.counts
	s.Realms = len(n.realms)
	for _, r := range n.realms {
		s.Shards += r.count()
	}
	hosts = make(map[string]*Totals, len(n.hosts))
	for name, past := range n.hosts {
		t := *past
		t.QP = past.QP.Past()
		hosts[name] = &t
	}
	peers := make([]*Peer, 0, len(n.peers))
	for _, p := range n.peers {
		hosts[p.host].count(p.state)
		peers = append(peers, p)
	}
	for p := range n.callers {
		if p.state == StateClosed { // removed, but not retired yet
			peers = append(peers, p)
		}
	}
	n.mu.Unlock()
	for _, p := range peers { // a peer retired meanwhile does not count in past
		t := hosts[p.host]
		p.tally.addTo(t)
		c := p.counters()
		t.Counters.add(&c)
	}
	return s, hosts
}

// PeerStats is a snapshot of a Peer's sessions and traffic.
type PeerStats struct {
	// State is the connection state.
	State State
	// Sessions counts all sessions of the Peer.
	Sessions uint64
	// Agreed is the result of the newest session's negotiation; zero before the first.
	Agreed ibpeer.Agreement
	// Link is the link type of the newest session; zero before the first.
	Link ibpeer.Link
	// LinkReason explains why the newest session does not use shared memory; empty if it does.
	LinkReason string
	// QP holds the VirtualQP's counters per lane and rail. It is zero without queue pairs, for example while parked.
	QP ibverbx.Stats
	// Sum adds up QP over all sessions of the Peer, without Stats.Lanes.
	Sum ibverbx.Stats
	// Counters covers all sessions of the Peer.
	Counters Counters
}

// Stats returns the Peer's current statistics. It never waits for a shard.
func (p *Peer) Stats() PeerStats {
	if p.node == nil {
		return PeerStats{State: StateClosed}
	}
	p.node.mu.Lock()
	d := PeerStats{State: p.state, Sessions: p.sessions, Agreed: p.agreed, Link: p.link, LinkReason: p.linkReason}
	p.node.mu.Unlock()
	var sum Totals
	d.QP = p.tally.addTo(&sum)
	d.Sum, d.Counters = sum.QP, p.counters()
	return d
}

// Snapshot is the state of a running Node, for monitoring. It can be encoded as JSON.
type Snapshot struct {
	// Transport is the transport of the NICs: "rc", or "uc" or "ud" if package reliable wraps them.
	Transport string
	// Stats are the statistics of the Node. Stats.QP.Rails sums the rails over all sessions.
	Stats Stats
	// Peers holds the peers in address order.
	Peers []PeerSnapshot
}

// PeerSnapshot is the state of a Peer.
type PeerSnapshot struct {
	// Name is the peer's Auth.Name, Addr its address and port, and Realm its realm.
	Name, Addr, Realm string
	// Error is the text of Peer.Err.
	Error string `json:",omitempty"`
	PeerStats
}

// Snapshot returns the state of the Node and of all its peers. It never waits for a shard.
func (n *Node) Snapshot() Snapshot {
	if !n.isOpen() {
		return Snapshot{}
	}
	s := Snapshot{Transport: string(ibpeer.TransportOf(n.NICs())), Stats: n.Stats(), Peers: []PeerSnapshot{}}
	for _, p := range n.Peers() {
		id := p.Identity()
		one := PeerSnapshot{Name: id.Name, Addr: id.Addr.String(), Realm: p.Realm(), PeerStats: p.Stats()}
		if err := p.Err(); err != nil {
			one.Error = err.Error()
		}
		s.Peers = append(s.Peers, one)
	}
	slices.SortFunc(s.Peers, func(a, b PeerSnapshot) int { return cmp.Compare(a.Addr, b.Addr) })
	return s
}

// NICs returns the local NICs in rail order.
func (n *Node) NICs() []ibverbx.RailConfig {
	if !n.isOpen() {
		return nil
	}
	n.mu.Lock()
	first := n.realms[""]
	n.mu.Unlock()
	return first.rails.Configs()
}
