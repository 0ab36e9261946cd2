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

// Sizes of a wrapped NIC, whose RC QPs are made of UC QPs.
const (
	// wrapPathRecvs is how many receives each UC QP has if they cannot share them.
	wrapPathRecvs = 8
	// wrapRecvs is how many receives a NIC has for each RC QP, otherwise: twice what
	// reliable.Config.RecvDepth wants, so that lanes can be replaced.
	wrapRecvs    = 32
	minWrapRecvs = 512
	maxWrapRecvs = 1 << 15
	// wrapMoreLanes are the message lane, the notify lane and one that is being replaced.
	wrapMoreLanes = 3
)

// wrapPaths is how many UC QPs an RC QP has.
func wrapPaths(cfg *reliable.Config) int { return cmp.Or(cfg.Paths, 16) }

// set gives the rails their settings.
func (n *nics) set(c *measure.Config, s *settings.Settings) error {
	for end := range n.ends {
		if err := s.Apply(n.ends[end]); err != nil {
			return err
		}
	}
	return n.wrap(c, &s.Reliable)
}

// wrap makes RC QPs of the rails out of UC QPs if the test wants that. The caller closes them,
// also after an error.
func (n *nics) wrap(c *measure.Config, cfg *reliable.Config) error {
	if c.Transport != measure.TransportUC {
		return nil
	}
	for end := range n.ends {
		rails := max(len(n.ends[end]), 1) // there may be fewer than the test wants
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
			n.closers.Add(ctx.Close) // before that of the inner one, which then does nothing
			rail.Context = ctx
		}
	}
	return nil
}

// pathsOf returns the paths of a QP of a wrapped NIC.
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

// healthOf returns the counters of a software NIC, or of a QP of it. Real NICs, and QPs made of paths, have none
// here.
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
		return measure.Health{Lost: s.Retransmits, Retransmits: s.Retransmits, Timeouts: s.Timeouts, NAKs: s.NAKsSent, RNRs: s.RNRNAKsSent}, ok
	}
	s := nic.Stats()
	seals := &s.Seals
	return measure.Health{
		Sent: s.PacketsSent, Lost: s.Retransmits, Retransmits: s.Retransmits, Timeouts: s.Timeouts,
		NAKs: s.NAKsSent, RNRs: s.RNRNAKsSent, BadICRC: s.BadICRC,
		Drops: s.MessagesDropped + s.WritesBlocked + s.UnknownQP + s.NotReady + s.WrongSource + s.BadQKey + s.BadPKey + s.Malformed +
			s.SendDrops + s.Unroutable + s.PortDownDrops +
			seals.Bad + seals.Replayed + seals.Old + seals.Unknown + seals.Wrong + seals.Plain,
	}, true
}

// lendReceives refuses a test if the receives of the wrapped rails of an end need more memory than
// Config.Lend allows.
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

// receivesOf is how many receives a NIC gets for so many lanes.
func receivesOf(ctx verbs.Context, cfg *reliable.Config, lanes int) (int, error) {
	attr, err := ctx.QueryDevice()
	recvs := wrapRecvs * lanes
	if attr.Capabilities&verbs.CapSRQOnUC == 0 {
		recvs = wrapPaths(cfg) * wrapPathRecvs * lanes
	}
	return min(max(recvs, minWrapRecvs), maxWrapRecvs), err
}

// wrapContext returns a NIC whose RC QPs, one for each lane, are made of UC QPs of ctx.
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
