package failover_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// duo is two hosts on links with a virtual clock, connected with a Control.
type duo struct {
	t     *testing.T
	now   int64
	tick  int64 // how far a step moves the clock, in nanoseconds; 0 means 20 us
	links []*softnic.FaultLink
	hosts [2]*enginetest.Host
	// steppers are the wrapped contexts, whose timers follow the clock.
	steppers []reliable.Stepper
	// got are the completions that each host has polled, in order.
	got [2][]ibverbx.WC
}

func newDuo(t *testing.T, rails int, cfg ibverbx.Config) *duo {
	t.Helper()
	d, _ := newTappedDuo(t, rails, cfg, ibverbx.CQConfig{Waker: verbs.NewWaker()})
	return d
}

// newTappedDuo is newDuo with a filter for the control messages that each host sends.
func newTappedDuo(t *testing.T, rails int, cfg ibverbx.Config, cqcfg ibverbx.CQConfig) (*duo, [2]*tapped) {
	t.Helper()
	return newDuoOver(t, make([]*reliable.Config, rails), cfg, cqcfg)
}

// newDuoOver is newTappedDuo with a Config for each rail that package reliable wraps, and nil for
// the others.
func newDuoOver(t *testing.T, wraps []*reliable.Config, cfg ibverbx.Config, cqcfg ibverbx.CQConfig) (*duo, [2]*tapped) {
	t.Helper()
	return newDuoWithin(t, make([]enginetest.Limits, len(wraps)), wraps, cfg, cqcfg)
}

// newDuoWithin is newDuoOver with the limits of the NIC of each rail.
func newDuoWithin(t *testing.T, limits []enginetest.Limits, wraps []*reliable.Config, cfg ibverbx.Config, cqcfg ibverbx.CQConfig) (*duo, [2]*tapped) {
	t.Helper()
	over := func(rail int, nic verbs.Context) verbs.Context { return limits[rail].Over(nic) }
	d, taps := newStrangers(t, over, wraps, cfg, cqcfg)
	enginetest.Connect(t, d.hosts[0].QP, d.hosts[1].QP)
	return d, taps
}

// newStrangers returns an unconnected duo. over wraps the NIC of each rail.
func newStrangers(t *testing.T, over func(int, verbs.Context) verbs.Context, wraps []*reliable.Config, cfg ibverbx.Config, cqcfg ibverbx.CQConfig) (*duo, [2]*tapped) {
	t.Helper()
	d := &duo{t: t}
	clock := func() int64 { return d.now }
	var links []softnic.Link
	for i := range wraps {
		l, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(i), Now: clock, Impairment: softnic.Impairment{Delay: 30 * time.Microsecond}})
		enginetest.Must(t, err)
		d.links = append(d.links, l)
		links = append(links, l)
	}
	a, b := ibverbx.ControlPair()
	taps := [2]*tapped{{Control: a}, {Control: b}}
	for i := range taps {
		cfg.Control, cfg.Now, cfg.Incarnation = taps[i], clock, uint64(100+i)
		d.hosts[i] = enginetest.NewRailsOver(t, links, func(rail int, inner verbs.Context) verbs.Context {
			inner = over(rail, inner)
			if wraps[rail] == nil {
				return inner
			}
			c := *wraps[rail]
			c.Now = clock
			ctx, err := reliable.Wrap(inner, c)
			enginetest.Must(t, err)
			d.steppers = append(d.steppers, ctx.(reliable.Stepper))
			return ctx
		})
		d.hosts[i].NewCQ(cqcfg)
		d.hosts[i].NewQP(cfg)
	}
	return d, taps
}

// tapped is a Control with a filter in front of Send.
type tapped struct {
	ibverbx.Control
	// pass reports whether a message is sent; nil passes all.
	pass func(b []byte) bool
	// err is returned by Send for a blocked message. If nil, the message is lost silently.
	err error
}

func (c *tapped) Send(b []byte) error {
	if c.pass != nil && !c.pass(b) {
		return c.err
	}
	return c.Control.Send(b)
}

// step polls both hosts, moves the clock by a tick, and runs the links.
func (d *duo) step() {
	d.t.Helper()
	var wcs [16]ibverbx.WC
	for i, h := range d.hosts {
		n, err := h.CQ.Poll(wcs[:])
		enginetest.Must(d.t, err)
		d.got[i] = append(d.got[i], wcs[:n]...)
	}
	d.now += cmp.Or(d.tick, int64(20*time.Microsecond))
	for _, l := range d.links {
		l.Step()
	}
	for _, s := range d.steppers {
		s.Step()
	}
}

