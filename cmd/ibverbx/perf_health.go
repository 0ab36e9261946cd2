package main

import (
	"cmp"
	"fmt"
	"strings"

	"ibverbx/internal/perf"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// healthOf returns the counters of a software NIC, or of a QP of it. Real NICs, and QPs made of paths, have none
// here.
func healthOf(ctx verbs.Context, qpn uint32) (h perf.Health, ok bool) {
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
		return perf.Health{Lost: s.Retransmits, Retransmits: s.Retransmits, Timeouts: s.Timeouts, NAKs: s.NAKsSent, RNRs: s.RNRNAKsSent}, ok
	}
	s := nic.Stats()
	seals := &s.Seals
	return perf.Health{
		Sent: s.PacketsSent, Lost: s.Retransmits, Retransmits: s.Retransmits, Timeouts: s.Timeouts,
		NAKs: s.NAKsSent, RNRs: s.RNRNAKsSent, BadICRC: s.BadICRC,
		Drops: s.MessagesDropped + s.WritesBlocked + s.UnknownQP + s.NotReady + s.WrongSource + s.BadQKey + s.BadPKey + s.Malformed +
			s.SendDrops + s.Unroutable + s.PortDownDrops +
			seals.Bad + seals.Replayed + seals.Old + seals.Unknown + seals.Wrong + seals.Plain,
	}, true
}

// endsText names the two ends of a rail, by address if they have one. Names of NICs of two processes may be the same.
func endsText(rail *perf.Rail, processes bool) string {
	if processes && rail.Addr == "" {
		return rail.Device + " of the client -> " + rail.Peer + " of the server"
	}
	return cmp.Or(rail.Addr, rail.Device) + " -> " + cmp.Or(rail.PeerAddr, rail.Peer)
}

// healthText lists what was counted, empty if it is nothing.
func healthText(h *perf.Health) string {
	if h == nil {
		return ""
	}
	var parts []string
	for _, c := range []struct {
		n    uint64
		name string
	}{
		{h.Lost, "lost"},
		{h.Retransmits, "retransmits"},
		{h.Timeouts, "timeouts"},
		{h.NAKs, "NAKs"},
		{h.RNRs, "RNRs"},
		{h.BadICRC, "bad ICRC"},
		{h.Drops, "drops"},
	} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.name))
		}
	}
	if h.RTTp50 > 0 {
		parts = append(parts, fmt.Sprintf("RTT p50 %.1f p99 %.1f usec", h.RTTp50, h.RTTp99))
	}
	return strings.Join(parts, ", ")
}
