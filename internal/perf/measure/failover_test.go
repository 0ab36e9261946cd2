package measure_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// ports takes rail ports down and up, and counts both.
type ports struct {
	nics  [2][]*softnic.NIC
	downs int
	ups   int
}

func (p *ports) set(rail int, up bool) {
	for _, nics := range p.nics {
		nics[rail].SetPort(up)
	}
	if up {
		p.ups++
	} else {
		p.downs++
	}
}

// losing opens two rails and a test that loses one of them for a short time.
func losing(t *testing.T, cfg measure.Config, rail int) (*measure.Test, *ports, [2][]ibverbx.RailConfig) {
	t.Helper()
	nics, ends := enginetest.OpenEnds(t, enginetest.MemoryLinks(2))
	p := &ports{nics: nics}
	cfg.Rails, cfg.Kill = 2, measure.Kill{On: true, Rail: rail, At: cfg.Kill.At, Back: cfg.Kill.Back, SetPort: p.set}
	test, err := measure.New(ends[0], ends[1], cfg)
	if err != nil {
		t.Fatalf("New(%+v): got %v, want no error", cfg, err)
	}
	return test, p, ends
}

// Every operation in every scheme loses either rail under load, continues on the other, and
// recovers it, with every byte compared.
func TestKillRail(t *testing.T) {
	for _, op := range []measure.Config{{}, {Imm: true}, {Op: measure.Read}, {Op: measure.Send}, {Imm: true, Bidirectional: true}, {Op: measure.Send, Bidirectional: true}} {
		for _, scheme := range []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray} {
			for rail := range 2 {
				name := fmt.Sprintf("op=%s,imm=%v,bidi=%v/%s/rail=%d", op.Op, op.Imm, op.Bidirectional, scheme, rail)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					cfg := op
					cfg.Scheme, cfg.Sizes, cfg.QPs, cfg.Duration = scheme, []int{40000}, 4, 300*time.Millisecond
					cfg.Kill.At, cfg.Kill.Back = 50*time.Millisecond, 50*time.Millisecond
					test, p, ends := losing(t, cfg, rail)
					rep, err := test.Run(t.Context(), measure.Observer{})
					enginetest.WantOK(t, "Run", err)
					if p.downs != 1 || p.ups != 1 {
						t.Errorf("the ports went down %d times and up %d times, want once each", p.downs, p.ups)
					}
					checkFailover(t, &rep, rail)
					checkShares(t, &cfg, &rep, rail)
					if s, err := ends[1][rail].Context.QueryPort(1); err != nil || s.State != verbs.PortActive {
						t.Errorf("the port is %v afterwards (%v), want it active", s.State, err)
					}
				})
			}
		}
	}
}

// checkFailover checks that a report lists a loss and a recovery in the right order.
func checkFailover(t *testing.T, rep *measure.Report, rail int) {
	t.Helper()
	f := rep.Failover
	if f == nil || f.KillRail != rail || f.KilledAt == nil || f.BackAt == nil || f.RecoveredAt == nil {
		t.Fatalf("the failover is %+v, want the loss and the return of rail %d", f, rail)
	}
	if *f.KilledAt < 0.05 || *f.BackAt < *f.KilledAt+0.049 || *f.RecoveredAt < *f.BackAt {
		t.Errorf("lost at %v, back at %v, recovered at %v; want them in order, 50 ms apart", *f.KilledAt, *f.BackAt, *f.RecoveredAt)
	}
	if f.Before <= 0 || f.During <= 0 || f.After <= 0 || len(f.Phases) != 3 {
		t.Errorf("rates %v, %v and %v in %d phases, want three above 0", f.Before, f.During, f.After, len(f.Phases))
	}
	if !rep.Checked || len(rep.Results) != 1 || rep.Results[0].Iterations == 0 {
		t.Errorf("checked %v, %d results; want one that was checked", rep.Checked, len(rep.Results))
	}
	// The rail has two of the four data lanes.
	if f.LanesDown < 2 || f.LanesDown > 4 {
		t.Errorf("%d lanes went down, want two and those for messages and notifications", f.LanesDown)
	}
	count := map[string]int{}
	for _, e := range f.Events {
		count[e.Event+" of "+e.End]++
		if strings.HasPrefix(e.Event, "rail ") && e.Rail != rail {
			t.Errorf("event %+v, want rail %d", e, rail)
		}
		if isLane := strings.HasPrefix(e.Event, "lane "); isLane != (e.Lane != nil) {
			t.Errorf("event %+v names a lane: %v, want %v", e, e.Lane != nil, isLane)
		}
	}
	for _, want := range []string{"port down of both", "port up of both"} {
		if count[want] != 1 {
			t.Errorf("%d events %q, want 1", count[want], want)
		}
	}
	for _, end := range []string{"initiator", "target"} {
		for _, event := range []string{"lane down", "rail down", "lane up", "rail up", "recovered"} {
			if count[event+" of "+end] == 0 {
				t.Errorf("no event %q of the %s in %v", event, end, count)
			}
		}
		// A lane for messages or notifications may move once more, back to the rail.
		if down, up := count["lane down of "+end], count["lane up of "+end]; down < f.LanesDown || up < f.LanesDown {
			t.Errorf("%d lanes of the %s went down and %d came up, want at least %d of each", down, end, up, f.LanesDown)
		}
	}
}

