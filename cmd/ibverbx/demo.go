package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ibverbx/internal/live"
	"ibverbx/internal/perf/measure"
)

const demoLong = `Pull a cable under load and watch the transfer go on. Two hosts in this process are joined by two
rails, each a pair of software NICs with a wire of 128 MiB/s. One host writes messages to the other over
both. After 3 s the cable of rail 1 is pulled, after 6 s it is plugged in again, and after 9 s the demo
ends. The receiver compares every byte.

On a terminal it draws the rate of each rail; otherwise it prints a line each second. The exit status is
0 only if every message arrived once, in order, and every byte was right. --json has all samples and
events instead.

--web shows it as a page of this host, until Ctrl-C. The page shows hosts, rails and lanes, rates, latency,
retransmits and events. Its buttons pull and plug cables, lose and delay packets, and slow a rail down. Only
who knows the printed address can see the page and press its buttons. --metrics serves counters of both hosts
for Prometheus meanwhile.`

const demoExample = `  ibverbx demo               nine seconds in the terminal
  ibverbx demo --web         in a browser, with buttons
  ibverbx demo --json | jq .ended`

// demoFlags are the flags of demo as they are given.
type demoFlags struct {
	json    bool
	web     bool
	metrics metricsFlags
}

// script is what the demo does, and when.
type script struct {
	rail            int           // the rail whose cable is pulled
	pull, plug, end time.Duration // since the start
	patience        time.Duration // how much later the end may be, if the rail is not back
	// pulledAt, pluggedAt and backAt are when it happened, in seconds; 0 before.
	pulledAt, pluggedAt, backAt float64
}

// newScript returns the script of the demo.
func newScript() *script {
	return &script{rail: 1, pull: 3 * time.Second, plug: 6 * time.Second, end: 9 * time.Second, patience: 10 * time.Second}
}

// demoReport is what demo --json prints.
type demoReport struct {
	Run measure.Run `json:"run"`
	live.View
	// Interrupted says that the demo was ended early.
	Interrupted bool `json:"interrupted"`
}

// newDemo builds the demo command.
func newDemo(s streams) *cobra.Command {
	var d demoFlags
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Pull a cable under load and watch the transfer go on",
		Long:    demoLong,
		Example: demoExample,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.metrics.during(cmd.Context(), s, func() error {
				if d.web {
					return runDemoWeb(cmd.Context(), s, d)
				}
				return runDemo(cmd.Context(), s, d, newScript())
			})
		},
	}
	cmd.Flags().BoolVar(&d.web, "web", false, "serve a page with buttons on a port of this host, until Ctrl-C")
	cmd.Flags().BoolVar(&d.json, "json", false, "print one JSON object with all samples and events at the end")
	d.metrics.define(cmd.Flags())
	return cmd
}

// watched serves the metrics of a transfer until the function that it returns is called.
func (d *demoFlags) watched(t *demoTransfer) (stop func()) {
	opened := d.metrics.opened("")
	if opened == nil {
		return func() {}
	}
	sender, receiver := opened(0, t.ends[0].qp, t.ends[0].rails.Configs()), opened(1, t.ends[1].qp, t.ends[1].rails.Configs())
	return func() { sender(); receiver() }
}

// demoSetup describes the demo. seconds is how long it takes, 0 if a user ends it.
func demoSetup(seconds float64) live.Setup {
	s := live.Setup{
		Title: "ibverbx demo: 256 KiB writes over two rails", Hosts: [2]string{"sender", "receiver"}, Seconds: seconds, Checked: true,
	}
	for i := range demoRails {
		s.Rails = append(s.Rails, live.RailSetup{Device: fmt.Sprintf("soft%d", 2*i), Peer: fmt.Sprintf("soft%d", 2*i+1)})
	}
	return s
}

// runDemo plays a script and shows it.
func runDemo(ctx context.Context, s streams, d demoFlags, play *script) (err error) {
	f, err := newFabric()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	rec := live.NewRecord(demoSetup(play.end.Seconds()))
	t, err := newTransfer(f, rec)
	defer func() { err = errors.Join(err, t.closers.Close()) }()
	if err != nil {
		return err
	}
	defer d.watched(t)()
	out := newDemoText(s)
	err = t.run(ctx, func(at time.Duration) (bool, error) {
		more, err := play.act(at, f, rec)
		if v := rec.View(); !d.json {
			out.show(&v)
		}
		return more, err
	})
	v := rec.View()
	rec.End(play.sentence(&v, err, ctx.Err() != nil))
	if err := errors.Join(err, out.end(rec.View(), d.json, ctx.Err() != nil)); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case play.backAt == 0:
		return errNotBack
	}
	return nil
}

