package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// side measures one side of a row once.
type side func(ctx context.Context) (float64, error)

// row is one comparison.
type row struct {
	Work string `json:"work"`
	// Unit is the unit of Ours and Theirs.
	Unit string `json:"unit"`
	// Peer names the other side. If it is empty, the bar applies to Ours.
	Peer string `json:"peer,omitempty"`
	// Bar is the minimum ratio, Aim the target. Zero means that there is no limit.
	Bar float64 `json:"bar,omitempty"`
	Aim float64 `json:"aim,omitempty"`
	// Lower is set if less is better, as for times: bar and aim are then upper limits.
	Lower bool `json:"lower_is_better"`
	// Best reports the best of all rounds instead of their median.
	Best bool `json:"best,omitempty"`

	Ours   float64 `json:"ours"`
	Theirs float64 `json:"theirs,omitempty"`
	// Ratio is Ours by Theirs.
	Ratio  float64   `json:"ratio,omitempty"`
	Rounds []reading `json:"rounds,omitempty"`
	// Problem is the reason for missing results.
	Problem string `json:"problem,omitempty"`

	ours, theirs side
}

// reading holds the figures of one round.
type reading struct {
	Ours   float64 `json:"ours"`
	Theirs float64 `json:"theirs,omitempty"`
}

// missing reports that a peer is not installed.
type missing struct{ program, pkg string }

func (m *missing) Error() string {
	return fmt.Sprintf("%s is not installed: apt-get install %s", m.program, m.pkg)
}

// measure runs both sides alternately.
func (r *row) measure(ctx context.Context, rounds int) {
	for round := range rounds {
		var read reading
		var errOurs, errTheirs error
		mine := func() { read.Ours, errOurs = r.ours(ctx) }
		other := func() {
			if r.theirs != nil {
				read.Theirs, errTheirs = r.theirs(ctx)
			}
		}
		if round%2 == 0 {
			mine()
			other()
		} else {
			other()
			mine()
		}
		var absent *missing
		if err := errors.Join(errOurs, errTheirs); err != nil {
			r.Problem = err.Error()
			if !errors.As(err, &absent) || errOurs != nil {
				r.Rounds = nil // failures recognizes a failed row by this
				return
			}
		}
		r.Rounds = append(r.Rounds, read)
	}
	r.Ours = r.figure(func(read reading) float64 { return read.Ours })
	if r.theirs == nil || r.Problem != "" {
		return
	}
	r.Theirs = r.figure(func(read reading) float64 { return read.Theirs })
	if r.Theirs > 0 {
		r.Ratio = r.Ours / r.Theirs
	}
}

// figure returns the median or best of one side.
func (r *row) figure(of func(reading) float64) float64 {
	var all []float64
	for _, read := range r.Rounds {
		all = append(all, of(read))
	}
	slices.Sort(all)
	switch n := len(all); {
	case n == 0:
		return 0
	case r.Best && r.Lower:
		return all[0]
	case r.Best:
		return all[n-1]
	case n%2 == 0:
		return (all[n/2-1] + all[n/2]) / 2
	default:
		return all[n/2]
	}
}

// judged returns the figure that bar and aim apply to.
func (r *row) judged() float64 {
	if r.theirs == nil {
		return r.Ours
	}
	return r.Ratio
}

// meets reports whether the result is within a limit.
func (r *row) meets(limit float64) bool {
	if r.Lower {
		return r.judged() <= limit
	}
	return r.judged() >= limit
}
