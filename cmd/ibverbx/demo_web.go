package main

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/internal/monitor"
)

// page is a running monitor.Server.
type page struct {
	*monitor.Server
	ended  chan error
	cancel context.CancelFunc
}

// servePage serves a Record in the background. act may be nil. The caller closes the page after Record.End.
func servePage(ctx context.Context, server *monitor.Server, rec *monitor.Record, act func(rail int, action string, on bool) error) *page {
	server.Record, server.Act = rec, act
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // runs until close, so that viewers see the final state
	p := &page{Server: server, ended: make(chan error, 1), cancel: cancel}
	go func() { p.ended <- server.Serve(ctx) }()
	return p
}

// close stops the page after its viewers have received the final state.
func (p *page) close() error {
	p.cancel()
	return <-p.ended
}

// runDemoWeb runs the demo transfer until ctx is done. Viewers control the faults from its page.
func runDemoWeb(ctx context.Context, s streams, flags demoFlags) (err error) {
	setup := demoSetup(0)
	setup.Actions = demoActions()
	d, err := newDemoOf(setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	server, err := monitor.Listen()
	if err != nil {
		return err
	}
	p := servePage(ctx, server, d.rec, d.act)
	fmt.Fprintf(s.err, "Open %s in a browser of this host. Ctrl-C ends the demo.\n", p.Address())
	out := newDemoText(s)
	out.size = nil // lines, not a screen
	_, err = d.run(ctx, demoTest(), &flags.metrics, func() {
		if v := d.rec.View(); !flags.json {
			out.list(&v)
		}
	})
	v := d.rec.View()
	last := v.Samples[max(len(v.Samples)-1, 0):]
	switch {
	case err != nil:
		d.rec.End(fmt.Sprintf("The transfer failed: %v.", err))
	case len(last) == 0:
		d.rec.End("The demo has ended.")
	default:
		d.rec.End("The demo has ended: " + arrivedText(&last[0]) + ".")
	}
	return errors.Join(err, p.close(), out.end(d.rec.View(), flags.json, false))
}
