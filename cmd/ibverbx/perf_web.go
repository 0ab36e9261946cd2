package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/live"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// Spans of a test with a page: short ones, but not very many.
const (
	webSpan     = 100 * time.Millisecond
	webSpanLong = time.Second
	webLong     = 10 * time.Minute
)

// perfPage shows a test as a page. A nil perfPage shows nothing.
type perfPage struct {
	server *live.Server // nil when it is served
	page   *page        // nil before
	rec    *live.Record
	sample *sampler

	began    time.Duration // when the present row began, over all rows
	messages int64         // of the rows before
	bytes    int64         // of the rows before
	last     live.Sample   // of the present row
}

// newPerfPage opens a port for the page, if one is wanted.
func newPerfPage(wanted bool) (*perfPage, error) {
	if !wanted {
		return nil, nil
	}
	server, err := live.Listen()
	return &perfPage{server: server}, err
}

// head serves the page, when it is known what is measured.
func (p *perfPage) head(ctx context.Context, s streams, r *measure.Report) {
	if p == nil || p.server == nil {
		return
	}
	setup := live.Setup{Title: "ibverbx perf: " + report.Title(*r), Hosts: [2]string{"initiator", "target"}, Checked: r.Checked}
	if r.Remote != "" {
		setup.Hosts = [2]string{"client", "server"}
	}
	for i := range r.PerRail {
		setup.Rails = append(setup.Rails, live.RailSetup{Device: r.PerRail[i].Device, Peer: r.PerRail[i].Peer})
	}
	p.rec = live.NewRecord(setup)
	p.page = servePage(ctx, p.server, p.rec, nil)
	p.server = nil
	fmt.Fprintf(s.err, "Open %s in a browser of this host.\n", p.page.Address())
}

// look takes a sample of a row, or begins the row.
func (p *perfPage) look(l measure.Snapshot) {
	if l.At == 0 {
		p.began, p.messages, p.bytes = p.began+time.Duration(p.last.At*float64(time.Second)), p.messages+p.last.Messages, p.bytes+p.last.Bytes
		p.last = live.Sample{}
		p.rec.Event(live.Event{At: p.began.Seconds(), Rail: -1, Text: "messages of " + measure.FormatSize(l.Size)})
		if p.sample == nil {
			p.sample = newSampler(p.rec, l.Contexts, l.Lanes)
		} else {
			p.sample.follow(l.Contexts, l.Lanes)
		}
		return
	}
	if l.P50 > 0 {
		p.last.P50, p.last.P99 = l.P50, l.P99
	}
	p.last.At, p.last.Messages, p.last.Bytes = l.At.Seconds(), l.Messages, l.Messages*int64(l.Size)
	now := p.last
	now.Messages, now.Bytes = p.messages+now.Messages, p.bytes+now.Bytes
	p.sample.take(p.began+l.At, now, l.Lanes)
}

// end tells viewers how the test ended, and closes the page. It returns the error of the test, and its own.
func (p *perfPage) end(r *measure.Report, failed error) error {
	switch {
	case p == nil:
		return failed
	case p.page == nil:
		return errors.Join(failed, p.server.Close())
	case failed != nil:
		p.rec.End("The test failed: " + failed.Error())
	case r.Interrupted:
		p.rec.End("The test was interrupted. Verdict: " + r.Verdict)
	default:
		p.rec.End("The test has ended. Verdict: " + r.Verdict)
	}
	return errors.Join(failed, p.page.close())
}
