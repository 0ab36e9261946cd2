package main

import (
	"errors"
	"fmt"

	"ibverbx/internal/perf"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// transport is a flag that takes the name of what makes QPs reliable; unset it is empty.
type transport perf.Transport

func (v *transport) Set(s string) error {
	t, err := perf.ParseTransport(s)
	if err != nil {
		return errors.New("want rc or uc")
	}
	*v = transport(t)
	return nil
}

func (v *transport) String() string { return "" }
func (v *transport) Type() string   { return "transport" }

// What an RC QP is made of, and how many receive buffers a wrapped NIC has for each: twice what
// reliable.Config.RecvDepth wants, so that lanes can be replaced, and as many as all paths keep
// where they cannot share them.
const (
	wrapPaths     = 16
	wrapPathRecvs = 8
	wrapRecvs     = 32
	minWrapRecvs  = 512
	maxWrapRecvs  = 1 << 15
	wrapMoreLanes = 3 // the message lane, the notify lane, one that comes back
)

// wrap makes RC QPs of the rails out of UC QPs if the test wants that. After an error the
// caller closes all.
func (n *nics) wrap(w perf.Wish) error {
	if w.Transport != perf.TransportUC {
		return nil
	}
	n.contexts = nil
	for end := range n.ends {
		rails := max(len(n.ends[end]), 1) // there may be fewer than the test wishes for
		lanes := (w.Lanes+rails-1)/rails + wrapMoreLanes
		for i := range n.ends[end] {
			rail := &n.ends[end][i]
			ctx, err := wrapContext(rail.Context, lanes)
			if err != nil {
				return err
			}
			n.onClose(ctx.Close) // before that of the inner one, which then does nothing
			rail.Context = ctx
			n.contexts = append(n.contexts, ctx)
		}
	}
	return nil
}

// wrapContext makes RC QPs of a NIC, at most so many, out of UC QPs.
func wrapContext(ctx verbs.Context, lanes int) (verbs.Context, error) {
	attr, err := ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	recvs := wrapRecvs * lanes
	if attr.Capabilities&verbs.CapSRQOnUC == 0 {
		recvs = wrapPaths * wrapPathRecvs * lanes
	}
	wrapped, err := reliable.Wrap(ctx, reliable.Config{
		Paths: wrapPaths, PathRecv: wrapPathRecvs, RecvDepth: min(max(recvs, minWrapRecvs), maxWrapRecvs),
	})
	name := ctx.Device().Name()
	switch {
	case errors.Is(err, reliable.ErrNoUC):
		return nil, fmt.Errorf("--transport uc: %s: %w; use --transport rc", name, reliable.ErrNoUC)
	case errors.Is(err, verbs.ErrNotSupported):
		return nil, fmt.Errorf("--transport uc: %w; use --transport rc with %s", err, name)
	}
	return wrapped, err
}
