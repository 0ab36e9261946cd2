// Package remote measures between two processes: it is the client and the server of package measure.
//
// A [Remote] leads to the other process. The client decides what to measure. Both sides lay out their buffers alike and
// exchange control messages: receives are posted, all data is sent, fill or compare these messages, and finally the
// result of each side. A rate is the sender's, from its first post to its last completion; with two directions it is the
// sum. Messages are bounded and strictly decoded.
package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/internal/perf/measure"
	"ibverbx/verbs"
)

// requestTimeout limits the time that a client may take to request a test.
const requestTimeout = 30 * time.Second

// Remote leads to the other process.
type Remote interface {
	// Send sends a message of at most 1 MiB. Messages arrive in order.
	Send(ctx context.Context, b []byte) error
	// Recv returns the next message.
	Recv(ctx context.Context) ([]byte, error)
	// Open opens NICs for this side, fewer than requested if there are no more. It is called once, at the server when a
	// client has requested a test, and may wait until it is the client's turn.
	Open(r measure.NICRequest) ([]ibverbx.RailConfig, error)
	// Connect makes a VirtualQP, connects it to the remote one, and registers memory at both sides. The remote side calls
	// Connect too. Nothing is sent or received meanwhile.
	Connect(ctx context.Context, s measure.SideConfig) (*measure.Link, error)
}

// timing has the times of a side. Tests shorten them.
type timing struct {
	every   time.Duration // between two signs of life
	request time.Duration // limits the wait for each message of a client that requests a test
}

func defaultTiming() timing { return timing{every: progressEvery, request: requestTimeout} }

// session is a Remote with the times of this side.
type session struct {
	Remote
	timing
}

// NewClient requests a test from the server at the other side of to. A Config that cannot be measured is a
// *measure.ConfigError.
func NewClient(ctx context.Context, to Remote, cfg measure.Config) (*measure.Test, error) {
	return newClient(ctx, to, cfg, defaultTiming())
}

func newClient(ctx context.Context, to Remote, cfg measure.Config, times timing) (*measure.Test, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if cfg.Connection != verbs.RC {
		return nil, measure.Refuse("connection", cfg.Connection, "tests between processes use VirtualQPs, which are made of RC QPs", "drop it")
	}
	sizes, err := cfg.Rows(limit(&cfg))
	if err != nil {
		return nil, err
	}
	for _, s := range cfg.Sizes {
		if err := fits(&cfg, s); err != nil {
			return nil, err
		}
	}
	sizes = slices.DeleteFunc(slices.Clone(sizes), func(s int) bool { return fits(&cfg, s) != nil })
	rails, err := to.Open(cfg.NICRequest())
	if err != nil {
		return nil, err
	}
	t, mine, err := measure.NewSide(&measure.Side{Config: cfg, Own: cfg, Rails: rails, Sizes: sizes, Peer: &session{to, times}})
	if err != nil {
		return nil, err
	}
	if err := send(ctx, to, specOf(&cfg, sizes)); err != nil {
		return nil, err
	}
	if err := send(ctx, to, mine); err != nil {
		return nil, err
	}
	theirs, err := recvHost(ctx, to)
	if err != nil {
		return nil, err
	}
	t.Describe([2]measure.Host{mine, theirs})
	return t, nil
}

// NewServer accepts the test that a client requests. own is what this side prefers for its VirtualQP where the client leaves
// a choice. If the test is refused, the client is sent the reason. A client that requests nothing is dropped after a
// while, because others are waiting.
func NewServer(ctx context.Context, to Remote, own measure.Config) (*measure.Test, error) {
	return newServer(ctx, to, own, defaultTiming())
}

// newServer is NewServer with other times. Opening NICs may take longer: see Remote.Open.
func newServer(ctx context.Context, to Remote, own measure.Config, times timing) (*measure.Test, error) {
	client := &timeoutRemote{to, times.request}
	b, err := client.Recv(ctx)
	if err != nil {
		return nil, err
	}
	var s spec
	if err := decode(b, &s); err != nil {
		return nil, err
	}
	t, mine, err := accept(&session{to, times}, &s, &own)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the client's test: %w", err), send(ctx, to, measure.Host{Devices: []string{}, Text: brief(err)}))
	}
	theirs, err := recvHost(ctx, client)
	if err != nil {
		return nil, err
	}
	if err := send(ctx, to, mine); err != nil {
		return nil, err
	}
	t.Describe([2]measure.Host{theirs, mine})
	_, err = fitsServer(&own, t.Config(), s.Sizes) // device memory takes more
	return t, err
}

// timeoutRemote is a Remote with a per-message timeout.
type timeoutRemote struct {
	Remote
	limit time.Duration
}

// Recv implements Remote.
func (p *timeoutRemote) Recv(ctx context.Context) ([]byte, error) {
	late := fmt.Errorf("timed out after %v waiting for the client's test request", p.limit)
	ctx, cancel := context.WithTimeoutCause(ctx, p.limit, late)
	defer cancel()
	b, err := p.Remote.Recv(ctx)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return b, err
}

// accept accepts a client's test, or refuses it, and opens NICs for it.
func accept(to *session, s *spec, own *measure.Config) (t *measure.Test, mine measure.Host, err error) {
	cfg, err := s.config()
	if err != nil {
		return nil, mine, err
	}
	cfg.Memory = own.Memory
	if err := cfg.Validate(); err != nil {
		return nil, mine, err
	}
	request := cfg.NICRequest()
	if request.Memory, err = fitsServer(own, &cfg, s.Sizes); err != nil {
		return nil, mine, err
	}
	if own.Rails > 0 {
		request.Rails = own.Rails
	}
	rails, err := to.Open(request)
	if err != nil {
		return nil, mine, err
	}
	return measure.NewSide(&measure.Side{
		Config: cfg, Own: *own, Server: true, Rails: rails, Sizes: s.Sizes, Peer: to,
	})
}

// recvHost receives the description of the remote host.
func recvHost(ctx context.Context, from Remote) (h measure.Host, err error) {
	b, err := from.Recv(ctx)
	if err != nil {
		return h, err
	}
	if err := decode(b, &h); err != nil {
		return h, err
	}
	if err := checkHost(&h); err != nil {
		return h, err
	}
	if h.Text != "" {
		return h, fmt.Errorf("the partner refuses: %q", h.Text)
	}
	return h, nil
}
