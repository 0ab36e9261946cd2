package sim

import (
	"strings"
	"testing"
)

// shrunk runs a scenario with seed 1, which must fail in a check, and returns the smaller plan.
func shrunk(t *testing.T, text, check string) *Plan {
	t.Helper()
	s, err := Parse("test", text)
	if err != nil {
		t.Fatal(err)
	}
	plans, err := s.Plans(1)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Pool: NewPool()} // It is not closed, because a broken world may leave memory registered.
	failure := plans[0].Run(o).Failure
	if failure == nil || failure.Check != check {
		t.Fatalf("failure = %v, want one of the check %s", failure, check)
	}
	small := Shrink(plans[0], failure, o, 200)
	if again := small.Run(o).Failure; !again.same(failure) {
		t.Errorf("the smaller world fails with %v, want %v", again, failure)
	}
	return small
}

// TestShrinkKeepsTheCause: a world in which an expected failure is missing is not reduced to one without the
// fault and the requests that should cause it.
func TestShrinkKeepsTheCause(t *testing.T) {
	small := shrunk(t, `
		failover off
		connections 1
		hosts 2
		rails 2
		messages 20
		fault slow at 1us for 1ms
		fault cut rail 0 from 0 to 1 at 1s for 900ms  # when all requests have ended
		expect failure`, "expectation")
	c := &small.Connects[0]
	if len(small.Faults) != 1 || small.Faults[0].Kind != FaultCut || c.Ends[0].Messages+c.Ends[1].Messages == 0 {
		t.Errorf("the smaller world has lost the cut or the requests:\n%s", small)
	}
}

// TestExpectFailureNeedsACause: a scenario that expects a failure without a fault that can cause one is
// reported as a scenario error.
func TestExpectFailureNeedsACause(t *testing.T) {
	for _, text := range []string{"faults 0\n", "messages 0\nfault cut rail 0 from 0 to 1 at 0s for 900ms\n"} {
		s, err := Parse("test", "failover off\nhosts 2\nrails 1\nconnections 1\nexpect failure\n"+text)
		if err != nil {
			t.Fatal(err)
		}
		r := Runner{Scenario: s, First: 1, Seeds: 1}
		sum, err := r.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if sum.Failed != 1 || sum.Failures[0].Failure.Check != "world" || !strings.Contains(sum.Failures[0].Failure.Text, "no fault can end") {
			t.Errorf("%q: failures = %+v, want one that says that no fault can cause it", text, sum.Failures)
		}
	}
}
