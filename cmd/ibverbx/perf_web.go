package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/monitor"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// Sampling intervals of a test with a page. Long tests use the longer one to limit the number of samples.
const (
	webSpan     = 100 * time.Millisecond
	webSpanLong = time.Second
	webLong     = 10 * time.Minute
)

// perfPage shows a test on a web page. A nil perfPage is a no-op.
type perfPage struct {
	server *monitor.Server // nil once served
	page   *page           // nil until served
	feed   feed
}

// newPerfPage opens a port for the page if wanted is set.
func newPerfPage(wanted bool) (*perfPage, error) {
	if !wanted {
		return nil, nil
	}
	server, err := monitor.Listen()
	return &perfPage{server: server}, err
}

// head starts serving the page once the test is known.
func (p *perfPage) head(ctx context.Context, s streams, r *measure.Report) {
	if p == nil || p.server == nil {
		return
	}
	setup := monitor.Setup{Title: "ibverbx perf: " + report.Title(*r), Hosts: [2]string{"initiator", "target"}, Checked: r.Checked}
	if r.Remote != "" {
		setup.Hosts = [2]string{"client", "server"}
	}
	for i := range r.PerRail {
		setup.Rails = append(setup.Rails, monitor.RailSetup{Device: r.PerRail[i].Device, Peer: r.PerRail[i].Peer})
	}
	p.feed.rec = monitor.NewRecord(setup)
	p.page = servePage(ctx, p.server, p.feed.rec, nil)
	p.server = nil
	fmt.Fprintf(s.err, "Open %s in a browser of this host.\n", p.page.Address())
}

// look adds a sample to the page. The first one of a run starts it.
func (p *perfPage) look(shot measure.Snapshot) {
	if shot.At == 0 {
		p.feed.next()
		p.feed.rec.Event(monitor.Event{At: p.feed.began.Seconds(), Rail: -1, Text: "messages of " + measure.FormatSize(shot.Size)})
	}
	p.feed.look(shot)
}

// end sends the outcome to all viewers and closes the page. It joins failed, the test's error, with its own.
func (p *perfPage) end(r *measure.Report, failed error) error {
	switch {
	case p == nil:
		return failed
	case p.page == nil:
		return errors.Join(failed, p.server.Close())
	case failed != nil:
		p.feed.rec.End("The test failed: " + failed.Error())
	case r.Interrupted:
		p.feed.rec.End("The test was interrupted. Verdict: " + r.Verdict)
	default:
		p.feed.rec.End("The test has ended. Verdict: " + r.Verdict)
	}
	return errors.Join(failed, p.page.close())
}
