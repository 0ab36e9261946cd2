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

	"ibverbx/internal/live"
)

// shortDemo is the script of the demo, in less time. The end waits for the rail as long as it takes.
func shortDemo() *script {
	return &script{rail: 1, pull: 300 * time.Millisecond, plug: 600 * time.Millisecond, end: 900 * time.Millisecond, patience: time.Minute}
}

// TestDemo: the demo pulls a cable, plugs it in again, and says so. As text it has a line for each event.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := runDemo(t.Context(), streams{out: &out}, demoFlags{}, shortDemo()); err != nil {
		t.Fatalf("demo: got %v, want no error", err)
	}
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

// TestDemoJSON: --json prints one object with the setup, samples, events and the sentence.
func TestDemoJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := runDemo(t.Context(), streams{out: &out, args: []string{"demo", "--json"}}, demoFlags{json: true}, shortDemo()); err != nil {
		t.Fatalf("demo --json: got %v, want no error", err)
	}
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

// TestDemoInterrupted: Ctrl-C ends the demo with what there is, and status 130.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out bytes.Buffer
	if err := runDemo(ctx, streams{out: &out}, demoFlags{}, newScript()); !errors.Is(err, errInterrupted) {
		t.Errorf("demo: got %v, want %v", err, errInterrupted)
	}
	if !strings.HasPrefix(out.String(), "Interrupted: all 0 MiB") {
		t.Errorf("the output is %q, want what arrived", out.String())
	}
	if status, _, stderr := command(ctx, "demo"); status != exitInterrupted {
		t.Errorf("ibverbx demo: status %d, stderr %q, want %d", status, stderr, exitInterrupted)
	}
}

// TestDemoFindsWrongBytes: a single wrong bit fails the transfer.
func TestDemoFindsWrongBytes(t *testing.T) {
	got, want := make([]byte, demoSize), make([]byte, demoSize)
	for _, at := range []int{0, 1, demoSize / 2, demoSize - 1} {
		fillMessage(got, 7)
		if err := compareMessage(got, want, 7); err != nil {
			t.Fatalf("compareMessage: got %v, want no error", err)
		}
		if err := compareMessage(got, want, 8); err == nil {
			t.Errorf("compareMessage takes message 7 for message 8")
		}
		got[at] ^= 1
		if err := compareMessage(got, want, 7); err == nil {
			t.Errorf("compareMessage does not see that byte %d is wrong", at)
		}
	}
	play := shortDemo()
	v := live.NewRecord(demoSetup(1)).View()
	if text := play.sentence(&v, errors.New("byte 1 is wrong"), false); !strings.Contains(text, "failed") {
		t.Errorf("the sentence after an error is %q, want that the transfer failed", text)
	}
}

// TestDemoOrder: a message that is not the next one ends the run with an error.
func TestDemoOrder(t *testing.T) {
	t.Parallel()
	f, tr, _ := startTransfer(t)
	defer endTransfer(t, f, tr)
	if err := tr.post(); err != nil {
		t.Fatal(err)
	}
	for tr.arrived == 0 {
		moved, err := tr.step()
		if err != nil {
			t.Fatal(err)
		}
		if !moved {
			time.Sleep(demoIdle)
		}
	}
	tr.arrived-- // the message that comes next is not the one that is expected
	for {
		if _, err := tr.step(); err != nil {
			if !strings.Contains(err.Error(), "arrived instead of message") {
				t.Errorf("got %v, want that another message was expected", err)
			}
			return
		}
	}
}

func startTransfer(t *testing.T) (*fabric, *demoTransfer, *live.Record) {
	t.Helper()
	f, err := newFabric()
	if err != nil {
		t.Fatal(err)
	}
	rec := live.NewRecord(demoSetup(0))
	tr, err := newTransfer(f, rec)
	if err != nil {
		t.Fatal(errors.Join(err, tr.closers.Close(), f.close()))
	}
	return f, tr, rec
}

