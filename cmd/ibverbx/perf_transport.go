package main

import (
	"cmp"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/internal/perf/measure"
	"ibverbx/reliable"
	"ibverbx/settings"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Receive buffers of a wrapped NIC, which builds RC QPs from UC QPs.
const (
	// wrapPathRecvs is the number of receives per UC QP on NICs without SRQs for UC.
	wrapPathRecvs = 8
	// wrapRecvs is the number of receives per RC QP on other NICs: twice the 16 that reliable.Config.RecvDepth
	// requires, so that lanes can be replaced.
	wrapRecvs    = 32
	minWrapRecvs = 512
	maxWrapRecvs = 1 << 15
	// wrapMoreLanes counts the message lane, the notify lane and one lane being replaced.
	wrapMoreLanes = 3
)

// wrapPaths returns the number of UC QPs per RC QP.
func wrapPaths(cfg *reliable.Config) int { return cmp.Or(cfg.Paths, 16) }

// set applies the settings to all rails.
func (n *nics) set(c *measure.Config, s *settings.Settings) error {
	for end := range n.ends {
		if err := s.Apply(n.ends[end]); err != nil {
			return err
		}
	}
	return n.wrap(c, &s.Reliable)
}

// wrap replaces each rail's NIC with one that builds RC QPs from UC QPs, if the test uses that transport. The caller
// closes n, even after an error.
func (n *nics) wrap(c *measure.Config, cfg *reliable.Config) error {
	if c.Transport != measure.TransportUC {
		return nil
	}
	for end := range n.ends {
		rails := max(len(n.ends[end]), 1) // the end may have fewer rails than requested
		lanes := (c.QPs+rails-1)/rails + wrapMoreLanes
		if err := lendReceives(c, n.ends[end], cfg, lanes); err != nil {
			return err
		}
		for i := range n.ends[end] {
			rail := &n.ends[end][i]
			ctx, err := wrapContext(rail.Context, *cfg, lanes)
			if err != nil {
				return err
			}
			n.closers.Add(ctx.Close) // runs first and makes the inner Close a no-op
			rail.Context = ctx
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
	device := ctx.Device()
	wrapped, isWrapped := device.(interface{ Unwrap() verbs.Device })
	if isWrapped {
		device = wrapped.Unwrap()
	}
	nic, ok := device.(*softnic.NIC)
	switch {
	case !ok || isWrapped && qpn != 0:
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

// lendReceives rejects a test whose receive buffers on the wrapped rails of one end exceed Config.Lend.
func lendReceives(c *measure.Config, rails []ibverbx.RailConfig, cfg *reliable.Config, lanes int) error {
	if c.Lend == 0 {
		return nil
	}
	bytes := 0
	for i := range rails {
		recvs, err := receivesOf(rails[i].Context, cfg, lanes)
		if err != nil {
			return err
		}
		bytes += recvs * cfg.ChunkOn(rails[i].Context)
	}
	if bytes > c.Lend {
		return refuse(fmt.Sprintf("--transport uc with %d lanes", c.QPs),
			fmt.Sprintf("the receives would take %d MiB of the server, which has %d left to lend", bytes>>20, c.Lend>>20),
			"use fewer --lanes or fewer --rails, or start the server with a larger --lend")
	}
	return nil
}

// receivesOf returns the number of receives a NIC needs for the given number of lanes.
func receivesOf(ctx verbs.Context, cfg *reliable.Config, lanes int) (int, error) {
	attr, err := ctx.QueryDevice()
	recvs := wrapRecvs * lanes
	if attr.Capabilities&verbs.CapSRQOnUC == 0 {
		recvs = wrapPaths(cfg) * wrapPathRecvs * lanes
	}
	return min(max(recvs, minWrapRecvs), maxWrapRecvs), err
}

// wrapContext wraps ctx in a NIC that builds RC QPs, one per lane, from UC QPs.
func wrapContext(ctx verbs.Context, cfg reliable.Config, lanes int) (verbs.Context, error) {
	recvs, err := receivesOf(ctx, &cfg, lanes)
	if err != nil {
		return nil, err
	}
	cfg.PathRecv, cfg.RecvDepth = wrapPathRecvs, recvs
	wrapped, err := reliable.Wrap(ctx, cfg)
	name := ctx.Device().Name()
	switch {
	case errors.Is(err, reliable.ErrNoUC):
		return nil, fmt.Errorf("--transport uc: %s: %w; use --transport rc", name, reliable.ErrNoUC)
	case errors.Is(err, verbs.ErrNotSupported):
		return nil, fmt.Errorf("--transport uc: %w; use --transport rc with %s", err, name)
	}
	return wrapped, err
}