// errNotBack ends a demo that has not shown what it is for. Its sentence says so too.
var errNotBack = errors.New("the rail did not come back")

// act does what is due after a sample, and reports whether the transfer goes on.
func (p *script) act(at time.Duration, f *fabric, rec *live.Record) (more bool, err error) {
	do := func(on bool) (float64, error) {
		text, err := f.act(p.rail, faultPull, on)
		rec.Event(live.Event{At: at.Seconds(), Rail: p.rail, Bad: on, Text: text})
		return at.Seconds(), err
	}
	samples := rec.View().Samples
	rail := &samples[len(samples)-1].Rails[p.rail]
	switch {
	case p.pulledAt == 0 && at >= p.pull:
		p.pulledAt, err = do(true)
	case p.pulledAt > 0 && p.pluggedAt == 0 && at.Seconds() >= p.pulledAt+(p.plug-p.pull).Seconds():
		p.pluggedAt, err = do(false)
	case p.pluggedAt > 0 && p.backAt == 0 && rail.Up == rail.Lanes && rail.Rate > 0:
		p.backAt = at.Seconds()
	}
	return at < p.end || p.backAt == 0 && at < p.end+p.patience, err
}

// sentence says what the demo has shown.
func (p *script) sentence(v *live.View, failed error, interrupted bool) string {
	last := live.Sample{}
	if n := len(v.Samples); n > 0 {
		last = v.Samples[n-1]
	}
	arrived := arrivedText(&last)
	switch {
	case failed != nil:
		return fmt.Sprintf("The transfer failed after %.1f s: %v.", last.At, failed)
	case interrupted && p.backAt == 0:
		return fmt.Sprintf("Interrupted: %s.", arrived)
	case p.pluggedAt == 0:
		return fmt.Sprintf("The cable of rail %d was not plugged in; %s.", p.rail, arrived)
	case p.backAt == 0:
		return fmt.Sprintf("Rail %d is not back %.0f s after its cable was plugged in; %s.", p.rail, last.At-p.pluggedAt, arrived)
	}
	const settled = 0.2 // seconds after a change in which rates still have some of both
	_, before := v.Mean(settled, p.pulledAt)
	_, during := v.Mean(p.pulledAt+settled, p.pluggedAt)
	_, after := v.Mean(p.backAt, last.At)
	return fmt.Sprintf("The cable was out for %.1f s and nothing was lost: %.0f MiB/s before, %.0f MiB/s on the other rail, %.0f MiB/s after, and %s.",
		p.pluggedAt-p.pulledAt, before/mebibyte, during/mebibyte, after/mebibyte, arrived)
}

// arrivedText says what has arrived until a sample.
func arrivedText(last *live.Sample) string {
	return fmt.Sprintf("all %.0f MiB that arrived in %.1f s were compared byte by byte, without an error", float64(last.Bytes)/mebibyte, last.At)
}

// demoText shows a transfer as text. On a terminal a picture is drawn again and again; otherwise events and a sample
// each second are lines.
type demoText struct {
	printer
	args   []string                   // the command line
	size   func() (width, height int) // of the terminal; nil if there is none
	drawn  int                        // lines of the picture
	events int                        // events that were printed
	second int                        // the last one that was printed
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

func (d *demoText) show(v *live.View) {
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
func (d *demoText) list(v *live.View) {
	for i := max(d.events-v.Dropped, 0); i < len(v.Events); i++ {
		d.println(v.Events[i].String())
	}
	d.events = v.Dropped + len(v.Events)
}

// draw replaces the picture on the terminal.
func (d *demoText) draw(v *live.View) {
	width, height := d.size()
	screen := live.Screen{Width: max(width, 40), Height: height}
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

// end prints how the transfer ended, or everything as JSON.
func (d *demoText) end(v live.View, asJSON, interrupted bool) error {
	if asJSON {
		return printJSON(d.w, &demoReport{Run: runOf(d.args), View: v, Interrupted: interrupted})
	}
	if d.size != nil {
		d.println("")
	}
	d.wrap("", v.Ended)
	return d.err
}
