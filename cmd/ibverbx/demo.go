package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ibverbx"
	"ibverbx/internal/monitor"
	"ibverbx/internal/perf/measure"
)

const demoLong = `Pull a cable under load and watch the transfer continue. Two rails connect two hosts in this process. A
rail is a pair of software NICs with a wire of 128 MiB/s. One host writes messages to the other over both
rails. The cable of rail 1 is pulled after 3 s and plugged in again after 6 s. The demo stops after 9 s. The
receiver compares every byte.

On a terminal it draws the rate of each rail; otherwise it prints a line each second. The exit status is
0 only if every message arrived once, in order, and every byte was right. --json has all samples and
events instead.

--web serves a web page on this host until Ctrl-C. It shows hosts, rails and lanes, rates, latency,
retransmits and events. Its buttons pull and plug cables, lose and delay packets, and slow a rail down. Only
someone who knows the printed address can open the page. --metrics serves the counters of both hosts to
Prometheus.`

const demoExample = `  ibverbx demo               nine seconds in the terminal
  ibverbx demo --web         in a browser, with buttons
  ibverbx demo --json | jq .ended`

// demoFlags holds the flags of the demo command.
type demoFlags struct {
	json    bool
	web     bool
	metrics metricsFlags
}

const (
	demoSize   = 256 << 10 // message size in bytes
	demoSample = 100 * time.Millisecond
	demoIdle   = 100 * time.Microsecond
	// demoPatience bounds an outage of both rails. A longer one fails the transfer.
	demoPatience = time.Hour
	// demoEndless is the duration of a transfer that runs until the user stops it.
	demoEndless = time.Duration(math.MaxInt64)
	// demoSettled is the settling time after a change, in seconds. Samples within it mix old and new rates.
	demoSettled = 0.2
)

// demoTest configures the demo transfer: WRITEs with immediate, every byte verified by the receiver. Lanes are chosen
// by measured speed, because rail rates change during the demo.
func demoTest() measure.Config {
	return measure.Config{
		Imm: true, Sizes: []int{demoSize}, TxDepth: 16, CQMod: 1, Rails: demoRails, Policy: ibverbx.TwoChoices, Check: true, Duration: demoEndless,
		Live: measure.Live{On: true, Patience: demoPatience, Idle: demoIdle},
	}
}

// demoKill is demoTest with a cable pull and replug, as with perf --kill-rail.
func demoKill() measure.Config {
	cfg := demoTest()
	cfg.Duration = 9 * time.Second
	// Pull the cable midway between two samples, so that one sample shows the loss and its effects.
	cfg.Kill = measure.Kill{On: true, Rail: 1, At: 3*time.Second + demoSample/2, Back: 3 * time.Second}
	return cfg
}

// demoReport is the output of demo --json.
type demoReport struct {
	Run measure.Run `json:"run"`
	monitor.View
	// Interrupted is set when the demo was stopped early.
	Interrupted bool `json:"interrupted"`
}

// newDemo builds the demo command.
func newDemo(s streams) *cobra.Command {
	var d demoFlags
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Pull a cable under load and watch the transfer continue",
		Long:    demoLong,
		Example: demoExample,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.metrics.during(cmd.Context(), s, func() error {
				if d.web {
					return runDemoWeb(cmd.Context(), s, d)
				}
				return runDemo(cmd.Context(), s, d, demoKill())
			})
		},
	}
	cmd.Flags().BoolVar(&d.web, "web", false, "serve a page with buttons on a port of this host, until Ctrl-C")
	cmd.Flags().BoolVar(&d.json, "json", false, "print one JSON object with all samples and events at the end")
	d.metrics.define(cmd.Flags())
	return cmd
}

// demoSetup describes the demo. seconds is its duration, or 0 if it runs until the user stops it.
func demoSetup(seconds float64) monitor.Setup {
	s := monitor.Setup{
		Title: "ibverbx demo: 256 KiB writes over two rails", Hosts: [2]string{"sender", "receiver"}, Seconds: seconds, Checked: true,
	}
	for i := range demoRails {
		s.Rails = append(s.Rails, monitor.RailSetup{Device: fmt.Sprintf("soft%d", 2*i), Peer: fmt.Sprintf("soft%d", 2*i+1)})
	}
	return s
}

// demo is a transfer over a fabric, with its record.
type demo struct {
	*fabric
	rec   *monitor.Record
	start atomic.Pointer[time.Time] // start of the transfer
}

// newDemoOf opens the NICs for a demo. The caller closes it.
func newDemoOf(setup monitor.Setup) (*demo, error) {
	f, err := newFabric()
	d := &demo{fabric: f, rec: monitor.NewRecord(setup)}
	d.begin()
	return d, err
}

// begin sets the start of the transfer to the current time.
func (d *demo) begin() {
	now := time.Now()
	d.start.Store(&now)
}

// act switches a rail fault on or off and records the event.
func (d *demo) act(rail int, fault string, on bool) error {
	text, err := d.fabric.act(rail, fault, on)
	if text != "" {
		d.rec.Event(monitor.Event{At: time.Since(*d.start.Load()).Seconds(), Rail: rail, Bad: on, Text: text})
	}
	return err
}

