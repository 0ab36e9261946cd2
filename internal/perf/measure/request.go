package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Limits of a client's test.
const (
	requestVersion = 7
	maxSizes       = 64
	maxAhead       = 1 << 10 // queued clients before one
	maxBytes       = 2 << 30 // memory of one side
	maxDuration    = 24 * time.Hour
	defaultLend    = 256 << 20
	// requestTimeout limits the time until a client's request.
	requestTimeout = 30 * time.Second
)

// request is a client's test. The server responds with its host.
type request struct {
	Version int `json:"version"`
	Config
	// Host is the client's.
	Host host `json:"host"`
}

// SendWaiting sends a queued client the number of clients before it. The server calls it once, from
// Peer.Open.
func SendWaiting(ctx context.Context, to Peer, ahead int) error {
	return sendMessage(ctx, to, host{Devices: []string{}, Ahead: ahead})
}

// NewClient requests a test from the server that to is connected to. A Config that cannot be
// measured is a *ConfigError.
func NewClient(ctx context.Context, to Peer, cfg Config) (*Test, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if cfg.Connection != verbs.RC {
		return nil, Refuse("connection", cfg.Connection, "tests between processes use VirtualQPs, which are made of RC QPs", "drop it")
	}
	t := &Test{cfg: cfg, own: cfg, peer: to}
	if t.sizes, err = fittingSizes(&cfg); err != nil {
		return nil, err
	}
	mine, err := t.openSide(&cfg)
	if err != nil {
		return nil, err
	}
	if err := sendMessage(ctx, to, requestOf(&cfg, t.sizes, mine)); err != nil {
		return nil, err
	}
	theirs, err := recvHost(ctx, to)
	if err == nil && theirs.Ahead > 0 {
		to.Waiting(theirs.Ahead)
		if theirs, err = recvHost(ctx, to); err == nil && theirs.Ahead > 0 {
			err = errors.New("unexpected note to wait from the remote side")
		}
	}
	if err != nil {
		return nil, err
	}
	t.describe([2]host{mine, theirs})
	return t, nil
}

// NewServer accepts the test that a client requests. own holds this side's VirtualQP settings, used
// where the client leaves a choice. The client receives the reason for a refusal. NewServer drops a
// client that does not send its request in time, because others are waiting. Opening NICs may take
// longer: see Peer.Open.
func NewServer(ctx context.Context, to Peer, own Config) (*Test, error) {
	var q request
	if err := recvWithin(ctx, to, cmp.Or(own.Timing.Request, requestTimeout), &q); err != nil {
		return nil, err
	}
	t, mine, err := accept(to, &q, &own)
	if err != nil {
		refusal := host{Devices: []string{}, Text: brief(err)}
		return nil, errors.Join(fmt.Errorf("the client's test: %w", err), sendMessage(ctx, to, refusal))
	}
	t.describe([2]host{q.Host, mine})
	return t, sendMessage(ctx, to, mine)
}

