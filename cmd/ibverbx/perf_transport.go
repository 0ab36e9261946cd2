package main

import (
	"errors"
	"fmt"

	"ibverbx"
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
	wrapChunk     = 32 << 10
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
		if err := lendReceives(w, n.ends[end], lanes); err != nil {
			return err
		}
		for i := range n.ends[end] {
			rail := &n.ends[end][i]
			ctx, err := wrapContext(rail.Context, lanes)
			if err != nil {
				return err
			}
			n.closers.Add(ctx.Close) // before that of the inner one, which then does nothing
			rail.Context = ctx
			n.contexts = append(n.contexts, ctx)
		}
	}
	return nil
}

// lendReceives refuses a test for which the wrapped rails of an end would take more memory than
// the wish allows.
func lendReceives(w perf.Wish, rails []ibverbx.RailConfig, lanes int) error {
	if w.Memory == 0 {
		return nil
	}
	bytes := 0
	for i := range rails {
		recvs, err := receivesOf(rails[i].Context, lanes)
		if err != nil {
			return err
		}
		bytes += recvs * wrapChunk
	}
	if bytes > w.Memory {
		return &perf.ConfigError{
			Where:   fmt.Sprintf("--transport uc with %d lanes", w.Lanes),
			Problem: fmt.Sprintf("the receives would take %d MiB of the server, which has %d left to lend", bytes>>20, w.Memory>>20),
			Fix:     "use a smaller --qp or fewer --rails, or start the server with a larger --lend",
		}
	}
	return nil
}

// receivesOf is how many receive buffers a NIC gets for so many lanes.
func receivesOf(ctx verbs.Context, lanes int) (int, error) {
	attr, err := ctx.QueryDevice()
	recvs := wrapRecvs * lanes
	if attr.Capabilities&verbs.CapSRQOnUC == 0 {
		recvs = wrapPaths * wrapPathRecvs * lanes
	}
	return min(max(recvs, minWrapRecvs), maxWrapRecvs), err
}

// wrapContext makes RC QPs of a NIC, at most so many, out of UC QPs.
func wrapContext(ctx verbs.Context, lanes int) (verbs.Context, error) {
	recvs, err := receivesOf(ctx, lanes)
	if err != nil {
		return nil, err
	}
	wrapped, err := reliable.Wrap(ctx, reliable.Config{
		Paths: wrapPaths, PathRecv: wrapPathRecvs, RecvDepth: recvs, ChunkBytes: wrapChunk,
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
