package forward

import "testing"

// TestShares: a greedy peer leaves slots to others, and they get the slots it returns.
func TestShares(t *testing.T) {
	s := &fairLimiter{total: 24, by: map[string]int{}}
	grab := func(peer string) (n int) {
		for s.take(peer) {
			n++
		}
		return n
	}
	for _, c := range []struct {
		peer string
		want int
	}{{"greedy", 12}, {"second", 6}, {"third", 3}, {"greedy", 0}} {
		if got := grab(c.peer); got != c.want {
			t.Errorf("%s got %d places, want %d", c.peer, got, c.want)
		}
	}
	for range 12 {
		s.give("greedy")
	}
	if got := grab("second"); got != 5 { // the second then has 11, the third 3, and 10 are free
		t.Errorf("the second peer got %d places more, want 5", got)
	}
	if got := grab("greedy"); got < 1 {
		t.Errorf("a peer without places got %d, want at least 1", got)
	}
	if len(s.by) != 3 || s.by["second"]+s.by["third"]+s.by["greedy"] != s.taken || s.taken > s.total {
		t.Errorf("%d of %d places are taken, by peers: %v", s.taken, s.total, s.by)
	}
}
