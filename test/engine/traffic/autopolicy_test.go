package traffic_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// transfer is a transfer between two hosts in virtual time, over rails of given speeds.
type transfer struct {
	t     *testing.T
	now   int64
	links []*softnic.FaultLink
	hosts [2]*enginetest.Host
	steps []reliable.Stepper // contexts that keep their own timers
	wr    ibverbx.SendWR
	depth int // messages in flight
	size  int // message size in bytes
	// outstanding counts requests posted but not completed.
	outstanding int
	calls       int // posts and polls of the sender
	reads       int // clock reads by the sender
}

// transferConfig configures a transfer.
type transferConfig struct {
	ibverbx.Config
	op       verbs.Opcode
	size     int
	depth    int
	rates    []float64 // bytes per second by rail
	wrapped  bool      // lanes are QPs of package reliable
	failover bool      // lanes that fail are rebuilt
}

func newHaul(t *testing.T, cfg transferConfig) *transfer {
	t.Helper()
	x := &transfer{t: t, now: 1, depth: cfg.depth, size: cfg.size}
	for i, rate := range cfg.rates {
		l, err := softnic.NewFaultLink(&softnic.FaultConfig{
			Seed: uint64(i), Now: x.clock, Impairment: softnic.Impairment{Delay: 5 * time.Microsecond, Rate: rate},
		})
		enginetest.Must(t, err)
		x.links = append(x.links, l)
	}
	var controls [2]ibverbx.Control
	if cfg.failover {
		controls[0], controls[1] = ibverbx.ControlPair()
	}
	for i := range x.hosts {
		x.hosts[i] = x.newHost(cfg.wrapped)
		x.hosts[i].NewCQ(ibverbx.CQConfig{})
		cfg.Control, cfg.Incarnation, cfg.Now = controls[i], uint64(i+1), x.clock
		if i == 0 {
			cfg.Now = func() int64 { x.reads++; return x.now }
		}
		x.hosts[i].NewQP(cfg.Config)
	}
	enginetest.Connect(t, x.hosts[0].QP, x.hosts[1].QP)
	x.wr = ibverbx.SendWR{Opcode: cfg.op, Flags: verbs.SendSignaled, Remote: x.hosts[1].Region(cfg.size).Remote()}
	x.wr.SetSGE(x.hosts[0].Region(cfg.size).SGE(0, uint32(cfg.size)))
	return x
}

func (x *transfer) clock() int64 { return x.now }

func (x *transfer) newHost(wrapped bool) *enginetest.Host {
	x.t.Helper()
	if !wrapped {
		links := make([]softnic.Link, len(x.links))
		for i, l := range x.links {
			links[i] = l
		}
		return enginetest.NewRails(x.t, links)
	}
	var nics []*softnic.NIC
	var rails []ibverbx.RailConfig
	for _, l := range x.links {
		nic, err := softnic.New(l, softnic.Config{})
		enginetest.Must(x.t, err)
		x.t.Cleanup(func() { enginetest.Must(x.t, nic.Close()) })
		ctx, err := nic.Open()
		enginetest.Must(x.t, err)
		ctx, err = reliable.Wrap(ctx, reliable.Config{Now: x.clock})
		enginetest.Must(x.t, err)
		x.t.Cleanup(func() { enginetest.Must(x.t, ctx.Close()) })
		x.steps = append(x.steps, ctx.(reliable.Stepper))
		nics, rails = append(nics, nic), append(rails, ibverbx.RailConfig{Context: ctx})
	}
	h := enginetest.NewRailsOn(x.t, rails...)
	h.NICs = nics
	return h
}

// slow sets the speed of a rail, in bytes per second and in both directions.
func (x *transfer) slow(rail int, rate float64) {
	x.t.Helper()
	a, b := x.hosts[0].NICs[rail], x.hosts[1].NICs[rail]
	for _, d := range [][2]*softnic.NIC{{a, b}, {b, a}} {
		imp := x.links[rail].Impairment(d[0], d[1])
		imp.Rate = rate
		enginetest.Must(x.t, x.links[rail].Impair(d[0], d[1], imp))
	}
}

