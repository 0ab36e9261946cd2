// Package rig is the setup that tests of the engine share: hosts on software NICs and on
// real ones, connected pairs, NICs that a test controls, payloads, and wire formats. Only
// tests import it. Everything that it opens is closed when the test ends.
package rig

import (
	"testing"

	"go.uber.org/goleak"

	"ibverbx"
	"ibverbx/internal/property"
)

// Main is the TestMain of a suite. It seeds the property tests, runs everything, and fails
// if a test leaves a goroutine behind: the engine starts none.
func Main(m *testing.M) {
	property.Seed()
	goleak.VerifyTestMain(m)
}

// failer is the part of testing.TB and *rapid.T that Must needs.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// Must ends the test if err is not nil.
func Must(t failer, err error) {
	if err != nil {
		t.Helper() // it takes longer than a poll
		t.Fatal(err)
	}
}

// Schemes are all notification schemes.
var Schemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}

// ForEachScheme runs a subtest for each scheme.
func ForEachScheme(t *testing.T, run func(t *testing.T, scheme ibverbx.Scheme)) {
	for _, scheme := range Schemes {
		t.Run(scheme.String(), func(t *testing.T) { run(t, scheme) })
	}
}
