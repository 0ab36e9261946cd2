package main

import (
	"context"
	"log/slog"

	"ibverbx/node"
)

// railLine is a local NIC as --json prints it, with sums over all sessions.
type railLine struct {
	Rail   int    `json:"rail"`
	Device string `json:"device"`
	// Bytes counts the bytes that this side has written to peers or read from them. With get and put, it includes the bytes that the peer has
	// written to this side.
	Bytes uint64 `json:"bytes"`
	// SentPackets and ReceivedPackets are known for software NICs only.
	SentPackets     uint64  `json:"sent_packets,omitempty"`
	ReceivedPackets uint64  `json:"received_packets,omitempty"`
	Lost            uint64  `json:"lost"`
	Recovered       uint64  `json:"recovered"`
	FailoverSeconds float64 `json:"failover_seconds"`
}

// carried describes how a command has moved data. It is part of the last line of --json, and empty if no NIC was opened.
type carried struct {
	Transport string `json:"transport,omitempty"`
	// Link is the link to the peer; empty with hardware NICs, and without exactly one peer.
	Link string `json:"link,omitempty"`
	// Lanes and Sealed describe the session with the only peer.
	Lanes  int        `json:"lanes,omitempty"`
	Sealed bool       `json:"sealed,omitempty"`
	Rails  []railLine `json:"rails,omitempty"`
}

// carriedBy returns the state of a Node.
func carriedBy(n *node.Node) carried {
	s := n.Snapshot()
	c := carried{Transport: s.Transport}
	if len(s.Peers) == 1 {
		p := &s.Peers[0]
		c.Link, c.Lanes, c.Sealed = string(p.Link), p.Agreed.Lanes, p.Agreed.Sealed
	}
	for i, cfg := range n.NICs() {
		l := railLine{Rail: i, Device: cfg.Context.Device().Name()}
		if i < len(s.Stats.QP.Rails) {
			r := &s.Stats.QP.Rails[i]
			l.Bytes, l.Lost, l.Recovered, l.FailoverSeconds = r.Bytes, r.Lost, r.Recovered, r.FailoverTime.Seconds()
		}
		if nic, _ := softNIC(cfg.Context); nic != nil {
			packets := nic.Stats()
			l.SentPackets, l.ReceivedPackets = packets.PacketsSent, packets.PacketsReceived
		}
		c.Rails = append(c.Rails, l)
	}
	return c
}

// railLog is the log of serve and forward without --verbose: lost and recovered rails and lanes.
type railLog struct{ slog.Handler }

// Handle implements slog.Handler.
func (l railLog) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "rail down", "rail up", "degraded", "recovered":
		return l.Handler.Handle(ctx, r)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l railLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return railLog{l.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (l railLog) WithGroup(name string) slog.Handler { return railLog{l.Handler.WithGroup(name)} }
