//go:build race || ibverbxdebug

package ibverbx

import "testing"

// TestGuard: a call while another is under way on the same VirtualCQ panics.
func TestGuard(t *testing.T) {
	c := &VirtualCQ{}
	c.guard.enter("Poll")
	defer func() {
		if recover() == nil {
			t.Error("a second call was let in")
		}
		c.guard.leave()
		c.guard.enter("Poll") // and one after it is fine
		c.guard.leave()
	}()
	_, _ = c.Poll(nil)
}

// TestTransitions: a lane goes through its whole life, and no state may be skipped.
func TestTransitions(t *testing.T) {
	l := &lane{}
	for _, next := range []laneState{laneDying, laneGone, laneIdle, laneOffered, laneProbing, laneUp} {
		l.become(next, 0, nil)
	}
	defer func() {
		if recover() == nil {
			t.Error("a lane went from up to offered")
		}
	}()
	l.become(laneOffered, 0, nil)
}