// step posts as many messages as may be in flight, moves the clock to the next event, and returns how
// many messages have completed.
func (x *transfer) step() (done int) {
	x.t.Helper()
	for ; x.outstanding < x.depth; x.outstanding++ {
		if x.wr.Opcode == verbs.OpRDMAWriteWithImm {
			x.hosts[1].PostRecv(ibverbx.RecvWR{})
		}
		x.hosts[0].PostSend(x.wr)
		x.calls++
	}
	var wcs [64]ibverbx.WC
	for i, h := range x.hosts {
		for {
			n, err := h.CQ.Poll(wcs[:])
			enginetest.Must(x.t, err)
			for _, wc := range wcs[:n] {
				enginetest.Must(x.t, wc.Err())
			}
			if i == 0 {
				done += n
				x.calls++
			}
			if n == 0 {
				break
			}
		}
	}
	x.outstanding -= done
	next := x.now + int64(time.Millisecond)
	for _, s := range x.steps {
		if at, ok := s.Step(); ok {
			next = min(next, at)
		}
	}
	for _, l := range x.links {
		if at, ok := l.Next(); ok {
			next = min(next, at)
		}
	}
	x.now = max(x.now, next)
	for _, l := range x.links {
		l.Step()
	}
	return done
}

// run returns the goodput over the given number of messages, in bytes per second.
func (x *transfer) run(messages int) float64 {
	x.t.Helper()
	start, done := x.now, 0
	for done < messages {
		done += x.step()
	}
	return float64(done) * float64(x.size) / float64(x.now-start) * 1e9
}

// pass advances time by d.
func (x *transfer) pass(d time.Duration) {
	x.t.Helper()
	for end := x.now + int64(d); x.now < end; {
		x.step()
	}
}

// hiccup stalls a rail for d.
func (x *transfer) hiccup(rail int, d time.Duration) {
	x.t.Helper()
	a, b := x.hosts[0].NICs[rail], x.hosts[1].NICs[rail]
	x.links[rail].Hold(a, b)
	x.pass(d)
	x.links[rail].Release(a, b)
}

// inTurn reports whether the next messages, at least 16 MiB, use all data lanes equally, as round robin
// does.
func (x *transfer) inTurn() bool {
	x.t.Helper()
	before := x.hosts[0].QP.Stats().Lanes
	x.run(16 << 20 / x.size)
	least, most := uint64(math.MaxUint64), uint64(0)
	for i, l := range x.hosts[0].QP.Stats().Lanes {
		if l.Role == "data" {
			n := l.Fragments - before[i].Fragments
			least, most = min(least, n), max(most, n)
		}
	}
	return most-least <= 2 // a fragment, and its record
}

const (
	fastRail = 400e6
	slowRail = 50e6
)

// mainHauls are transfers of each opcode and size, with rails to be filled in. A slice has some of them.
func mainHauls(t *testing.T) []transferConfig {
	return partOf(t, []transferConfig{
		{op: verbs.OpRDMAWrite, size: 64 << 10, depth: 16},
		{op: verbs.OpRDMAWriteWithImm, size: 1 << 20, depth: 4},
		{op: verbs.OpRDMARead, size: 1 << 20, depth: 1},
		{op: verbs.OpRDMAWriteWithImm, size: 64 << 10, depth: 16, failover: true, wrapped: true},
	})
}

// partOf returns the transfers of the slice that runs.
func partOf(t *testing.T, all []transferConfig) (some []transferConfig) {
	for i, cfg := range all {
		if testslice.Of(t).Has(i, len(all)) {
			some = append(some, cfg)
		}
	}
	return some
}

