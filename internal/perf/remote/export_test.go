package remote

import (
	"context"
	"time"

	"ibverbx/internal/perf/measure"
)

// Chatter is the interval of signs of life of a side that sends them all the time.
const Chatter = time.Nanosecond

// NewClientTimed is NewClient with another interval of signs of life.
func NewClientTimed(ctx context.Context, to Remote, cfg measure.Config, every time.Duration) (*measure.Test, error) {
	return newClient(ctx, to, cfg, every)
}

// NewServerTimed is NewServer with another interval of signs of life, and another limit for the client.
func NewServerTimed(ctx context.Context, to Remote, every, request time.Duration) (*measure.Test, error) {
	return newServer(ctx, to, &measure.Side{Peer: to, Server: true, Every: every}, request)
}
