package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/monitor"
	"ibverbx/internal/perf/measure"
)

// shortDemo is the demo test with a shorter duration.
func shortDemo() measure.Config {
	cfg := demoKill()
	cfg.Duration, cfg.Kill.At, cfg.Kill.Back = 900*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
	return cfg
}

// TestDemo: the demo pulls a cable, plugs it in again and reports both. Text output has a line per event.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	enginetest.WantOK(t, "demo", runDemo(t.Context(), streams{out: &out}, demoFlags{}, shortDemo()))
	last := 0
	for _, want := range []string{" s  the cable of rail 1 is pulled\n", " s  the cable of rail 1 is plugged in\n", "The cable was out for ", "without an error."} {
		i := strings.Index(strings.Join(strings.Fields(out.String()), " "), strings.Join(strings.Fields(want), " "))
		if i < last {
			t.Errorf("the output lacks %q, or has it too early:\n%s", want, out.String())
		}
		last = i
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("the output has escape sequences, want none without a terminal:\n%q", out.String())
	}
}

// TestDemoJSON: --json prints one object with the setup, samples, events and the summary.
func TestDemoJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	enginetest.WantOK(t, "demo --json", runDemo(t.Context(), streams{out: &out, args: []string{"demo", "--json"}}, demoFlags{json: true}, shortDemo()))
	var r demoReport
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("demo --json printed no report: %v", err)
	}
	n := len(r.Samples)
	if len(r.Setup.Rails) != demoRails || n == 0 || r.Samples[n-1].Bytes == 0 || len(r.Events) < 2 || !strings.HasPrefix(r.Ended, "The cable was out") ||
		r.Interrupted || r.Run.Command[0] != "demo" {
		t.Errorf("demo --json printed %+v, want rails, samples, events and an end", r)
	}
	if last := &r.Samples[n-1]; len(last.Lanes) < 2*demoRails || last.Rails[1].Lanes != len(last.Lanes)/2 {
		t.Errorf("the last sample is %+v, want lanes on both rails", last)
	}
}

// TestDemoInterrupted: Ctrl-C stops the demo, which prints its partial results and exits with status 130.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := runDemo(ctx, streams{out: &out}, demoFlags{}, demoKill()); !errors.Is(err, errInterrupted) {
		t.Errorf("demo: got %v, want %v", err, errInterrupted)
	}
	if !strings.HasPrefix(out.String(), "Interrupted: all 0 MiB") {
		t.Errorf("the output is %q, want what arrived", out.String())
	}
	if status, _, stderr := command(ctx, "demo"); status != exitInterrupted {
		t.Errorf("ibverbx demo: status %d, stderr %q, want %d", status, stderr, exitInterrupted)
	}
}

// TestDemoFailed: the summary contains the error of a failed transfer.
func TestDemoFailed(t *testing.T) {
	v := monitor.NewRecord(demoSetup(1)).View()
	if text := demoSentence(&v, nil, errors.New("byte 1 is wrong")); !strings.Contains(text, "failed after 0.0 s: byte 1 is wrong") {
		t.Errorf("the sentence after an error is %q, want that the transfer failed", text)
	}
}