// transferCases are transfers of all kinds, with rails to be filled in. A slice has some of them.
func transferCases(t *testing.T) []transferConfig {
	return append(mainHauls(t), partOf(t, []transferConfig{
		{op: verbs.OpRDMAWrite, size: 1 << 20, depth: 4},
		{op: verbs.OpRDMAWriteWithImm, size: 64 << 10, depth: 16},
		{op: verbs.OpRDMARead, size: 64 << 10, depth: 16},
		{op: verbs.OpRDMAWrite, size: 4096, depth: 64},
		{Config: ibverbx.Config{Scheme: ibverbx.DQPLB}, op: verbs.OpRDMAWriteWithImm, size: 64 << 10, depth: 16},
		{Config: ibverbx.Config{Scheme: ibverbx.Spray}, op: verbs.OpRDMAWriteWithImm, size: 64 << 10, depth: 16},
		{op: verbs.OpRDMARead, size: 1 << 20, depth: 4, wrapped: true},
		{op: verbs.OpRDMAWriteWithImm, size: 64 << 10, depth: 16, failover: true},
	})...)
}

func (cfg *transferConfig) name() string {
	return fmt.Sprintf("%v/%v/size=%d/depth=%d/wrapped=%v/failover=%v", cfg.op, cfg.Scheme, cfg.size, cfg.depth, cfg.wrapped, cfg.failover)
}

// TestAutoPolicyUnequalRails: one rail has an eighth of the other's speed, and neither port reports a
// speed. AutoPolicy carries at least 9 of 10 bytes that TwoChoices carries. Round robin does not.
func TestAutoPolicyUnequalRails(t *testing.T) {
	for _, cfg := range transferCases(t) {
		t.Run(cfg.name(), func(t *testing.T) {
			cfg.rates = []float64{fastRail, slowRail}
			rate := map[ibverbx.Policy]float64{}
			for _, cfg.Policy = range []ibverbx.Policy{ibverbx.AutoPolicy, ibverbx.RoundRobin, ibverbx.TwoChoices} {
				x := newHaul(t, cfg)
				x.run(24 << 20 / x.size)
				rate[cfg.Policy] = x.run(40 << 20 / x.size)
			}
			if rate[ibverbx.AutoPolicy] < 0.9*rate[ibverbx.TwoChoices] {
				t.Errorf("%.0f MB/s, want 0.9 of the %.0f MB/s of TwoChoices",
					rate[ibverbx.AutoPolicy]/1e6, rate[ibverbx.TwoChoices]/1e6)
			}
			if rate[ibverbx.RoundRobin] > 0.7*rate[ibverbx.TwoChoices] {
				t.Errorf("round robin carries %.0f MB/s: the test does not tell the policies apart", rate[ibverbx.RoundRobin]/1e6)
			}
		})
	}
}

// TestAutoPolicyEqualRails: on rails of the same speed AutoPolicy is round robin all the time. Once it
// has learned that, it reads the clock in fewer than 1 of 20 calls.
func TestAutoPolicyEqualRails(t *testing.T) {
	for _, rails := range []int{2, 4} { // either cuts a MiB into equal parts
		for _, cfg := range transferCases(t) {
			t.Run(fmt.Sprintf("rails=%d/%s", rails, cfg.name()), func(t *testing.T) {
				cfg.rates = slices.Repeat([]float64{fastRail}, rails)
				x := newHaul(t, cfg)
				for part := range 4 {
					if !x.inTurn() {
						t.Fatalf("after %d parts lanes are not used in turn: %+v", part, x.hosts[0].QP.Stats().Lanes)
					}
					if part == 1 {
						x.reads, x.calls = 0, 0
					}
				}
				if !cfg.failover && x.reads > x.calls/20 {
					t.Errorf("%d readings of the clock in %d calls, want fewer than 1 in 20", x.reads, x.calls)
				}
			})
		}
	}
}

// TestAutoPolicyRailSlowsDown: a rail becomes slow, and fast again, while messages flow. AutoPolicy
// follows in both directions.
func TestAutoPolicyRailSlowsDown(t *testing.T) {
	for _, cfg := range mainHauls(t) {
		t.Run(cfg.name(), func(t *testing.T) {
			cfg.rates = []float64{slowRail, fastRail}
			cfg.Policy = ibverbx.TwoChoices
			want := newHaul(t, cfg)
			want.run(24 << 20 / cfg.size)
			cfg.rates[0], cfg.Policy = fastRail, ibverbx.AutoPolicy
			x := newHaul(t, cfg)
			x.run(32 << 20 / x.size)
			x.slow(0, slowRail)
			x.run(80 << 20 / x.size)
			if got, best := x.run(40<<20/x.size), want.run(40<<20/x.size); got < 0.9*best {
				t.Errorf("%.0f MB/s after a rail has become slow, want 0.9 of the %.0f MB/s of TwoChoices", got/1e6, best/1e6)
			}
			x.slow(0, fastRail)
			for part := 0; !x.inTurn(); part++ {
				if part == 40 {
					t.Fatalf("long after both rails are fast lanes are not used in turn: %+v", x.hosts[0].QP.Stats().Lanes)
				}
			}
		})
	}
}

