package failover_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
)

// TestRailsFlapInTurn: whenever one rail returns, the other is lost. No silence between completions exceeds 200 ms, after the time that
// the NICs retry on a rail lost silently.
func TestRailsFlapInTurn(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for name, outage := range outages {
			if scheme != ibverbx.Tally && name != "cut" && name != "port 1" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				limit := 200 * time.Millisecond
				if name == "cut" {
					limit += 8 * 67200 * time.Microsecond
				}
				d := newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, Deadline: 10 * time.Second})
				d.tick = int64(500 * time.Microsecond)
				local, remote := d.hosts[0].Region(4096), d.hosts[1].Region(4096)
				random := rand.New(rand.NewPCG(1, 2))
				for range 8 {
					d.post(0, 1, 4096, local, remote)
				}
				outage(d, 0, true)
				for turn := range testslice.Of(t).AtMost(3).Count(30) {
					if silence := d.longestSilence(int64(limit)+random.Int64N(int64(time.Second)), local, remote); silence > limit {
						t.Errorf("turn %d: no completion for %v, want at most %v", turn, silence, limit)
					}
					outage(d, turn%2, false)
					outage(d, 1-turn%2, true)
				}
			})
		}
	})
}

// longestSilence repeats notified WRITEs for a while, and returns the longest time without a completion.
func (d *duo) longestSilence(while int64, local, remote *ibverbx.Region) time.Duration {
	d.t.Helper()
	longest, last := int64(0), d.now
	for end := d.now + while; d.now < end; d.step() {
		for _, wc := range d.got[0] {
			enginetest.Must(d.t, wc.Err())
			d.post(0, 1, 4096, local, remote)
			last = d.now
		}
		longest = max(longest, d.now-last)
		d.got[0], d.got[1] = d.got[0][:0], d.got[1][:0]
	}
	return time.Duration(longest)
}