// checkShares checks the share of each rail over time: half before, all on the other rail while the
// ports are down, and half again. A SEND uses one lane, initially on rail 0; whether it returns to
// a rail that it has left is up to the engine.
func checkShares(t *testing.T, cfg *measure.Config, rep *measure.Report, rail int) {
	t.Helper()
	f := rep.Failover
	send := cfg.Op == measure.Send
	share := func(phase int) float64 {
		p := f.Phases[phase].PerRail
		return p[rail] / (p[0] + p[1])
	}
	want := 0.5
	if send {
		want = 1 - float64(rail)
	}
	const slack = 0.25 // for a row with hardly any traffic
	if got := share(0); got < want-slack || got > want+slack {
		t.Errorf("rail %d had %.2f of the bytes before the loss, want %.2f", rail, got, want)
	}
	if got := share(2); !send && (got < want-slack || got > want+slack) {
		t.Errorf("rail %d had %.2f of the bytes behind the return, want %.2f", rail, got, want)
	}
	for _, s := range f.Timeline {
		if s.From > *f.KilledAt && s.To < *f.BackAt && s.PerRail[rail] != 0 {
			t.Errorf("rail %d carried something in %+v, while its ports were down", rail, s)
		}
	}
	var sum, messages uint64
	for i := range rep.PerRail {
		sum += rep.PerRail[i].Bytes
	}
	for _, r := range rep.Results {
		messages += uint64(r.Iterations) * uint64(r.Size)
	}
	if sum < messages {
		t.Errorf("the rails carried %d bytes, want at least %d", sum, messages)
	}
	lanes := uint64(0)
	for i := range rep.PerLane {
		lanes += rep.PerLane[i].Bytes
	}
	if lanes != sum {
		t.Errorf("the lanes carried %d bytes and the rails %d, want the same", lanes, sum)
	}
}

// A loss under load hits requests in flight on the rail: other lanes replay them.
func TestKillRailReplays(t *testing.T) {
	for _, cfg := range []measure.Config{{}, {Imm: true}, {Imm: true, Scheme: ibverbx.DQPLB}, {Imm: true, Scheme: ibverbx.Spray}, {Op: measure.Read}} {
		cfg.Sizes, cfg.Fragment, cfg.Duration = []int{40000}, 10000, 60*time.Millisecond
		cfg.Kill.At, cfg.Kill.Back = 20*time.Millisecond, 20*time.Millisecond
		test, _, _ := losing(t, cfg, 1)
		rep, err := test.Run(t.Context(), measure.Observer{})
		if err != nil || rep.Failover.Replayed == 0 {
			t.Errorf("%+v: %d requests were taken over, error %v; want some and none", cfg, rep.Failover.Replayed, err)
		}
	}
}

// Timeline spans are contiguous and cover all delivered messages.
func TestKillTimeline(t *testing.T) {
	cfg := measure.Config{Sizes: []int{4096}, Duration: 100 * time.Millisecond}
	cfg.Kill.At, cfg.Kill.Back = 20*time.Millisecond, 20*time.Millisecond
	test, _, _ := losing(t, cfg, 0)
	rep, err := test.Run(t.Context(), measure.Observer{})
	enginetest.WantOK(t, "Run", err)
	for name, spans := range map[string][]measure.Span{"timeline": rep.Failover.Timeline, "phases": rep.Failover.Phases} {
		end := 0.0
		for i, s := range spans {
			if s.From != end || s.To <= s.From || len(s.PerRail) != 2 {
				t.Errorf("span %d of the %s is %+v, want it to begin at %v and to name two rails", i, name, s, end)
			}
			end = s.To
		}
		if end < 0.1 {
			t.Errorf("the %s ends at %v, want 0.1 or later", name, end)
		}
	}
	if n := len(rep.Failover.Timeline); n < 3 {
		t.Errorf("the timeline has %d spans, want several", n)
	}
}

// TestKillShortest: a row that is over before the outage still loses the rail and gets it back.
func TestKillShortest(t *testing.T) {
	cfg := measure.Config{Sizes: []int{4096}, Duration: 3}
	cfg.Kill.At, cfg.Kill.Back = 1, 1
	test, _, _ := losing(t, cfg, 1)
	rep, err := test.Run(t.Context(), measure.Observer{})
	if f := rep.Failover; err != nil || f == nil || f.RecoveredAt == nil {
		t.Errorf("got %v and %+v, want a recovery and no error", err, f)
	}
}

// Cancelling during an outage leaves the ports up and returns a partial report.
func TestCancelDuringOutage(t *testing.T) {
	cfg := measure.Config{Sizes: []int{4096}, Duration: 2 * time.Hour}
	cfg.Kill.At, cfg.Kill.Back = time.Millisecond, time.Hour
	test, p, _ := losing(t, cfg, 1)
	ctx, cancel := context.WithCancel(t.Context())
	rep, err := test.Run(ctx, measure.Observer{Progress: func(measure.Progress) {
		if p.downs > 0 {
			cancel()
		}
	}})
	f := rep.Failover
	if err != nil || !rep.Interrupted || f == nil || f.KilledAt == nil || f.BackAt != nil || f.RecoveredAt != nil {
		t.Errorf("interrupted %v, error %v, failover %+v; want true, none, and a loss without return", rep.Interrupted, err, f)
	}
	if p.ups != 1 {
		t.Errorf("the ports went up %d times, want once", p.ups)
	}
}
