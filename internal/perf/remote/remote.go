// Package remote is the client and the server of package measure, for tests between two processes.
//
// [NewClient] requests a test, and [NewServer] accepts or refuses it, over a [Remote], the connection to
// the other process. Each side opens its NICs and describes its host. Both functions return a
// measure.Test, whose Run measures. Messages are bounded and strictly decoded.
//
// A changed control message or spec needs a new specVersion (spec.go): client and server must agree.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/internal/perf/measure"
	"ibverbx/verbs"
)

// requestTimeout limits the time until a client's request.
const requestTimeout = 30 * time.Second

// Remote is the connection to the other process.
type Remote interface {
	measure.Peer
	// Open opens c.Rails NICs for this side, or all of them if it has fewer. c is complete.
	// Receives of wrapped NICs may use up to c.Lend bytes; zero means unlimited. Open is called
	// once. At the server it is called after a client's request and may block until it is the
	// client's turn.
	Open(c *measure.Config) ([]ibverbx.RailConfig, error)
	// Waiting is called at a queued client, with the number of clients before it.
	Waiting(ahead int)
}

// SendWaiting sends a queued client the number of clients before it. The server calls it once, from
// Remote.Open.
func SendWaiting(ctx context.Context, to Remote, ahead int) error {
	return measure.SendMessage(ctx, to, measure.Host{Devices: []string{}, Ahead: ahead})
}

// NewClient requests a test from the server that to is connected to. A Config that cannot be
// measured is a *measure.ConfigError.
func NewClient(ctx context.Context, to Remote, cfg measure.Config) (*measure.Test, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if cfg.Connection != verbs.RC {
		return nil, measure.Refuse("connection", cfg.Connection, "tests between processes use VirtualQPs, which are made of RC QPs", "drop it")
	}
	sizes, err := fittingSizes(&cfg)
	if err != nil {
		return nil, err
	}
	rails, err := to.Open(&cfg)
	if err != nil {
		return nil, err
	}
	t, mine, err := measure.NewSide(&measure.Side{Config: cfg, Own: cfg, Rails: rails, Sizes: sizes, Peer: to})
	if err != nil {
		return nil, err
	}
	if err := measure.SendMessage(ctx, to, specOf(&cfg, sizes)); err != nil {
		return nil, err
	}
	if err := measure.SendMessage(ctx, to, mine); err != nil {
		return nil, err
	}
	theirs, err := recvHost(func(h *measure.Host) error { return measure.RecvMessage(ctx, to, h) }, to.Waiting)
	if err != nil {
		return nil, err
	}
	t.Describe([2]measure.Host{mine, theirs})
	return t, nil
}

// NewServer accepts the test that a client requests. own holds this side's VirtualQP settings, used
// where the client leaves a choice. The client receives the reason for a refusal. NewServer drops a
// client that does not send each message in time, because others are waiting. Opening NICs may take
// longer: see Remote.Open.
func NewServer(ctx context.Context, to Remote, own measure.Config) (*measure.Test, error) {
	var s spec
	limit := cmp.Or(own.Timing.Request, requestTimeout)
	if err := recvWithin(ctx, to, limit, &s); err != nil {
		return nil, err
	}
	t, mine, err := accept(to, &s, &own)
	if err != nil {
		refusal := measure.Host{Devices: []string{}, Text: measure.Brief(err)}
		return nil, errors.Join(fmt.Errorf("the client's test: %w", err), measure.SendMessage(ctx, to, refusal))
	}
	theirs, err := recvHost(func(h *measure.Host) error { return recvWithin(ctx, to, limit, h) }, nil)
	if err != nil {
		return nil, err
	}
	if err := measure.SendMessage(ctx, to, mine); err != nil {
		return nil, err
	}
	t.Describe([2]measure.Host{theirs, mine})
	_, err = fitsServer(&own, t.Config(), s.Sizes) // device memory takes more
	return t, err
}

// recvWithin receives a value from a client, with a timeout.
func recvWithin(ctx context.Context, from Remote, limit time.Duration, v any) error {
	late := fmt.Errorf("timed out after %v waiting for the client's test request", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	err := measure.RecvMessage(ctx, from, v)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// accept accepts or refuses a client's test, and opens NICs for it.
func accept(to Remote, s *spec, own *measure.Config) (t *measure.Test, mine measure.Host, err error) {
	cfg, err := s.config(own.Memory)
	if err != nil {
		return nil, mine, err
	}
	request := cfg
	if request.Lend, err = fitsServer(own, &cfg, s.Sizes); err != nil {
		return nil, mine, err
	}
	if own.Rails > 0 {
		request.Rails = own.Rails
	}
	rails, err := to.Open(&request)
	if err != nil {
		return nil, mine, err
	}
	return measure.NewSide(&measure.Side{Config: cfg, Own: *own, Server: true, Rails: rails, Sizes: s.Sizes, Peer: to})
}

// recvHost receives the description of the remote host. If waiting is not nil, one waiting message
// may precede it.
func recvHost(recv func(*measure.Host) error, waiting func(ahead int)) (h measure.Host, err error) {
	if err := recv(&h); err != nil {
		return h, err
	}
	if err := checkHost(&h); err != nil {
		return h, err
	}
	switch {
	case h.Text != "":
		return h, fmt.Errorf("the partner refuses: %q", h.Text)
	case h.Ahead > 0 && waiting == nil:
		return h, errors.New("unexpected note to wait from the remote side")
	case h.Ahead > 0:
		waiting(h.Ahead)
		return recvHost(recv, nil)
	}
	return h, nil
}
