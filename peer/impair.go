package peer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/softnic"
)

// MaxImpairDelay is the maximum of Impair.Delay and Impair.Jitter.
const MaxImpairDelay = 10 * time.Second

// Impair describes the impairments of a rail's packets by software NICs, in sending direction. Probabilities are per packet, from 0 to 1.
type Impair struct {
	// Rail is the rail, -1 for all. An Impair for one rail replaces the one for all.
	Rail int `json:"rail"`
	// Loss is the probability that a packet is lost.
	Loss float64 `json:"loss,omitempty"`
	// Duplicate is the probability that a packet arrives twice.
	Duplicate float64 `json:"duplicate,omitempty"`
	// Reorder is the probability that later packets overtake a packet.
	Reorder float64 `json:"reorder,omitempty"`
	// Corrupt is the probability that a packet is corrupted.
	Corrupt float64 `json:"corrupt,omitempty"`
	// Delay is the latency of every packet.
	Delay time.Duration `json:"delay_ns,omitempty"`
	// Jitter is the maximum random time added to Delay.
	Jitter time.Duration `json:"jitter_ns,omitempty"`
	// Rate is the speed in bytes per second. Zero means unlimited.
	Rate int `json:"rate,omitempty"`
}

// ImpairmentOf returns the packet impairment of a rail.
func ImpairmentOf(rail int, list []Impair) (imp softnic.Impairment) {
	for _, which := range []int{-1, rail} {
		for i := range list {
			if f := &list[i]; f.Rail == which {
				imp = softnic.Impairment{
					Loss: f.Loss, Duplicate: f.Duplicate, Reorder: f.Reorder, Corrupt: f.Corrupt, Delay: f.Delay, Jitter: f.Jitter, Rate: float64(f.Rate),
				}
			}
		}
	}
	return imp
}

// String formats i as in "rail=1,loss=1%,delay=1ms", which settings.ParseImpair reads.
func (i *Impair) String() string {
	var parts []string
	if i.Rail >= 0 {
		parts = append(parts, fmt.Sprintf("rail=%d", i.Rail))
	}
	for _, p := range []struct {
		name string
		part float64
	}{{"loss", i.Loss}, {"duplicate", i.Duplicate}, {"reorder", i.Reorder}, {"corrupt", i.Corrupt}} {
		if p.part > 0 {
			parts = append(parts, fmt.Sprintf("%s=%s%%", p.name, strconv.FormatFloat(math.Round(p.part*1e11)/1e9, 'f', -1, 64)))
		}
	}
	if i.Delay > 0 {
		parts = append(parts, fmt.Sprintf("delay=%v", i.Delay))
	}
	if i.Jitter > 0 {
		parts = append(parts, fmt.Sprintf("jitter=%v", i.Jitter))
	}
	if i.Rate > 0 {
		parts = append(parts, fmt.Sprintf("rate=%d", i.Rate))
	}
	return strings.Join(parts, ",")
}

// checkImpair refuses invalid impairments. perf clients send them to servers, so every value is bounded.
func (f *Fabric) checkImpair() error {
	refuse := func(i *Impair, problem string) error {
		return &FabricError{Field: "Impair", Problem: i.String() + ": " + problem}
	}
	part := func(p float64) bool { return p >= 0 && p <= 1 }
	rails := cmp.Or(f.RailCount, ibverbx.MaxRails)
	for k := range f.Impair {
		i := &f.Impair[k]
		switch {
		case i.Rail < -1 || i.Rail >= rails:
			return refuse(i, fmt.Sprintf("there are at most %d rails; use rail=0 to rail=%d", rails, rails-1))
		case !part(i.Loss) || !part(i.Duplicate) || !part(i.Reorder) || !part(i.Corrupt):
			return refuse(i, "a probability is not from 0 to 1; use 0% to 100%")
		case i.Delay < 0 || i.Delay > MaxImpairDelay || i.Jitter < 0 || i.Jitter > MaxImpairDelay:
			return refuse(i, fmt.Sprintf("a time is out of range; use 0 to %v", MaxImpairDelay))
		case i.Rate < 0 || i.Rate > math.MaxInt32<<10:
			return refuse(i, "the rate is out of range; use a rate above 0, such as 100MiB")
		case slices.ContainsFunc(f.Impair[:k], func(o Impair) bool { return o.Rail == i.Rail }):
			return refuse(i, "a second entry for this rail; write all faults of a rail into one")
		}
	}
	return nil
}
