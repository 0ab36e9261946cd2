package perf

import (
	"context"
	"time"
)

// Chatter makes a half tell its partner more often that it is alive.
func (t *Test) Chatter(every time.Duration) { t.every = every }

// Impatient makes a test that was ended give up what is in flight earlier.
func (t *Test) Impatient(after time.Duration) { t.drain = after }

// NewServerWithin is NewServer with another limit for the client.
func NewServerWithin(ctx context.Context, p Partner, limit time.Duration) (*Test, error) {
	return newServer(ctx, p, Config{}, limit)
}

// Head returns the report without results.
func (t *Test) Head() Report { return t.head }