// TestAutoPolicyHiccup: a rail stalls for 2 ms, once. It soon stops counting as slow, and both rails carry
// their full share.
func TestAutoPolicyHiccup(t *testing.T) {
	for _, cfg := range mainHauls(t) {
		t.Run(cfg.name(), func(t *testing.T) {
			cfg.rates = []float64{fastRail, fastRail}
			x := newHaul(t, cfg)
			before := x.run(32 << 20 / x.size)
			for rail := range 2 {
				x.hiccup(rail, 2*time.Millisecond)
				x.run(32 << 20 / x.size)
				if after := x.run(32 << 20 / x.size); after < 0.95*before {
					t.Errorf("%.0f MB/s after a hiccup of rail %d, want %.0f", after/1e6, rail, before/1e6)
				}
				for part := 0; !x.inTurn(); part++ {
					if part == 20 {
						t.Fatalf("long after a hiccup of rail %d lanes are not used in turn: %+v", rail, x.hosts[0].QP.Stats().Lanes)
					}
				}
			}
		})
	}
}

// TestAutoPolicyRailLost: one of two rails of unequal speed is lost and returns. AutoPolicy then
// restores the previous goodput.
func TestAutoPolicyRailLost(t *testing.T) {
	const variants = 4
	for i := range variants {
		if wrapped, lost := i >= 2, i%2; testslice.Of(t).Has(i, variants) {
			t.Run(fmt.Sprintf("wrapped=%v/rail=%d", wrapped, lost), func(t *testing.T) {
				x := newHaul(t, transferConfig{
					op: verbs.OpRDMAWriteWithImm, size: 64 << 10, depth: 16, failover: true, wrapped: wrapped, rates: []float64{fastRail, slowRail},
				})
				x.run(1000)
				before := x.run(1000)
				for _, up := range []bool{false, true} {
					for _, h := range x.hosts {
						h.NICs[lost].SetPort(up)
					}
					x.pass(20 * time.Millisecond)
				}
				x.pass(200 * time.Millisecond)
				if after := x.run(1000); after < 0.9*before {
					t.Errorf("%.0f MB/s after rail %d was lost and came back, want %.0f", after/1e6, lost, before/1e6)
				}
				for _, l := range x.hosts[0].QP.Stats().Lanes {
					if l.State != "up" || (l.Rail == lost && l.Deaths == 0) {
						t.Errorf("lane after the loss of rail %d: %+v, want it up and lost once", lost, l)
					}
				}
			})
		}
	}
}

// TestTwoRailsCarryTwice: two rails with separate links carry at least 1.9 times as much as one, with the
// defaults. Where NICs do not run on the caller's core, neither a run of requests nor an unfragmented message
// may leave a rail idle.
func TestTwoRailsCarryTwice(t *testing.T) {
	for _, cfg := range mainHauls(t) {
		cfg.depth = max(cfg.depth, 4) // a single message waits for round trips, too
		t.Run(cfg.name(), func(t *testing.T) {
			var rates [2]float64
			for i := range rates {
				cfg.rates = slices.Repeat([]float64{fastRail}, i+1)
				x := newHaul(t, cfg)
				x.run(4 << 20 / x.size)
				rates[i] = x.run(64 << 20 / x.size)
			}
			if rates[1] < 1.9*rates[0] {
				t.Errorf("%.0f MB/s over two rails, want at least 1.9 times the %.0f MB/s over one", rates[1]/1e6, rates[0]/1e6)
			}
		})
	}
}
