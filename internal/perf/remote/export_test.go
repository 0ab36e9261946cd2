package remote

import (
	"context"
	"time"

	"ibverbx/internal/perf/measure"
)

// Chatter is the keepalive interval of a side that sends keepalives constantly.
const Chatter = time.Nanosecond

// NewClientTimed is NewClient with another keepalive interval.
func NewClientTimed(ctx context.Context, to Remote, cfg measure.Config, every time.Duration) (*measure.Test, error) {
	return newClient(ctx, to, cfg, every)
}

// NewServerTimed is NewServer with another keepalive interval and request timeout.
func NewServerTimed(ctx context.Context, to Remote, every, request time.Duration) (*measure.Test, error) {
	return newServer(ctx, to, &measure.Side{Peer: to, Server: true, Every: every}, request)
}
