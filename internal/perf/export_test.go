package perf

import (
	"context"
	"time"
)

// Chatter makes an end say more often that it is still at it.
func (r *Remote) Chatter(every time.Duration) { r.chatter = every }

// NewServerWithin is NewServer with another limit for the client.
func NewServerWithin(ctx context.Context, p Partner, limit time.Duration) (*Remote, error) {
	return newServer(ctx, p, Config{}, limit)
}
