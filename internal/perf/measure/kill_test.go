package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// noPorts is a SetPort that does nothing.
func noPorts(int, bool) {}

func TestKillConfigErrors(t *testing.T) {
	kill := Kill{On: true, Rail: 1, SetPort: noPorts}
	with := func(at, back time.Duration) Kill {
		return Kill{On: true, Rail: 1, At: at, Back: back, SetPort: noPorts}
	}
	for _, tt := range []configError{
		{"UC", Config{Kill: kill, Connection: verbs.UC}, []string{"--kill-rail 1", "UC QPs", "--connection RC"}},
		{"UD", Config{Kill: kill, Op: Send, Connection: verbs.UD}, []string{"--kill-rail 1", "UD QPs", "--connection RC"}},
		{"atomic", Config{Kill: kill, Op: Atomic}, []string{"--kill-rail 1", "in doubt", "write, read or send"}},
		{"latency", Config{Kill: kill, Mode: Latency}, []string{"--kill-rail 1", "--lat"}},
		{"one lane", Config{Kill: kill, QPs: 1}, []string{"--kill-rail 1", "single lane", "--lanes 2"}},
		{"one rail", Config{Kill: Kill{On: true}, Rails: 1}, []string{"--kill-rail 0", "single rail", "--rails 2"}},
		{"no such rail", Config{Kill: kill, Rails: 2, QPs: 4, Op: Read}, nil},
		{"rail", Config{Kill: Kill{On: true, Rail: 2}}, []string{"--kill-rail 2", "2 rails", "0 to 1"}},
		{"negative rail", Config{Kill: Kill{On: true, Rail: -1}}, []string{"--kill-rail -1", "0 to 1"}},
		{"rail without lanes", Config{Kill: Kill{On: true, Rail: 3}, Rails: 4, QPs: 3}, []string{"--kill-rail 3", "rails 0 to 2", "--lanes"}},
		{"sizes", Config{Kill: kill, Sizes: []int{8, 16}}, []string{"--kill-rail 1", "one size"}},
		{"all", Config{Kill: kill, All: true}, []string{"--kill-rail 1", "one size"}},
		{"iters", Config{Kill: kill, Iterations: 5}, []string{"--kill-rail 1", "--duration", "--iters"}},
		{"at", Config{Kill: with(2*time.Second, 0), Duration: 2 * time.Second}, []string{"--at 2s", "ends after 2s", "--duration"}},
		{"negative at", Config{Kill: with(-time.Second, 0)}, []string{"--at -1s"}},
		{"back", Config{Kill: with(time.Second, time.Second), Duration: 2 * time.Second}, []string{"--back 1s", "lost at 1s", "--duration"}},
		{"negative back", Config{Kill: with(0, -time.Second)}, []string{"--back -1s"}},
		{"at alone", Config{Kill: Kill{At: time.Second}}, []string{"--at 1s", "--kill-rail"}},
		{"back alone", Config{Kill: Kill{Back: time.Second}}, []string{"--back 1s", "--kill-rail"}},
		{"ports", Config{Kill: Kill{On: true, Rail: 1}}, []string{"--kill-rail 1", "--provider softnic"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want != nil {
				wantConfigError(t, &tt)
				return
			}
			if _, err := tt.cfg.Complete(); err != nil {
				t.Errorf("Complete(%+v): got %v, want no error", tt.cfg, err)
			}
		})
	}
}

func TestKillDefaults(t *testing.T) {
	for _, tt := range []struct {
		cfg                Config
		at, back, duration time.Duration
	}{
		{Config{}, time.Second, time.Second, 3 * time.Second},
		{Config{Kill: Kill{At: 2 * time.Second}}, 2 * time.Second, time.Second, 5 * time.Second},
		{Config{Kill: Kill{At: time.Millisecond, Back: time.Millisecond}}, time.Millisecond, time.Millisecond, 202 * time.Millisecond},
		{Config{Duration: 6 * time.Second}, time.Second, time.Second, 6 * time.Second},
	} {
		tt.cfg.Kill.On, tt.cfg.Kill.Rail = true, 1
		c, err := tt.cfg.Complete()
		if err != nil || c.Kill.At != tt.at || c.Kill.Back != tt.back || c.Duration != tt.duration || !c.Check {
			t.Errorf("Complete(%+v): at %v, back %v, duration %v, check %v, error %v; want %v, %v, %v, true and none",
				tt.cfg, c.Kill.At, c.Kill.Back, c.Duration, c.Check, err, tt.at, tt.back, tt.duration)
		}
		if rows, err := c.rows(1 << 30); err != nil || len(rows) != 1 || rows[0] != killSize {
			t.Errorf("rows = %v, %v, want one of %d", rows, err, killSize)
		}
	}
}

