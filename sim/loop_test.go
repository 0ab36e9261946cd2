package sim

import "testing"

// TestTimeWaitsForRefusedPosts checks that time does not pass a fault while an end has requests that it
// does not try to post because of an earlier refusal. In these worlds the fault then met no request.
func TestTimeWaitsForRefusedPosts(t *testing.T) {
	s, err := Named("black-hole")
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range []uint64{92000027, 92000056} {
		clean(t, s, seed, 1)
	}
}
