// Package verbstest is the conformance suite of package verbs: every guarantee of the interface as a
// named test that a provider passes or fails.
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
//			a, b := openTwoContexts(tb) // and tb.Cleanup to close them
//			return verbstest.Pair{A: a, B: b}
//		})
//	}
//
// The InfiniBand Architecture Specification (IBTA) and the manual pages of libibverbs are authoritative.
// Where they allow two outcomes, a test accepts both and explains why. Where a provider departs from
// them, Pair.Departures lists the test and the reason, and Pair.Substitutes the confused statuses.
//
// Tests depend neither on time nor on a provider's internals. Completions are polled with a generous
// deadline, the absence of an arrival is shown by a later arrival, and capabilities are queried from the
// device. Tests of missing capabilities are skipped with a message. Targets of one-sided writes are read
// only after a completion, so the suite is free of races with the build tag heapmem too.
//
// Each test is a guarantee and must not be weakened. A new test needs a row in docs/conformance.md, which
// test/rxe/conformance writes and TestDocument checks, and a mutant that fails it (CONTRIBUTING.md).
// Helpers may change freely.
package verbstest

import (
	"slices"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// Pair is two open contexts with mutually reachable ports. They may be contexts of the same device.
type Pair struct {
	// A and B are the two contexts.
	A, B verbs.Context

	// Departures maps tests in which the provider departs from the specification, as "family/Test"
	// or "family/Test/sub", to the reason. They are skipped.
	Departures map[string]string
	// Substitutes lists, for a specified status, the statuses that the provider reports instead. Tests
	// accept them in failed completions, so that the rest of a test still counts.
	Substitutes map[verbs.Status][]verbs.Status
	// Lossy is set when the path may lose, reorder or duplicate packets. Only guarantees that RC can
	// keep are then tested, and a requester whose peer entered the error state may exceed its retries,
	// because the peer's response was lost.
	Lossy bool
	// Alloc allocates zeroed memory. Nil means verbs.AllocMemory.
	Alloc func(size int) (*verbs.Memory, error)
	// Device is set when Alloc may return device memory. Tests that need CPU access to memory are
	// skipped.
	Device bool

	// PortA and PortB are the ports to use; zero means 1.
	PortA, PortB uint8
	// GIDA and GIDB are the source addresses to use; zero lets the provider choose.
	GIDA, GIDB verbs.GID
}

// test is one guarantee. Its name is part of the public interface: Departures use it.
type test struct {
	name string
	run  func(e *env)
}

// family is a group of tests about one subject.
type family struct {
	name  string
	tests []test
	// unreliable is set if the tests need every packet to arrive.
	unreliable bool
}

var families = []family{
	{name: "device", tests: deviceTests},
	{name: "memory", tests: memoryTests},
	{name: "state", tests: stateTests},
	{name: "sqd", tests: sqdTests},
	{name: "connect", tests: connectTests},
	{name: "send", tests: sendTests},
	{name: "write", tests: writeTests},
	{name: "read", tests: readTests},
	{name: "atomic", tests: atomicTests},
	{name: "order", tests: orderTests},
	{name: "localerror", tests: localErrorTests},
	{name: "remoteerror", tests: remoteErrorTests},
	{name: "keys", tests: keyTests},
	{name: "retry", tests: retryTests},
	{name: "rnr", tests: rnrTests},
	{name: "flush", tests: flushTests},
	{name: "limits", tests: limitsTests},
	{name: "chain", tests: chainTests},
	{name: "cq", tests: cqTests},
	{name: "wait", tests: waitTests},
	{name: "srq", tests: srqTests},
	{name: "uc", tests: ucTests, unreliable: true},
	{name: "ud", tests: udTests, unreliable: true},
	{name: "events", tests: eventsTests},
	{name: "close", tests: closeTests},
	{name: "concurrent", tests: concurrentTests},
	{name: "many", tests: manyTests},
}

// Run runs the suite. It calls open for every test, so tests are independent; open registers its cleanup
// with tb.Cleanup.
func Run(t *testing.T, open func(tb testing.TB) Pair) {
	t.Run("departures", func(t *testing.T) { checkDepartures(t, open(t)) })
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			for _, tt := range f.tests {
				t.Run(tt.name, func(t *testing.T) {
					pair := open(t)
					e := &env{T: t, pair: &pair, name: f.name + "/" + tt.name}
					e.skipDeparture()
					if f.unreliable && pair.Lossy {
						t.Skip("the path is lossy, and only RC repairs that")
					}
					e.start()
					tt.run(e)
				})
			}
		})
	}
}

// checkDepartures rejects a departure for an unknown test, which is misspelled or renamed. It also
// rejects success as a substitute: a request that must fail must not succeed.
func checkDepartures(t *testing.T, pair Pair) {
	known := map[string]bool{}
	for _, f := range families {
		for _, tt := range f.tests {
			known[f.name+"/"+tt.name] = true
		}
	}
	for name, reason := range pair.Departures {
		parts := strings.SplitN(name, "/", 3)
		if len(parts) < 2 || !known[parts[0]+"/"+parts[1]] {
			t.Errorf("departure %q (%s) names no test", name, reason)
		}
		if reason == "" {
			t.Errorf("departure %q has no reason", name)
		}
	}
	for right, others := range pair.Substitutes {
		if right == verbs.StatusSuccess || slices.Contains(others, verbs.StatusSuccess) {
			t.Errorf("substitutes %v for %v: want failures for a failure", others, right)
		}
	}
}