// Only a test that loses a rail uses a control channel and constantly polls a target without
// completions.
func TestControlOnlyWithKill(t *testing.T) {
	for _, on := range []bool{false, true} {
		cfg := Config{Sizes: []int{64}}
		if on {
			cfg.Kill = Kill{On: true, Rail: 1, SetPort: noPorts}
		}
		r := openRow(t, newWire(), cfg, 64)
		for i, control := range r.controls() {
			if got := control != nil; got != on {
				t.Errorf("kill %v: end %d has a control channel: %v, want %v", on, i, got, on)
			}
		}
		if quiet, rolling := r.sides[1].quiet, r.flows[0].rolling(); quiet == on || rolling != on {
			t.Errorf("kill %v: the target is quiet: %v, checks roll: %v; want %v and %v", on, quiet, rolling, !on, on)
		}
	}
}

// TestKillPorts: software NICs of the lost rail go down and up. NICs whose ports this program does
// not control are refused, with a suggested fix.
func TestKillPorts(t *testing.T) {
	_, ends := enginetest.OpenEnds(t, enginetest.MemoryLinks(2))
	kill := Kill{On: true, Rail: 1}
	enginetest.WantOK(t, "control", kill.control(ends[0], ends[1]))
	for _, up := range []bool{false, true} {
		kill.SetPort(1, up)
		for side := range ends {
			for rail := range ends[side] {
				port, err := ends[side][rail].Context.QueryPort(1)
				if active := port.State == verbs.PortActive; err != nil || active != (up || rail == 0) {
					t.Errorf("rail 1 up %v: the port of rail %d at end %d is active: %v (%v)", up, rail, side, active, err)
				}
			}
		}
	}
	a, _ := newWire().pair(2)
	kill = Kill{On: true, Rail: 1}
	var refused *ConfigError
	if err := kill.control(a); !errors.As(err, &refused) || !strings.Contains(err.Error(), "pull a cable") {
		t.Errorf("NICs without ports: got %v, want them refused with what to do instead", err)
	}
}

// killed is a Config that loses a rail only after the part under test.
func killed(op Op) Config {
	cfg := Config{Op: op, QPs: 4, Sizes: []int{100}, TxDepth: 32, CQMod: 8, Kill: Kill{On: true, Rail: 1, At: time.Hour, SetPort: noPorts}}
	if op == WriteImm {
		cfg.Op, cfg.Imm = Write, true
	}
	return cfg
}

// A wrong byte is found while the transfer continues.
func TestRollingCheckFindsCorruption(t *testing.T) {
	for _, op := range []Op{Write, WriteImm, Read, Send} {
		t.Run(string(op), func(t *testing.T) {
			w := newWire()
			const victim, offset = 1000, 77
			w.after = func(message int, b []byte) {
				if message == victim {
					b[offset] ^= 0x10
				}
			}
			_, err := run(t, w, killed(op))
			wantMismatch(t, op, offset, err)
		})
	}
}

// A write to a message after its completion is found at the end.
func TestVerifyAgainFindsLateWrite(t *testing.T) {
	for _, op := range []Op{Write, WriteImm, Read, Send} {
		t.Run(string(op), func(t *testing.T) {
			r := openRow(t, newWire(), killed(op), 100)
			enginetest.WantOK(t, "burst", r.burst(&tally{}, 104, 0))
			f := r.flows[0]
			if got := f.queues[0].checked; got != 104 {
				t.Errorf("%d messages were compared, want 104", got)
			}
			if err := f.verifyAgain(); err != nil {
				t.Errorf("verifyAgain: got %v, want no error", err)
			}
			for _, m := range []int64{104 - 32, 103} { // the oldest that still has its slot, and the last
				f.target.message(0, m)[77] ^= 0x10
				wantMismatch(t, op, 77, f.verifyAgain())
				f.target.message(0, m)[77] ^= 0x10
			}
		})
	}
}

// A slot is reused only after its content was compared, even if the sender could continue: a
// notified write completes there before the target is polled.
func TestRollingWaitsForCompare(t *testing.T) {
	r := openRow(t, newWire(), killed(WriteImm), 100)
	f := r.flows[0]
	f.start(endless)
	for range 20 {
		enginetest.WantOK(t, "post and poll", errors.Join(f.postAll(), r.poll(r.sides[0])))
	}
	if f.sent != int64(f.depth()) || f.completed != f.sent {
		t.Errorf("%d messages were sent and %d are complete, want %d and all of them", f.sent, f.completed, f.depth())
	}
	enginetest.WantOK(t, "poll and post", errors.Join(r.poll(r.sides[1]), f.postAll()))
	if want := int64(f.depth() + f.round*f.chain); f.sent != want {
		t.Errorf("%d messages were sent when the target had been polled, want %d", f.sent, want)
	}
}

