package stream

import (
	"time"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
	"ibverbx/node"
)

// Info describes a stream.
type Info struct {
	// Peer is the other side, and Identity how it authenticated: its certificate, for programs that authorize.
	Peer     *node.Peer
	Identity bootstrap.Peer
	// Service is the name of the service, and Dialed says that this side has dialed.
	Service string
	Dialed  bool
	// Rails is how many NICs of this side carry the stream. It is zero while the session is parked or lost.
	Rails int
	// Sealed says that packets of the session are encrypted and authenticated.
	Sealed bool
	// RTT is the time from handing a message over until it has arrived, smoothed. It is zero if none was measured.
	RTT time.Duration
	// Sent is how many bytes have reached the peer, and Received how many have come.
	Sent, Received uint64
	// Unsent is how many bytes were written and have not arrived. Unread is how many have come that nobody has read.
	Unsent, Unread int
	// Credit is how many bytes more the peer has room for.
	Credit int
}

// Info describes the stream as it is.
func (c *Conn) Info() Info {
	p := c.peer.service.Owner().(*node.Peer)
	d := p.Stats()
	i := Info{
		Peer: p, Identity: p.Identity(), Service: c.service, Dialed: c.dialed, Rails: len(d.QP.Rails), Sealed: d.Agreed.Sealed,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i.RTT, i.Sent, i.Received = time.Duration(c.out.rtt), c.out.done, c.in.tail
	i.Unsent, i.Unread = int(c.out.tail-c.out.done), int(c.in.tail-c.in.head)
	i.Credit = int(c.out.acked + c.ring.Length - c.out.posted)
	return i
}

// Stats says how the streams of a Node are.
type Stats struct {
	// Streams is how many there are, and Memory how many bytes their rings have.
	Streams int
	Memory  int64
	// Dialed and Accepted count streams that were opened, and Refused those of peers that were not.
	Dialed, Accepted, Refused uint64
	// Resets counts streams that were lost: with their session, or because the peer has cut them off.
	Resets uint64
	// Sent and Received count the bytes of all streams.
	Sent, Received uint64
	// Unclaimed counts immediates for streams that were closed.
	Unclaimed uint64
}

// NodeStats returns the counters of all streams of a Node. They are zero if it has had none.
func NodeStats(n *node.Node) Stats {
	h, ok := n.Service().Attached(service.StreamID).(*host)
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

// HostStats says how the streams with the peers of one host are. The fields are those of Stats.
type HostStats struct {
	Streams                int
	Resets, Sent, Received uint64
}

// StatsByHost returns the counters of the streams of a Node by the address of the peer's host. What peers that have left have counted stays. From the
// 257th host on, streams count as those of host "other".
func StatsByHost(n *node.Node) map[string]HostStats {
	if h, ok := n.Service().Attached(service.StreamID).(*host); ok {
		return h.byHost()
	}
	return nil
}

func (h *host) byHost() map[string]HostStats {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := make(map[string]HostStats, len(h.traffic))
	for name, t := range h.traffic {
		all[name] = HostStats{Streams: int(t.streams.Load()), Resets: t.resets.Load(), Sent: t.sent.Load(), Received: t.received.Load()}
	}
	return all
}
