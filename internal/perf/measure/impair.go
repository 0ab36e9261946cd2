package measure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"ibverbx"
)

// maxImpairDelay limits the delay that a client can impose on a server's NICs.
const maxImpairDelay = 10 * time.Second

// Impair describes the impairments of a rail's packets by software NICs, in both directions.
// Probabilities are per packet, from 0 to 1.
type Impair struct {
	// Rail is the rail, -1 for all.
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

// Does reports whether i applies to the rail.
func (i *Impair) Does(rail int) bool { return i.Rail < 0 || i.Rail == rail }

// ParseImpair parses a list such as "rail=1,loss=1%,delay=1ms".
func ParseImpair(s string) (i Impair, err error) {
	i.Rail = -1
	set := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if set[name] {
			return i, fmt.Errorf("%s is there twice", name)
		}
		set[name] = true
		switch name {
		case "rail":
			i.Rail, err = strconv.Atoi(value)
			if err != nil || i.Rail < 0 {
				err = fmt.Errorf("rail=%s: use the number of a rail: 0, 1 and so on", value)
			}
		case "loss":
			i.Loss, err = parsePart(name, value)
		case "duplicate":
			i.Duplicate, err = parsePart(name, value)
		case "reorder":
			i.Reorder, err = parsePart(name, value)
		case "corrupt":
			i.Corrupt, err = parsePart(name, value)
		case "delay":
			i.Delay, err = parseDelay(name, value)
		case "jitter":
			i.Jitter, err = parseDelay(name, value)
		case "rate":
			if i.Rate, err = ParseSize(value); err != nil {
				err = fmt.Errorf("rate=%s: use bytes per second, such as 100MiB", value)
			}
		default:
			err = fmt.Errorf("%q: use rail, loss, duplicate, reorder, corrupt, delay, jitter or rate, each with a value, such as rail=1,loss=1%%,delay=1ms", part)
		}
		if err != nil {
			return i, err
		}
	}
	if i == (Impair{Rail: i.Rail}) {
		return i, fmt.Errorf("%q does nothing: add a fault, such as loss=1%%", s)
	}
	return i, nil
}

// parsePart parses a fraction: "1%" or "0.01".
func parsePart(name, value string) (float64, error) {
	number, percent := strings.CutSuffix(value, "%")
	p, err := strconv.ParseFloat(number, 64)
	if percent {
		p /= 100
	}
	if err != nil || !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("%s=%s: use a part of the packets, such as 1%%", name, value)
	}
	return p, nil
}

func parseDelay(name, value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > maxImpairDelay {
		return 0, fmt.Errorf("%s=%s: use a time up to %v, such as 1ms", name, value, maxImpairDelay)
	}
	return d, nil
}

// String formats i in the syntax of ParseImpair.
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
			parts = append(parts, fmt.Sprintf("%s=%s%%", p.name, strconv.FormatFloat(round(p.part*100, 9), 'f', -1, 64)))
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

// impairRules refuse invalid impairments. Clients send them to servers, so every value is bounded.
func (c *Config) impairRules() []rule {
	const flag = "impair"
	rules := []rule{{len(c.Impair) > ibverbx.MaxRails+1, flag, nil, "there are more than one for each rail", "use one for each rail"}}
	part := func(p float64) bool { return p >= 0 && p <= 1 }
	for k := range c.Impair {
		i := &c.Impair[k]
		rules = append(rules,
			rule{i.Rail < -1 || i.Rail >= c.Rails, flag, i, fmt.Sprintf("there are %d rails", c.Rails), fmt.Sprintf("use rail=0 to rail=%d", c.Rails-1)},
			rule{!part(i.Loss) || !part(i.Duplicate) || !part(i.Reorder) || !part(i.Corrupt), flag, i, "a probability is not from 0 to 1", "use 0% to 100%"},
			rule{
				i.Delay < 0 || i.Delay > maxImpairDelay || i.Jitter < 0 || i.Jitter > maxImpairDelay, flag, i,
				"a time is out of range", fmt.Sprintf("use 0 to %v", maxImpairDelay),
			},
			rule{i.Rate < 0 || i.Rate > math.MaxInt32<<10, flag, i, "the rate is out of range", "use a rate above 0, such as 100MiB"})
		for other := range k {
			rules = append(rules, rule{c.Impair[other].Rail == i.Rail, flag, i, "it is there twice for this rail", "write all faults of a rail into one --impair"})
		}
	}
	return rules
}