// until steps until holds reports true, for at most a minute of virtual time.
func (d *duo) until(what string, holds func() bool) {
	d.t.Helper()
	for end := d.now + int64(time.Minute); !holds(); d.step() {
		if d.now > end {
			d.t.Fatalf("not within a minute: %s\n%+v\n%+v", what, d.hosts[0].QP.Stats(), d.hosts[1].QP.Stats())
		}
	}
}

// kill moves a host's lane to ERR, as a NIC would.
func (d *duo) kill(host, lane int) {
	d.t.Helper()
	s := d.hosts[host].QP.Stats().Lanes[lane]
	_ = d.hosts[host].NICs[s.Rail].FailQP(s.QPN) // it may be out of service already
}

// allUp reports whether all lanes of both hosts are in service.
func (d *duo) allUp() bool {
	for _, h := range d.hosts {
		for _, l := range h.QP.Stats().Lanes {
			if l.State != "up" {
				return false
			}
		}
	}
	return true
}

// post posts notified WRITEs from one region to another, each of n bytes at its own offset, and
// a receive for each.
func (d *duo) post(first, count int, n uint32, local, remote *ibverbx.Region) {
	d.t.Helper()
	for i := first; i < first+count; i++ {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i), Remote: remote.Remote(), RemoteOffset: uint64(i) * uint64(n)}
		wr.SetSGE(local.SGE(uint64(i)*uint64(n), n))
		d.hosts[0].PostSend(wr)
		d.hosts[1].PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
	}
}

// check fails unless every message completed once, successfully and in order at both hosts, and
// all bytes arrived.
func (d *duo) check(messages int, local, remote *ibverbx.Region) {
	d.t.Helper()
	for i, side := range []string{"sender", "receiver"} {
		if len(d.got[i]) != messages {
			d.t.Fatalf("%s: %d completions, want %d", side, len(d.got[i]), messages)
		}
		for k, wc := range d.got[i] {
			if wc.WRID != uint64(k) || wc.Err() != nil {
				d.t.Fatalf("%s: completion %d is of %d: %v", side, k, wc.WRID, wc.Err())
			}
			if wc.Flags&ibverbx.WCHasImm != 0 && i == 1 && wc.Imm != uint32(k) {
				d.t.Fatalf("immediate of message %d is %d", k, wc.Imm)
			}
		}
	}
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		d.t.Error("the bytes differ")
	}
}

// TestLaneDeath kills each lane in sequence, at either side, while messages are in flight: no message is
// lost, and the lane is rebuilt.
func TestLaneDeath(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for host := range 2 {
			for lane := range 6 { // four for data, one for messages, one for notifications
				if lane == 4 || (lane == 5 && scheme != ibverbx.Spray) {
					continue // these messages do not use the message lane
				}
				t.Run(fmt.Sprintf("host=%d/lane=%d", host, lane), func(t *testing.T) {
					d := newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096})
					const messages, size = 8, 65536
					local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
					enginetest.Fill(local.Bytes(), 1)
					d.post(0, 4, size, local, remote)
					d.step()
					d.kill(host, lane)
					d.step()
					d.post(4, 4, size, local, remote)
					d.until("all complete", func() bool { return len(d.got[0]) == messages && len(d.got[1]) == messages })
					d.check(messages, local, remote)
					d.until("all lanes are back", d.allUp)
					if s := d.hosts[host].QP.Stats().Lanes[lane]; s.Generation == 0 || s.Deaths == 0 {
						t.Errorf("lane after its death: %+v", s)
					}
				})
			}
		}
	})
}

