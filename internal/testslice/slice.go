// Package testslice lets a run execute one slice of every long suite. IBVERBX_TEST_SLICE is "k/n": part k
// of n equal parts, counted from 0. 0/1 is the whole suite; the default is 0/6. .ci/run derives k from the
// commit, so a commit always runs the same part. Tests call [Pick], or [Of] and the methods of [Slice].
package testslice

import (
	"fmt"
	"os"
	"testing"
)

// Env is the environment variable that holds the part to run.
const Env = "IBVERBX_TEST_SLICE"

// Slice is one of several equal parts of a suite. The zero value is the whole suite.
type Slice struct{ index, parts int }

// Current returns the part selected by the environment.
func Current() (Slice, error) { return parse(os.Getenv(Env)) }

// Of is Current for a test. An invalid value fails the test.
func Of(tb testing.TB) Slice {
	tb.Helper()
	s, err := Current()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func parse(text string) (Slice, error) {
	if text == "" {
		return Slice{index: 0, parts: 6}, nil
	}
	var s Slice
	_, err := fmt.Sscanf(text, "%d/%d", &s.index, &s.parts)
	if err != nil || s.index < 0 || s.index >= s.parts || fmt.Sprintf("%d/%d", s.index, s.parts) != text {
		return Slice{}, fmt.Errorf("%s is %q: want k/n with 0 <= k < n, for example 3/6", Env, text)
	}
	return s, nil
}

// AtMost returns the corresponding part of a suite that is divided into at most n parts, for suites
// whose parts would otherwise be too small. With 3, part 4/6 is part 1/3.
func (s Slice) AtMost(n int) Slice {
	if s.parts <= n {
		return s
	}
	return Slice{index: s.index % n, parts: n}
}

// Whole reports whether this is the whole suite.
func (s Slice) Whole() bool { return s.parts <= 1 }

// Has reports whether entry i of a list of n entries is in this part. Every entry is in at least
// one part, and every part has at least one entry.
func (s Slice) Has(i, n int) bool { return s.Whole() || i%s.parts == s.index%min(n, s.parts) }

// Pick returns the entries of a list in the current part.
func Pick[T any](tb testing.TB, all []T) (mine []T) {
	tb.Helper()
	part := Of(tb)
	for i, v := range all {
		if part.Has(i, len(all)) {
			mine = append(mine, v)
		}
	}
	return mine
}

// First returns the index of this part's first repetition of a check that a full run repeats full
// times. The parts follow each other.
func (s Slice) First(full int) int { return s.index * s.Count(full) }

// Count returns the number of this part's repetitions of a check that a full run repeats full
// times: at least one if full is positive.
func (s Slice) Count(full int) int {
	if s.Whole() {
		return full
	}
	return (full + s.parts - 1) / s.parts
}
