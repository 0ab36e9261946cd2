package main

import (
	"cmp"
	"errors"
	"fmt"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// Limits of a wrapped NIC, which builds RC QPs from UC or UD QPs.
const (
	// wrapBytes limits the receives of a rail, which grow with its lanes, unless a server lends less.
	wrapBytes = 2 << 30
	// wrapMoreLanes counts the message lane, the notify lane and one lane being replaced.
	wrapMoreLanes = 3
)

// wrapPaths returns the number of paths per RC QP.
func wrapPaths(cfg *reliable.Config) int { return cmp.Or(cfg.Paths, 16) }

// prepare applies the settings to the NICs of an end. The caller closes n, even after an error.
func (f *perfFlags) prepare(c *measure.Config, n *nics, end int) error {
	fabric := f.Fabric
	fabric.Transport = c.Transport
	rails := max(len(n.ends[end]), 1) // the end may have fewer rails than requested
	fabric.Reliable.RecvBytes = wrapBytes
	if c.Lend > 0 {
		fabric.Reliable.RecvBytes = max(c.Lend/rails, 1)
	}
	open := peer.NICs{Rails: n.ends[end]}
	err := fabric.Prepare(&open)
	n.ends[end] = open.Rails
	if open.Close != nil {
		n.closers.Add(open.Close) // before the NICs below
	}
	if c.Transport.Carrier() == 0 || c.Lend == 0 || err != nil && !errors.Is(err, verbs.ErrInvalid) {
		return f.Explain(err)
	}
	lanes := (c.QPs+rails-1)/rails + wrapMoreLanes
	for i := range open.Rails {
		if attr, failed := open.Rails[i].Context.QueryDevice(); err != nil || failed != nil || attr.MaxQP < lanes {
			return errors.Join(failed, refuse(fmt.Sprintf("--transport %s with %d lanes", c.Transport, c.QPs),
				fmt.Sprintf("a rail needs receives for %d QPs, which take more than its part of the %d MiB that the server has left to lend", lanes, c.Lend>>20),
				"use fewer --lanes or fewer --rails, or start the server with a larger --lend"))
		}
	}
	return nil
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