// A rail that does not recover is an error that names its lanes. It is returned some time after its
// ports are up and the row should be complete.
func TestRailNotBack(t *testing.T) {
	cfg := killed(Write)
	cfg.Duration = 2 * time.Hour
	cfg.Kill.Back = time.Minute
	r := openRow(t, newWire(), cfg, 100)
	o := r.newOutage(&Report{PerRail: []Rail{{}, {Rail: 1}}})
	o.phases = []counts{{}} // as set by start
	o.killedAt, o.backAt = time.Hour, time.Hour+time.Minute
	for _, now := range []time.Duration{o.backAt, cfg.Duration, cfg.Duration + backWithin} {
		o.now = now
		if over, err := o.over(); over || err != nil {
			t.Errorf("over at %v = %v, %v, want false and no error", now, over, err)
		}
	}
	o.now++
	if _, err := o.over(); err == nil || !strings.Contains(err.Error(), "rail 1 is not back in service") {
		t.Errorf("over at %v: got %v, want an error about rail 1", o.now, err)
	}
	o.recoveredAt = cfg.Duration + 5*time.Second
	o.now = o.recoveredAt + afterMin
	if over, err := o.over(); over || err != nil {
		t.Errorf("over before there was traffic = %v, %v, want false and no error", over, err)
	}
	r.flows[0].completed = phaseMessages
	for now, want := range map[time.Duration]bool{o.recoveredAt: false, o.recoveredAt + afterMin: true} {
		o.now = now
		if over, err := o.over(); over != want || err != nil {
			t.Errorf("over at %v = %v, %v, want %v and no error", now, over, err, want)
		}
	}
}

// Events are recorded with their time and location.
func TestOutageEvents(t *testing.T) {
	r := openRow(t, newWire(), killed(Write), 100)
	o := r.newOutage(&Report{PerRail: []Rail{{}, {Rail: 1}}})
	for i, step := range []struct {
		end  int
		kind ibverbx.EventKind
	}{{0, ibverbx.EventLaneDown}, {1, ibverbx.EventLaneDown}, {0, ibverbx.EventLaneUp}, {0, ibverbx.EventRecovered}} {
		o.now = time.Duration(i+1) * time.Second
		o.take(step.end, &ibverbx.Event{Kind: step.kind, Lane: 3, Rail: 1, Err: errors.New("why")})
	}
	var got []string
	for _, e := range o.events {
		lane := -1
		if e.Lane != nil {
			lane = *e.Lane
		}
		got = append(got, fmt.Sprint(e.At, e.End, e.Event, e.Rail, lane, e.Cause))
	}
	want := []string{"1 initiator lane down 1 3 why", "2 target lane down 1 3 why", "3 initiator lane up 1 3 why", "4 initiator recovered 1 -1 why"}
	for i := range want {
		if strings.Join(strings.Fields(got[i]), "") != strings.Join(strings.Fields(want[i]), "") {
			t.Errorf("event %d is %q, want %q", i, got[i], want[i])
		}
	}
	// Lanes that never died have not recovered, whatever their state.
	if o.isRecovered() {
		t.Error("recovered without a death: true, want false")
	}
}

// The final comparison of all slots is part of the row.
func TestLateWriteEndsRun(t *testing.T) {
	w := newWire()
	var seen [][]byte
	w.after = func(_ int, b []byte) {
		// A message compared two chains ago is overwritten; its slot is reused later.
		if seen = append(seen, b); len(seen) > 20 {
			seen[0][77] ^= 0x10
			seen = seen[1:]
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := newTest(t, w, killed(Write)).Run(ctx, Observer{Progress: func(Progress) {
		if len(seen) > 0 {
			cancel()
		}
	}})
	wantMismatch(t, Write, 77, err)
}

// A rail is lost even if the time of the row has passed before the transfer could start.
func TestKillStartsLate(t *testing.T) {
	cfg := killed(Write)
	cfg.Kill.At, cfg.Kill.Back = time.Millisecond, time.Millisecond
	r := openRow(t, newWire(), cfg, 100)
	r.outage, r.series = r.newOutage(&Report{}), &series{run: r, every: time.Second}
	r.begin()
	r.outage.start()
	r.outage.recoveredAt = 1 // nothing goes down on this wire
	r.pace.began -= time.Hour
	var sum tally
	if _, err := r.stretches(&sum); err != nil || sum.done == 0 || r.outage.killedAt == 0 {
		t.Errorf("an hour late: got %v, %d messages, and a loss at %v, want some and a loss", err, sum.done, r.outage.killedAt)
	}
}
