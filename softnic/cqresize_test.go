package softnic_test

import (
	"errors"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

func resize(cq verbs.CQ, depth int) error {
	return cq.(interface{ Resize(depth int) error }).Resize(depth)
}

// TestResizeCQ: pending completions stay in order when a CQ grows or shrinks, wherever its ring starts.
// A resize that would discard some is refused.
func TestResizeCQ(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cq := newCQ(t, r.ca, 8)
	qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 8), 64)
	next, taken := uint64(0), uint64(0)
	post := func(n int) {
		t.Helper()
		for range n {
			wr := writeWR(src, dst, 8)
			wr.WRID = next
			next++
			if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
		}
	}
	take := func(n int) {
		t.Helper()
		wcs := poll(t, cq)
		if len(wcs) != n {
			t.Fatalf("%d completions, want %d", len(wcs), n)
		}
		for _, wc := range wcs {
			if wc.WRID != taken || wc.Status != verbs.StatusSuccess {
				t.Fatalf("completion of %d with %v, want %d with success", wc.WRID, wc.Status, taken)
			}
			taken++
		}
	}
	post(5)
	take(5) // the ring starts in the middle
	post(8)
	must(t, resize(cq, 32))
	if got := cq.Depth(); got != 32 {
		t.Errorf("Depth = %d after Resize(32)", got)
	}
	post(20)
	if err := resize(cq, 27); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Resize to less than what waits = %v, want ErrInvalid", err)
	}
	take(28)
	post(3)
	must(t, resize(cq, 4))
	take(3)
	for _, depth := range []int{0, -1, 1<<22 + 1} {
		if err := resize(cq, depth); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Resize(%d) = %v, want ErrInvalid", depth, err)
		}
	}
	must(t, qa.Close())
	must(t, cq.Close())
	if err := resize(cq, 8); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Resize of a closed CQ = %v, want ErrClosed", err)
	}
}