func endTransfer(t *testing.T, f *fabric, tr *demoTransfer) {
	t.Helper()
	if err := errors.Join(tr.closers.Close(), f.close()); err != nil {
		t.Errorf("close: got %v, want no error", err)
	}
}

// TestDemoFaults turns each fault on and off, and waits until a sample shows it. The transfer goes on meanwhile.
func TestDemoFaults(t *testing.T) {
	t.Parallel()
	f, tr, rec := startTransfer(t)
	defer endTransfer(t, f, tr)
	healthy := func(s, _ *live.Sample) bool {
		return s.Rails[0].Rate > 0 && s.Rails[1].Rate > 0 && s.Rails[1].Up == s.Rails[1].Lanes && len(s.Rails[1].Faults) == 0
	}
	has := func(s *live.Sample, fault string) bool { return slices.Contains(s.Rails[1].Faults, fault) }
	steps := []struct {
		fault string
		on    bool
		seen  func(s, before *live.Sample) bool // before is the sample at which the step began
	}{
		{"", false, healthy},
		{faultPull, true, func(s, before *live.Sample) bool {
			return s.Rails[1].Up == 0 && s.Rails[1].Rate == 0 && s.Rails[0].Rate > 0 && s.Messages > before.Messages && has(s, faultPull)
		}},
		{faultPull, false, healthy},
		{faultSlow, true, func(s, _ *live.Sample) bool { return s.Rails[1].Rate < 2*demoRate/demoSlow && has(s, faultSlow) }},
		{faultSlow, false, healthy},
		{faultDelay, true, func(s, _ *live.Sample) bool {
			return s.P50 > float64(demoMoreDelay.Microseconds()) && has(s, faultDelay)
		}},
		{faultDelay, false, healthy},
		{faultLoss, true, func(s, before *live.Sample) bool { return s.Rails[1].Retransmits > before.Rails[1].Retransmits+2 }},
		{faultLoss, false, healthy},
	}
	step, before := 0, live.Sample{}
	err := tr.run(t.Context(), func(time.Duration) (bool, error) {
		v := rec.View()
		now := v.Samples[len(v.Samples)-1]
		if !steps[step].seen(&now, &before) {
			return true, nil
		}
		if step++; step == len(steps) {
			return false, nil
		}
		before = now
		text, err := f.act(1, steps[step].fault, steps[step].on)
		if text == "" {
			t.Errorf("act(1, %q, %t) says nothing, want what has changed", steps[step].fault, steps[step].on)
		}
		return true, err
	})
	if err != nil {
		t.Fatalf("after step %d: got %v, want no error", step, err)
	}
	events := rec.View().Events
	if !slices.ContainsFunc(events, func(e live.Event) bool { return e.Bad && strings.HasPrefix(e.Text, "rail 1 lost ") }) ||
		!slices.ContainsFunc(events, func(e live.Event) bool { return !e.Bad && strings.Contains(e.Text, "in service again") }) {
		t.Errorf("events are %v, want lanes lost and in service again", events)
	}
}

// TestDemoActions: what is not there is refused, and doing something twice changes nothing.
func TestDemoActions(t *testing.T) {
	f, err := newFabric()
	if err != nil {
		t.Fatal(err)
	}
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

// TestDemoDraws: on a terminal each picture replaces the one before.
func TestDemoDraws(t *testing.T) {
	var out bytes.Buffer
	d := &demoText{printer: printer{w: &out}, size: func() (int, int) { return 80, 24 }}
	rec := live.NewRecord(demoSetup(9))
	for i := range 3 {
		rec.Sample(live.Sample{At: float64(i), Rails: []live.RailSample{{Rate: 1}, {Rate: 1}}})
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

// TestDemoWeb: the page of the demo is where it says. Its actions reach the transfer, and Ctrl-C is its normal end.
func TestDemoWeb(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said, say := io.Pipe()
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- runDemoWeb(ctx, streams{out: &out, err: say}, demoFlags{json: true}) }()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
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
