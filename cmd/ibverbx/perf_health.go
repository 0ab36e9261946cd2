package main

import (
	"ibverbx/internal/perf/measure"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

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
