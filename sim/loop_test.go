package sim

import (
	"testing"
	"time"
)

// TestTimeWaitsForRefusedPosts: time does not pass a fault while an end has requests that it does not post
// because of an earlier refusal. Otherwise the fault would not meet any request in these worlds.
func TestTimeWaitsForRefusedPosts(t *testing.T) {
	s, err := Builtin("black-hole")
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range []uint64{92000027, 92000056} {
		clean(t, s, seed, 1)
	}
}

// TestRefusedPostIsTriedAgain: an end retries a refused post before every long jump of time, even if only
// another host's timers are due, which do not wake it.
func TestRefusedPostIsTriedAgain(t *testing.T) {
	w := &world{plan: &Plan{}, healed: int64(time.Second)}
	timer := &transport{}
	w.hosts = []*host{{w: w, nextPoll: never, transports: []*transport{timer}}, {w: w, nextPoll: never}}
	e := &end{w: w, host: w.hosts[1]}
	w.ends = []*end{e}
	e.blocked = blockedTurns
	for range 3 {
		timer.deadline = w.now + 10*longJump
		tried := 0
		for limit := timer.deadline; w.now < limit && tried < 2 && w.jump(); {
			timer.touched = e.blocked == 0
			if timer.touched { // The host runs, and the post is refused.
				tried++
				e.blocked, e.host.nextPoll = blockedTurns, never
			}
		}
		if tried != 1 {
			t.Fatalf("the end tried its post %d times before the jump to %v, want 1", tried, time.Duration(timer.deadline))
		}
	}
}

// TestPlacedPacketsAreCountedWithoutLocks runs a world in which a lane fault waits for packets to be placed
// while another end is closed on a wrapped rail. Package reliable holds its lock at that point; counting the
// packet immediately would deadlock.
func TestPlacedPacketsAreCountedWithoutLocks(t *testing.T) {
	s, err := Builtin("wrapped")
	if err != nil {
		t.Fatal(err)
	}
	clean(t, s, 660, 1)
}