// TestRailLoss cuts a rail with half of the lanes under load. When the rail is restored, its
// lanes return.
func TestRailLoss(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for rail := range 2 {
			d := newDuo(t, 2, ibverbx.Config{Lanes: 8, Scheme: scheme, FragmentSize: 4096})
			const messages, size = 8, 65536
			local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
			enginetest.Fill(local.Bytes(), 2)
			a, b := d.hosts[0].NICs[rail], d.hosts[1].NICs[rail]
			d.post(0, messages, size, local, remote)
			d.step()
			d.links[rail].Cut(a, b)
			d.links[rail].Cut(b, a)
			d.until("all complete on the other rail", func() bool { return len(d.got[0]) == messages && len(d.got[1]) == messages })
			d.check(messages, local, remote)
			d.links[rail].Restore(a, b)
			d.links[rail].Restore(b, a)
			d.until("all lanes are back", d.allUp)
			seen := map[ibverbx.EventKind]bool{}
			var events [64]ibverbx.Event
			for _, e := range events[:d.hosts[0].CQ.Events(events[:])] {
				seen[e.Kind] = true
			}
			for _, kind := range []ibverbx.EventKind{ibverbx.EventLaneDown, ibverbx.EventLaneUp, ibverbx.EventRailDown, ibverbx.EventRailUp, ibverbx.EventRecovered} {
				if !seen[kind] {
					t.Errorf("no event %q", kind)
				}
			}
		}
	})
}

// TestDeadline: with every rail and the control channel cut, requests end at their deadline, in
// order.
func TestDeadline(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: 3 * time.Second})
	local, remote := d.hosts[0].Region(4*4096), d.hosts[1].Region(4*4096)
	a, b := d.hosts[0].NICs[0], d.hosts[1].NICs[0]
	d.links[0].Cut(a, b)
	d.links[0].Cut(b, a)
	d.post(0, 4, 4096, local, remote)
	start := d.now
	d.until("all ended", func() bool { return len(d.got[0]) == 4 })
	if took := time.Duration(d.now - start); took < 3*time.Second || took > 4*time.Second {
		t.Errorf("they ended after %v, want 3 s", took)
	}
	for i, wc := range d.got[0] {
		if wc.WRID != uint64(i) || wc.Status == verbs.StatusSuccess {
			t.Errorf("completion %d is of %d: %v", i, wc.WRID, wc.Err())
		}
	}
	if err := d.hosts[0].QP.Err(); !errors.Is(err, ibverbx.ErrDeadline) {
		t.Errorf("Err = %v, want %v", err, ibverbx.ErrDeadline)
	}
	d.until("the peer knows", func() bool { return d.hosts[1].QP.Err() != nil })
	if err := d.hosts[1].QP.Err(); !errors.Is(err, ibverbx.ErrPeerGone) {
		t.Errorf("Err of the peer = %v, want %v", err, ibverbx.ErrPeerGone)
	}
}

// TestAtomicInDoubt: an atomic whose lane died is not repeated. The atomic fails. The VirtualQP
// fails too, unless it is configured to stay up.
func TestAtomicInDoubt(t *testing.T) {
	for _, keep := range []bool{false, true} {
		d := newDuo(t, 1, ibverbx.Config{Lanes: 2, KeepAtomics: keep})
		local, remote := d.hosts[0].Region(64), d.hosts[1].Region(64)
		a, b := d.hosts[0].NICs[0], d.hosts[1].NICs[0]
		d.links[0].Cut(b, a) // the atomic is executed, and its response is lost
		add := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, Remote: remote.Remote(), CompareAdd: 1}
		add.SetSGE(local.SGE(0, 8))
		d.hosts[0].PostSend(add)
		d.step()
		d.step()
		d.kill(0, 2)
		d.until("it has ended", func() bool { return len(d.got[0]) == 1 })
		if d.got[0][0].Status == verbs.StatusSuccess {
			t.Errorf("the atomic succeeded: %+v", d.got[0][0])
		}
		if err := d.got[0][0].Err(); !errors.Is(err, ibverbx.ErrAtomicInDoubt) {
			t.Errorf("KeepAtomics %v: the completion has %v, want %v", keep, err, ibverbx.ErrAtomicInDoubt)
		}
		if d.got[0][0].Flags&ibverbx.WCInDoubt == 0 {
			t.Errorf("KeepAtomics %v: the completion %+v has no WCInDoubt", keep, d.got[0][0])
		}
		if err := d.hosts[0].QP.Err(); !keep && !errors.Is(err, ibverbx.ErrAtomicInDoubt) {
			t.Errorf("Err = %v, want %v", err, ibverbx.ErrAtomicInDoubt)
		}
		if up := d.hosts[0].QP.Err() == nil; up != keep {
			t.Errorf("KeepAtomics %v: Err = %v", keep, d.hosts[0].QP.Err())
		}
		if remote.Bytes()[0] != 1 {
			t.Errorf("the counter is %d, want 1", remote.Bytes()[0])
		}
	}
}
