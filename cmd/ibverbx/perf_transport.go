package main

import (
	"cmp"
	"fmt"

	"ibverbx"
	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// Receive buffers of a wrapped NIC, which builds RC QPs from UC or UD QPs.
const (
	// wrapPathRecvs is the number of receives per UC QP on NICs without SRQs for UC.
	wrapPathRecvs = 8
	// wrapRecvs is the number of receives per RC QP on other NICs: twice what reliable uses, so that
	// lanes can be replaced.
	wrapRecvs    = 32
	minWrapRecvs = 512
	maxWrapRecvs = 1 << 15
	// wrapDatagrams is the minimum over UD, whose receives hold a datagram.
	wrapDatagrams = 1024
	// wrapMoreLanes counts the message lane, the notify lane and one lane being replaced.
	wrapMoreLanes = 3
)

// wrapPaths returns the number of paths per RC QP.
func wrapPaths(cfg *reliable.Config) int { return cmp.Or(cfg.Paths, 16) }

// prepare applies the settings to the NICs of an end. The caller closes n, even after an error.
func (f *perfFlags) prepare(c *measure.Config, n *nics, end int) error {
	fabric := f.Fabric
	fabric.Transport = c.Transport
	if carrier := c.Transport.Carrier(); carrier != 0 {
		fabric.Reliable.Carrier = carrier
		rails := max(len(n.ends[end]), 1) // the end may have fewer rails than requested
		if err := lendReceives(c, n.ends[end], &fabric.Reliable, (c.QPs+rails-1)/rails+wrapMoreLanes); err != nil {
			return err
		}
	}
	open := peer.NICs{Rails: n.ends[end]}
	err := fabric.Prepare(&open)
	n.ends[end] = open.Rails
	if open.Close != nil {
		n.closers.Add(open.Close) // before the NICs below
	}
	return f.Explain(err)
}

// pathsOf returns the paths of one QP on a wrapped NIC.
func pathsOf(ctx verbs.Context, qpn uint32) (paths []measure.Path) {
	lister, ok := ctx.(reliable.PathLister)
	if !ok {
		return nil
	}
	for _, p := range lister.PathsOf(qpn) {
		paths = append(paths, measure.Path{
			QPN: p.QPN, State: p.State.String(), Sent: p.Sent, Retransmitted: p.Retransmitted, Lost: p.Lost,
			RTT: float64(p.RTT) / 1e3, QueueDelay: float64(p.QueueDelay()) / 1e3,
		})
	}
	return paths
}

// healthOf returns the counters of a software NIC, or of one of its QPs if qpn is not 0. ok is false for hardware NICs
// and for QPs on wrapped NICs.
func healthOf(ctx verbs.Context, qpn uint32) (h measure.Health, ok bool) {
	nic, wrapped := softNIC(ctx)
	switch {
	case nic == nil || wrapped && qpn != 0:
		return h, false
	case qpn != 0:
		s, ok := nic.QPStats(qpn)
		return measure.Health{Lost: s.GoBacks, Retransmits: s.Retransmits, Timeouts: s.Timeouts, NAKs: s.NAKsSent, RNRs: s.RNRNAKsSent}, ok
	}
	s := nic.Stats()
	seals := &s.Seals
	return measure.Health{
		Sent: s.PacketsSent, Lost: s.GoBacks, Retransmits: s.Retransmits, Timeouts: s.Timeouts,
		NAKs: s.NAKsSent, RNRs: s.RNRNAKsSent, BadICRC: s.BadICRC,
		Drops: s.MessagesDropped + s.WritesBlocked + s.UnknownQP + s.NotReady + s.WrongSource + s.BadQKey + s.BadPKey + s.Malformed +
			s.SendDrops + s.Unroutable + s.PortDownDrops +
			seals.Bad + seals.Replayed + seals.Old + seals.Unknown + seals.Wrong + seals.Plain,
	}, true
}

// lendReceives sets the number of receive buffers of wrapped rails for the lanes of each. It refuses more than Config.Lend.
func lendReceives(c *measure.Config, rails []ibverbx.RailConfig, cfg *reliable.Config, lanes int) error {
	cfg.PathRecv, cfg.RecvBytes = wrapPathRecvs, 0
	for i := range rails {
		attr, err := rails[i].Context.QueryDevice()
		if err != nil {
			return err
		}
		recvs := wrapRecvs * lanes
		switch {
		case cfg.Carrier == verbs.UD:
			recvs = max(recvs, wrapDatagrams)
		case attr.Capabilities&verbs.CapSRQOnUC == 0:
			recvs = wrapPaths(cfg) * wrapPathRecvs * lanes
		}
		cfg.RecvBytes = max(cfg.RecvBytes, min(max(recvs, minWrapRecvs), maxWrapRecvs)*cfg.ChunkOn(rails[i].Context))
	}
	if bytes := cfg.RecvBytes * len(rails); c.Lend > 0 && bytes > c.Lend {
		return refuse(fmt.Sprintf("--transport %s with %d lanes", c.Transport, c.QPs),
			fmt.Sprintf("the receives would take %d MiB of the server, which has %d left to lend", bytes>>20, c.Lend>>20),
			"use fewer --lanes or fewer --rails, or start the server with a larger --lend")
	}
	return nil
}