// run measures until the test completes or ctx is done. It calls sampled after every sample but the initial one.
func (d *demo) run(ctx context.Context, cfg measure.Config, m *metricsFlags, sampled func()) (r measure.Report, err error) {
	cfg.Kill.SetPort = func(rail int, up bool) { _ = d.act(rail, faultPull, !up) } // the rail and the fault exist
	test, err := measure.New(d.ends[0], d.ends[1], cfg)
	if err != nil {
		return r, err
	}
	to := feed{rec: d.rec, faults: d.faults}
	return test.Run(ctx, measure.Observer{Interval: demoSample, Opened: m.opened(""), Snapshot: func(shot measure.Snapshot) {
		if to.look(shot); shot.At == 0 {
			d.begin()
			return
		}
		sampled()
	}})
}

// runDemo runs a transfer that loses a rail and shows it live.
func runDemo(ctx context.Context, s streams, flags demoFlags, cfg measure.Config) (err error) {
	d, err := newDemoOf(demoSetup(cfg.Duration.Seconds()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	out := newDemoText(s)
	r, err := d.run(ctx, cfg, &flags.metrics, func() {
		if v := d.rec.View(); !flags.json {
			out.show(&v)
		}
	})
	v := d.rec.View()
	d.rec.End(demoSentence(&v, r.Failover, err))
	if err := errors.Join(err, out.end(d.rec.View(), flags.json, r.Interrupted)); err != nil {
		return err
	}
	if r.Interrupted {
		return stopped(ctx, errInterrupted)
	}
	return nil
}

// demoSentence summarizes the demo. f is nil, or lacks a recovery time, if the demo was interrupted first.
func demoSentence(v *monitor.View, f *measure.Failover, failed error) string {
	last := monitor.Sample{}
	if n := len(v.Samples); n > 0 {
		last = v.Samples[n-1]
	}
	arrived := arrivedText(&last)
	switch {
	case failed != nil:
		return fmt.Sprintf("The transfer failed after %.1f s: %v.", last.At, failed)
	case f == nil || f.RecoveredAt == nil:
		return fmt.Sprintf("Interrupted: %s.", arrived)
	}
	_, before := v.Mean(demoSettled, *f.KilledAt)
	_, during := v.Mean(*f.KilledAt+demoSettled, *f.BackAt)
	_, after := v.Mean(*f.RecoveredAt+demoSample.Seconds(), last.At)
	return fmt.Sprintf("The cable was out for %.1f s and nothing was lost: %.0f MiB/s before, %.0f MiB/s on the other rail, %.0f MiB/s after, and %s.",
		*f.BackAt-*f.KilledAt, before/mebibyte, during/mebibyte, after/mebibyte, arrived)
}

// arrivedText summarizes the data received up to the sample last.
func arrivedText(last *monitor.Sample) string {
	return fmt.Sprintf("all %.0f MiB that arrived in %.1f s were compared byte by byte, without an error", float64(last.Bytes)/mebibyte, last.At)
}

// demoText shows a transfer as text: a redrawn screen on a terminal, otherwise one line per event and per second.
type demoText struct {
	printer
	args   []string                   // command line
	size   func() (width, height int) // terminal size; nil without a terminal
	drawn  int                        // screen lines drawn last
	events int                        // events printed
	second int                        // last second printed
}

func newDemoText(s streams) *demoText {
	d := &demoText{printer: printer{w: s.out, colour: s.colours()}, args: s.args}
	kind, _ := s.lookup("TERM")
	if f, ok := s.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && kind != "dumb" {
		d.size = func() (int, int) {
			width, height, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80, 24
			}
			return width, height
		}
	}
	return d
}

func (d *demoText) show(v *monitor.View) {
	if d.size != nil {
		d.draw(v)
		return
	}
	d.list(v)
	if s := &v.Samples[len(v.Samples)-1]; int(s.At) > d.second {
		d.second = int(s.At)
		d.println(v.Line(s))
	}
}

// list prints new events.
func (d *demoText) list(v *monitor.View) {
	for i := max(d.events-v.Dropped, 0); i < len(v.Events); i++ {
		d.println(v.Events[i].String())
	}
	d.events = v.Dropped + len(v.Events)
}

// draw redraws the terminal screen.
func (d *demoText) draw(v *monitor.View) {
	width, height := d.size()
	screen := monitor.Screen{Width: max(width, 40), Height: height}
	if d.colour {
		screen.Paint = d.paint
	}
	var b strings.Builder
	if d.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", d.drawn)
	}
	lines := screen.Lines(v)
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}
	d.drawn = len(lines)
	d.printf("%s\x1b[J", b.String())
}

// end prints the outcome of the transfer, or the whole record as JSON.
func (d *demoText) end(v monitor.View, asJSON, interrupted bool) error {
	if asJSON {
		return printJSON(d.w, &demoReport{Run: runOf(d.args), View: v, Interrupted: interrupted})
	}
	if d.size != nil {
		d.println("")
	}
	d.wrap("", v.Ended)
	return d.err
}
