// Package enginetest is the shared setup of engine tests. [NewPair] connects two hosts on software NICs,
// [NewRailsOn] uses the contexts of any provider, and [NewScriptedQP] puts the NICs under control of the
// test. Only tests may import it.
package enginetest

import (
	"testing"

	"go.uber.org/goleak"

	"ibverbx"
	"ibverbx/internal/property"
)

// Main is the TestMain of a suite. It seeds the property tests, runs all tests, and fails if a test
// leaks a goroutine: the engine does not start any.
func Main(m *testing.M) {
	property.Seed()
	goleak.VerifyTestMain(m)
}

// failer is the part of testing.TB and *rapid.T that Must needs.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// Must fails the test immediately if err is not nil.
func Must(t failer, err error) {
	if err != nil {
		t.Helper() // slower than a poll, so only on failure
		t.Fatal(err)
	}
}

// Schemes lists all notification schemes.
var Schemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}

// ForEachScheme runs a subtest for each scheme.
func ForEachScheme(t *testing.T, run func(t *testing.T, scheme ibverbx.Scheme)) {
	for _, scheme := range Schemes {
		t.Run(scheme.String(), func(t *testing.T) { run(t, scheme) })
	}
}
