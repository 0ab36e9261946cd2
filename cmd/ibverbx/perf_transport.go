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

// wrapPaths is how many UC QPs an RC QP is made of.
const wrapPaths = 16

// Receive buffers of a wrapped NIC. Each QP wants minShare of reliable.Config.RecvDepth for
// itself; twice as many leave room for lanes that are being replaced.
const (
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
	lanes := (w.Lanes+w.Rails-1)/w.Rails + wrapMoreLanes
	cfg := reliable.Config{Paths: wrapPaths, RecvDepth: min(max(wrapRecvs*lanes, minWrapRecvs), maxWrapRecvs)}
	n.contexts = nil
	for end := range n.ends {
		for i := range n.ends[end] {
			rail := &n.ends[end][i]
			ctx, err := reliable.Wrap(rail.Context, cfg)
			if errors.Is(err, verbs.ErrNotSupported) {
				return fmt.Errorf("--transport uc: %w; --transport rc uses the RC QPs of %s", err, rail.Context.Device().Name())
			}
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