// TestDemoFaults switches each fault on and off and waits for a sample that shows it. The transfer keeps running.
func TestDemoFaults(t *testing.T) {
	t.Parallel()
	d, err := newDemoOf(demoSetup(0))
	enginetest.WantOK(t, "newDemoOf", err)
	defer func() {
		enginetest.WantOK(t, "close", d.close())
	}()
	healthy := func(s, _ *monitor.Sample) bool {
		return s.Rails[0].Rate > 0 && s.Rails[1].Rate > 0 && s.Rails[1].Up == s.Rails[1].Lanes && len(s.Rails[1].Faults) == 0
	}
	has := func(s *monitor.Sample, fault string) bool { return slices.Contains(s.Rails[1].Faults, fault) }
	steps := []struct {
		fault string
		on    bool
		seen  func(s, before *monitor.Sample) bool // before is the first sample of the step
	}{
		{"", false, healthy},
		{faultPull, true, func(s, before *monitor.Sample) bool {
			return s.Rails[1].Up == 0 && s.Rails[1].Rate == 0 && s.Rails[0].Rate > 0 && s.Messages > before.Messages && has(s, faultPull)
		}},
		{faultPull, false, healthy},
		{faultSlow, true, func(s, _ *monitor.Sample) bool { return s.Rails[1].Rate < 2*demoRate/demoSlow && has(s, faultSlow) }},
		{faultSlow, false, healthy},
		{faultDelay, true, func(s, _ *monitor.Sample) bool {
			return s.P50 > float64(demoMoreDelay.Microseconds()) && has(s, faultDelay)
		}},
		{faultDelay, false, healthy},
		{faultLoss, true, func(s, before *monitor.Sample) bool { return s.Rails[1].Retransmits > before.Rails[1].Retransmits+2 }},
		{faultLoss, false, healthy},
	}
	step, before := 0, monitor.Sample{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = d.run(ctx, demoTest(), &metricsFlags{}, func() {
		v := d.rec.View()
		now := v.Samples[len(v.Samples)-1]
		if ctx.Err() != nil || !steps[step].seen(&now, &before) {
			return
		}
		if step++; step == len(steps) {
			cancel()
			return
		}
		before = now
		text, err := d.fabric.act(1, steps[step].fault, steps[step].on)
		if text == "" || err != nil {
			t.Errorf("act(1, %q, %t) = %q, %v, want what has changed", steps[step].fault, steps[step].on, text, err)
		}
	})
	if err != nil || step != len(steps) {
		t.Fatalf("after step %d of %d: got %v, want no error", step, len(steps), err)
	}
	events := d.rec.View().Events
	if !slices.ContainsFunc(events, func(e monitor.Event) bool { return e.Bad && strings.HasPrefix(e.Text, "rail 1 lost ") }) ||
		!slices.ContainsFunc(events, func(e monitor.Event) bool { return !e.Bad && strings.Contains(e.Text, "in service again") }) {
		t.Errorf("events are %v, want lanes lost and in service again", events)
	}
}

// TestDemoActions: unknown rails and faults are rejected, and actions are idempotent.
func TestDemoActions(t *testing.T) {
	f, err := newFabric()
	enginetest.WantOK(t, "newFabric", err)
	defer func() { _ = f.close() }()
	for _, tt := range []struct {
		rail  int
		fault string
	}{{-1, faultPull}, {demoRails, faultPull}, {0, ""}, {0, "burn"}} {
		if _, err := f.act(tt.rail, tt.fault, true); err == nil {
			t.Errorf("act(%d, %q): got no error, want one", tt.rail, tt.fault)
		}
	}
	for _, a := range demoActions() {
		for _, on := range []bool{true, false} {
			first, err1 := f.act(0, a.Name, on)
			second, err2 := f.act(0, a.Name, on)
			if first == "" || second != "" || err1 != nil || err2 != nil || slices.Contains(f.faults(0), a.Name) != on {
				t.Errorf("act(0, %q, %t) twice = %q, %v and %q, %v, want a text, then none", a.Name, on, first, err1, second, err2)
			}
		}
	}
}

// TestDemoDraws: on a terminal each screen replaces the previous one.
func TestDemoDraws(t *testing.T) {
	var out bytes.Buffer
	d := &demoText{printer: printer{w: &out}, size: func() (int, int) { return 80, 24 }}
	rec := monitor.NewRecord(demoSetup(9))
	for i := range 3 {
		rec.Sample(monitor.Sample{At: float64(i), Rails: []monitor.RailSample{{Rate: 1}, {Rate: 1}}})
		v := rec.View()
		d.show(&v)
	}
	if n := strings.Count(out.String(), "\x1b[15A"); n != 2 {
		t.Errorf("the cursor went up 15 lines %d times, want 2: %q", n, out.String())
	}
	if strings.Contains(out.String(), "\x1b[3") {
		t.Errorf("the picture has colours, want none")
	}
}

// TestDemoWeb: the page is served at the printed address, its actions affect the transfer, and Ctrl-C is a clean
// shutdown.
func TestDemoWeb(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, say := io.Pipe()
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- runDemoWeb(ctx, streams{out: &out, err: say}, demoFlags{json: true}) }()
	line, err := bufio.NewReader(said).ReadString('\n')
	enginetest.WantOK(t, "NewReader", err)
	address := strings.Fields(line)[1]
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Post(address+"act", "application/json", strings.NewReader(`{"rail":0,"action":"slow","on":true}`))
	if err != nil || answer.StatusCode != http.StatusNoContent {
		t.Fatalf("act: got %v, %v, want %d", answer, err, http.StatusNoContent)
	}
	_ = answer.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("demo --web: got %v after Ctrl-C, want no error", err)
	}
	var r demoReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Events) == 0 || r.Events[0].Text != "rail 0 is slowed to a tenth" || r.Ended == "" {
		t.Errorf("demo --web --json printed %+v, %v, want the event and the end", r, err)
	}
}
