package reliable_test

import (
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// look is the time between two polls of the hosts of lateHosts.
const look = 100 * time.Microsecond

// lateHosts writes 4 MiB between two hosts that poll their CQs only every look. The network round trip takes
// 20 us. It returns the duration of the transfer, and the minimum and the typical round-trip time of path 0.
func lateHosts(t *testing.T, cfg reliable.Config, between func(verbs.Context) verbs.Context) (took, least, usual time.Duration) {
	t.Helper()
	const size = 4 << 20
	now := int64(1)
	cfg.Now = func() int64 { return now }
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 3, Now: cfg.Now, Impairment: softnic.Impairment{Delay: 10 * time.Microsecond}})
	must(t, err)
	a, b := newSideOver(t, link, cfg, size, between), newSideOver(t, link, cfg, size, between)
	connect(t, a, b)
	a.post(t, a.write(b, 0, size))
	for ; now < int64(time.Minute); now += int64(look) {
		for {
			at, pending := link.Next()
			if !pending || at > now {
				break
			}
			then := now
			now = max(at, 1)
			link.Step()
			now = then
		}
		var wc [1]verbs.WC
		if n, err := a.cq.Poll(wc[:]); n == 1 {
			must(t, wc[0].Err())
			s := a.qp.(reliable.StatsReader).Paths()[0].PathStats
			return time.Duration(now), time.Duration(s.LeastRTT), time.Duration(s.RTT)
		} else if err != nil {
			t.Fatalf("Poll = %v, want none", err)
		}
		b.ctx.(reliable.Stepper).Step()
	}
	t.Fatalf("a WRITE of 4 MiB has not ended after a minute of virtual time")
	return 0, 0, 0
}

// TestLateHosts: with NIC timestamps, the time that completions wait on a slow host does not count as network
// delay.
func TestLateHosts(t *testing.T) {
	same := func(c verbs.Context) verbs.Context { return c }
	hide := func(c verbs.Context) verbs.Context { return &interposer{Context: c, hide: verbs.CapTimestamp} }
	took, least, usual := lateHosts(t, reliable.Config{}, same)
	if least < 20*time.Microsecond || usual > 30*time.Microsecond {
		t.Errorf("with timestamps round trips take %v, at least %v, want about 20 us", usual, least)
	}
	before, _, late := lateHosts(t, reliable.Config{}, hide)
	if late < look {
		t.Errorf("without timestamps round trips take %v, want at least %v: are the hosts late?", late, look)
	}
	t.Logf("hosts that look every %v measure round trips of %v with timestamps and of %v without, and move 4 MiB in %v and %v",
		look, usual, late, took, before)
	// Without timestamps the minimum round trip includes the wait, which does not count as a queue.
	if fixed, _, _ := lateHosts(t, reliable.Config{WindowBytes: 4 << 20}, same); took > 10*fixed || before > 10*fixed {
		t.Errorf("4 MiB take %v with timestamps and %v without, want at most ten times the %v of a fixed window", took, before, fixed)
	}
}

// TestRoundTripAfterClose: an acknowledgement that waits while another QP of the engine is closed measures the round trip
// of the network, not less.
func TestRoundTripAfterClose(t *testing.T) {
	const delay = 10 * time.Microsecond
	now := int64(1)
	cfg := reliable.Config{Now: func() int64 { return now }}
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 3, Now: cfg.Now, Impairment: softnic.Impairment{Delay: delay}})
	must(t, err)
	a, b := newSide(t, link, cfg, 4096), newSide(t, link, cfg, 4096)
	connect(t, a, b)
	other, err := a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 1, MaxRecvWR: 1})
	must(t, err)
	_, err = other.Endpoint()
	must(t, err)
	a.post(t, a.write(b, 0, 4096))
	for range 2 {
		now += int64(delay)
		link.Step()
		b.ctx.(reliable.Stepper).Step()
	}
	must(t, other.Close())
	var wc [1]verbs.WC
	if n, err := a.cq.Poll(wc[:]); n != 1 || err != nil {
		t.Fatalf("Poll = %d, %v, want the WRITE", n, err)
	}
	for i, p := range a.qp.(reliable.StatsReader).Paths() {
		if p.Sent > 0 && p.LeastRTT < int64(2*delay) {
			t.Errorf("path %d has measured a round trip of %d ns, want at least %d", i, p.LeastRTT, int64(2*delay))
		}
	}
}