// recvWithin receives a value from a client, with a timeout.
func recvWithin(ctx context.Context, from Peer, limit time.Duration, v any) error {
	late := fmt.Errorf("timed out after %v waiting for the client's test request", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	err := recvMessage(ctx, from, v)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// accept accepts or refuses a client's test, and opens NICs for it.
func accept(to Peer, q *request, own *Config) (t *Test, mine host, err error) {
	cfg, err := q.config(own)
	if err != nil {
		return nil, mine, err
	}
	wanted := cfg
	if wanted.Lend, err = fitsServer(own, &cfg); err != nil {
		return nil, mine, err
	}
	if own.Rails > 0 {
		wanted.Rails = own.Rails
	}
	t = &Test{cfg: cfg, own: *own, side: 1, peer: to, sizes: q.Sizes}
	mine, err = t.openSide(&wanted)
	return t, mine, err
}

// openSide opens and describes the NICs of this process's side. wanted is the Config for Peer.Open.
func (t *Test) openSide(wanted *Config) (mine host, err error) {
	t.maxWR, t.head.Role = MaxRequests, [...]string{"client", "server"}[t.side]
	if t.rails[t.side], err = t.peer.Open(wanted); err == nil {
		mine.Memory = t.own.Memory[t.side].Device
		_, err = t.query(t.side, &mine)
	}
	return mine, err
}

// recvHost receives the description of the server, its refusal, or a note to wait.
func recvHost(ctx context.Context, from Peer) (h host, err error) {
	if err = recvMessage(ctx, from, &h); err == nil {
		err = h.check()
	}
	if err == nil && h.Text != "" {
		err = fmt.Errorf("the partner refuses: %q", h.Text)
	}
	return h, err
}

// requestOf encodes a completed Config with these sizes.
func requestOf(c *Config, sizes []int, mine host) request {
	q := request{Version: requestVersion, Config: *c, Host: mine}
	q.Sizes, q.Memory = sizes, [2]Memory{}
	return q
}

// config returns the Config of a client's request with the memory of both sides, or the reason to
// refuse it. own is the server's Config.
func (q *request) config(own *Config) (Config, error) {
	c := q.Config
	c.Memory = own.Memory
	c.Memory[0].Device = q.Host.Memory
	c.Connection, c.Transport = verbs.RC, cmp.Or(q.Transport, peer.TransportRC)
	switch {
	case q.Version != requestVersion:
		return c, fmt.Errorf("the client's test has version %d, this side speaks %d: use the same release on both sides", q.Version, requestVersion)
	case len(q.Sizes) < 1 || len(q.Sizes) > maxSizes:
		return c, fmt.Errorf("%d message sizes: want 1 to %d", len(q.Sizes), maxSizes)
	case q.Op == "" || q.Mode == "" || q.Rails == 0 || q.QPs == 0 || (q.Iterations == 0) == (q.Duration == 0):
		return c, errors.New("the test leaves out the operation, the mode, the rails, the lanes or its length")
	case q.Duration > maxDuration:
		return c, fmt.Errorf("a row of %v: want at most %v", q.Duration, maxDuration)
	case q.Host.Text != "" || q.Host.Ahead != 0:
		return c, errors.New("the client's description of its NICs is invalid")
	}
	err := q.Host.check()
	if err == nil {
		err = c.Validate()
	}
	if err == nil {
		_, err = fittingSizes(&c)
	}
	return c, err
}

// fittingSizes returns the sizes of a test, without sizes of a sweep that would use too much memory or too many requests
// of another machine. It fails if none is left.
func fittingSizes(c *Config) (list []int, err error) {
	sizes, err := c.rows(min(c.limit(MaxFragment, 0), maxBytes))
	for i, size := range sizes {
		p := newPlan(c, size, MaxRequests)
		switch bad := firstBroken(p.bounds(c, maxBytes)); {
		case bad == nil:
			list = append(list, size)
		case len(c.Sizes) > 0 || len(list) == 0 && i == len(sizes)-1:
			return nil, bad
		}
	}
	return list, err
}

// fitsServer rejects a test whose buffers exceed the server's memory limit. It returns the bytes left, at least one.
func fitsServer(own, test *Config) (left int, err error) {
	most, need := cmp.Or(own.Lend, defaultLend), 0
	for _, size := range test.Sizes {
		p := newPlan(test, size, MaxRequests)
		if need = max(need, p.sideBytes(1)); need > most {
			return 0, Refuse("size", size, fmt.Sprintf("the buffers would take %d MiB of the server, which lends %d", need>>20, most>>20),
				"use a smaller size or a smaller --tx-depth, or start the server with a larger --lend")
		}
	}
	return max(most-need, 1), nil
}

// check rejects an invalid description of the remote host.
func (h *host) check() error {
	bare := len(h.Devices) == 0 && h.Text == "" // only a waiting message is
	if len(h.Devices) > ibverbx.MaxRails || bare != (h.Ahead != 0) || h.Ahead < 0 || h.Ahead > maxAhead || len(h.Text) > maxText {
		return errors.New("the remote side's description of its NICs is invalid")
	}
	for _, d := range slices.Concat(h.Devices, []string{h.Memory}) {
		if len(d) > 64 || strconv.Quote(d) != `"`+d+`"` {
			return errors.New("the name of a NIC or memory of the remote side is invalid")
		}
	}
	return nil
}
