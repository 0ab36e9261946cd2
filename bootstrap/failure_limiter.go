package bootstrap

import (
	"net/netip"
	"sync"
	"time"
)

// Limits of failed authentications of one host.
const (
	failureCost    = time.Second      // the interval per failure
	failureCredit  = 10 * failureCost // the burst
	failureOrigins = 4096             // the number of separate records; further hosts share one
)

// failureLimiter limits the failed authentications per host. It is safe for concurrent use.
type failureLimiter struct {
	mu sync.Mutex
	by map[netip.Prefix]*failure
}

// failure is the record of one host.
type failure struct {
	// left is the credit at time at, at most failureCredit. A failure costs failureCost.
	left time.Duration
	at   time.Time
	// reported is set once the first failure since left was failureCredit has been reported.
	reported bool
}

// record returns the record of a host at time now.
func (f *failureLimiter) record(from netip.Prefix, now time.Time) *failure {
	r := f.by[from]
	if r == nil && len(f.by) >= failureOrigins {
		for other, r := range f.by {
			if r.refill(now); r.left >= failureCredit {
				delete(f.by, other)
			}
		}
		if len(f.by) >= failureOrigins {
			from = netip.Prefix{}
			r = f.by[from]
		}
	}
	if r == nil {
		if f.by == nil {
			f.by = map[netip.Prefix]*failure{}
		}
		r = &failure{left: failureCredit, at: now}
		f.by[from] = r
	}
	r.refill(now)
	return r
}

func (r *failure) refill(now time.Time) {
	r.left = min(failureCredit, r.left+now.Sub(r.at))
	r.at = now
	if r.left >= failureCredit {
		r.reported = false
	}
}

// try calls check unless too many attempts have failed, and counts a failure if it returns false. The lock is held, so that concurrent
// attempts are all counted.
func (f *failureLimiter) try(from netip.Prefix, now time.Time, check func() bool) (checked, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.record(from, now)
	if r.left < failureCost {
		return false, false
	}
	if ok = check(); !ok {
		r.left -= failureCost
	}
	return true, ok
}

// report reports whether to report a failure: the first of a burst.
func (f *failureLimiter) report(from netip.Prefix, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.record(from, now)
	first := !r.reported
	r.reported = true
	r.left = min(r.left, failureCredit-failureCost) // the burst lasts until the credit is full again
	return first
}
