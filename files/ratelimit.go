package files

import (
	"context"
	"sync"
	"time"
)

// rateLimiter limits a transfer's rate. Nil means no limit.
type rateLimiter struct {
	rate float64 // bytes per second

	mu sync.Mutex
	// next is the time by which the granted bytes have been moved.
	next time.Time
}

// newRateLimiter returns a rateLimiter for a rate in bytes per second, nil for 0.
func newRateLimiter(rate int64) *rateLimiter {
	if rate <= 0 {
		return nil
	}
	return &rateLimiter{rate: float64(rate)}
}

// wait waits until n more bytes may be moved.
func (p *rateLimiter) wait(ctx context.Context, n int64) error {
	if p == nil {
		return nil
	}
	wait := p.reserve(time.Now(), n)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reserve grants n bytes and returns the wait before they may be moved.
func (p *rateLimiter) reserve(now time.Time, n int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(p.cost(n))
	return wait
}

// refund returns n granted bytes that were not moved.
func (p *rateLimiter) refund(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = p.next.Add(-p.cost(n))
}

// cost returns the time for n bytes.
func (p *rateLimiter) cost(n int64) time.Duration {
	return time.Duration(float64(n) / p.rate * float64(time.Second))
}
