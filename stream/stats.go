package stream

import (
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/node"
)

// Info is a snapshot of a stream.
type Info struct {
	// Peer is the remote Node.
	Peer *node.Peer
	// Identity is the peer's authenticated identity, for example its certificate, for authorization.
	Identity bootstrap.Peer
	// Service is the service name.
	Service string
	// Dialed reports whether this side dialed.
	Dialed bool
	// Rails is the number of local NICs carrying the stream. It is zero while the session is parked or lost.
	Rails int
	// Link is the link type of the session, see node.PeerStats: "shm" for shared memory, "udp", or empty for hardware NICs.
	Link string
	// Sealed reports whether the session's packets are encrypted and authenticated.
	Sealed bool
	// RTT is the smoothed time from posting a message until its completion. It is zero before the first measurement.
	RTT time.Duration
	// Sent is the number of bytes delivered to the peer, Received the number of bytes received.
	Sent, Received uint64
	// Unsent is the number of bytes written but not yet delivered, Unread the number of bytes received but not yet read.
	Unsent, Unread int
	// Credit is the remaining space in the peer's ring, in bytes.
	Credit int
}

// Info returns the stream's current state. It can be called at any time, including after Close.
func (c *Conn) Info() Info {
	if c.peer == nil {
		return Info{}
	}
	p := c.peer.service.Owner().(*node.Peer)
	d := p.Stats()
	i := Info{
		Peer: p, Identity: p.Identity(), Service: c.service, Dialed: c.dialed, Rails: len(d.QP.Rails), Link: string(d.Link),
		Sealed: d.Agreed.Sealed,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i.RTT, i.Sent, i.Received = time.Duration(c.out.rtt), c.out.done, c.in.tail
	i.Unsent, i.Unread = int(c.out.tail-c.out.done), int(c.in.tail-c.in.head)
	i.Credit = int(c.out.acked + c.ring.Length - c.out.posted)
	return i
}

// Stats is a snapshot of all streams of a Node.
type Stats struct {
	// Streams is the number of open streams.
	Streams int
	// Memory is the memory allocated for rings, in bytes.
	Memory int64
	// Dialed and Accepted count opened streams, Refused counts streams refused to peers.
	Dialed, Accepted, Refused uint64
	// Resets counts streams lost with their session or aborted by the peer.
	Resets uint64
	// Sent and Received count the bytes of all streams.
	Sent, Received uint64
	// Unclaimed counts immediates for closed streams.
	Unclaimed uint64
}

// NodeStats returns the statistics of all streams of a Node. They are zero before its first Listen or Dial.
func NodeStats(n *node.Node) Stats {
	h, ok := n.Service().Attached(service.StreamID).(*streamService)
	if !ok {
		return Stats{}
	}
	c := &h.counts
	all := Stats{Memory: h.reserved(), Dialed: c.dialed.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(), Unclaimed: c.unclaimed.Load()}
	for _, t := range h.byHost() {
		all.Streams += t.Streams
		all.Resets += t.Resets
		all.Sent += t.Sent
		all.Received += t.Received
	}
	return all
}

// HostStats is a snapshot of the streams with all peers on one host.
type HostStats struct {
	// Streams is the number of open streams.
	Streams int
	// Resets, Sent and Received count as in Stats.
	Resets, Sent, Received uint64
}

// StatsByHost returns the statistics of a Node's streams by the peers' host address. Counters of disconnected peers are kept. Beyond 256
// hosts, streams are counted under "other". The result is nil before the first Listen or Dial.
func StatsByHost(n *node.Node) map[string]HostStats {
	if h, ok := n.Service().Attached(service.StreamID).(*streamService); ok {
		return h.byHost()
	}
	return nil
}

func (h *streamService) byHost() map[string]HostStats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := make(map[string]HostStats, len(h.traffic))
	for name, t := range h.traffic {
		all[name] = HostStats{Streams: int(t.streams.Load()), Resets: t.resets.Load(), Sent: t.sent.Load(), Received: t.received.Load()}
	}
	return all
}
