package traffic_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// contender is one of two hosts that execute atomics on the memory of a third.
type contender struct {
	cq      *ibverbx.VirtualCQ
	qp      *ibverbx.VirtualQP
	results *ibverbx.Region // the value each atomic fetched, in posting order
}

// newContenders returns two hosts connected to a passive owner. Each may be used by a separate goroutine.
func newContenders(t *testing.T, rails, results int) (owner *enginetest.Host, both [2]*contender) {
	t.Helper()
	links := enginetest.MemoryLinks(rails)
	owner = enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2})
	for i := range both {
		h := enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2})
		c := &contender{cq: h.CQ, results: h.Region(8 * results)}
		c.qp, _ = newPeers(t, h, owner, ibverbx.Config{Lanes: 3, SendDepth: 64})
		both[i] = c
	}
	return owner, both
}

// run posts atomics and polls until all have completed.
func (c *contender) run(wrs []ibverbx.SendWR) error {
	for i := range wrs {
		wrs[i].WRID, wrs[i].Flags = uint64(i), verbs.SendSignaled
		wrs[i].SetSGE(c.results.SGE(uint64(8*i), 8))
	}
	var wcs [32]ibverbx.WC
	var p stallGuard
	for posted, done := 0, 0; done < len(wrs); {
		n, err := c.qp.PostSend(wrs[posted:min(posted+16, len(wrs))])
		if posted += n; n == 0 && posted < len(wrs) && err != verbs.ErrQueueFull { //nolint:errorlint // it must not be wrapped
			return err
		}
		if n, err = c.cq.Poll(wcs[:]); err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil || wcs[i].WRID != uint64(done) {
				return fmt.Errorf("completion of request %d, %w; want %d", wcs[i].WRID, err, done)
			}
			done++
		}
		if err := p.step(n > 0); err != nil {
			return fmt.Errorf("%w: %d of %d atomics have ended", err, done, len(wrs))
		}
	}
	return nil
}

// contend runs both at the same time.
func contend(t *testing.T, both [2]*contender, wrs [2][]ibverbx.SendWR) {
	t.Helper()
	done := make(chan error, len(both))
	for i, c := range both {
		go func() { done <- c.run(wrs[i]) }()
	}
	for range both {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// found returns the old values that each side's atomics fetched.
func found(both [2]*contender, n int) (olds [2][]uint64) {
	for i, c := range both {
		for k := range n {
			olds[i] = append(olds[i], binary.NativeEndian.Uint64(c.results.Bytes()[8*k:]))
		}
	}
	return olds
}

// TestFetchAddFromTwoSides: two hosts concurrently add to one word. The sum is right, every intermediate
// value was fetched exactly once, and each side fetched its values in order.
func TestFetchAddFromTwoSides(t *testing.T) {
	const adds = 2000
	for _, rails := range []int{1, 2} {
		t.Run(fmt.Sprintf("rails=%d", rails), func(t *testing.T) {
			owner, both := newContenders(t, rails, adds)
			word := owner.Region(8)
			var wrs [2][]ibverbx.SendWR
			for i := range both {
				for range adds {
					wrs[i] = append(wrs[i], ibverbx.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 1, Remote: word.Remote()})
				}
			}
			contend(t, both, wrs)
			if got := binary.NativeEndian.Uint64(word.Bytes()); got != 2*adds {
				t.Errorf("the word is %d after %d additions of 1", got, 2*adds)
			}
			olds := found(both, adds)
			for i := range olds {
				if !slices.IsSorted(olds[i]) {
					t.Errorf("side %d did not find its values in the order of its requests", i)
				}
			}
			all := slices.Concat(olds[0], olds[1])
			slices.Sort(all)
			for i, old := range all {
				if old != uint64(i) {
					t.Fatalf("value %d was found where %d is due: an addition was lost or done twice", old, i)
				}
			}
		})
	}
}

// TestCompareSwapHasOneWinner: two hosts try to claim the same words, starting from opposite ends. Each word
// has one winner, which found it free; the loser found the winner's value.
func TestCompareSwapHasOneWinner(t *testing.T) {
	const words = 1000
	for _, rails := range []int{1, 2} {
		t.Run(fmt.Sprintf("rails=%d", rails), func(t *testing.T) {
			owner, both := newContenders(t, rails, words)
			region := owner.Region(8 * words)
			var wrs [2][]ibverbx.SendWR
			for i := range both {
				for k := range words {
					if i == 1 {
						k = words - 1 - k
					}
					wrs[i] = append(wrs[i], ibverbx.SendWR{Opcode: verbs.OpAtomicCmpAndSwp, Swap: uint64(i + 1), Remote: region.Remote(), RemoteOffset: uint64(8 * k)})
				}
			}
			contend(t, both, wrs)
			olds := found(both, words)
			slices.Reverse(olds[1])
			won := [2]int{}
			for k := range words {
				winner := 0
				if olds[0][k] != 0 {
					winner = 1
				}
				won[winner]++
				word := binary.NativeEndian.Uint64(region.Bytes()[8*k:])
				if olds[winner][k] != 0 || olds[1-winner][k] != uint64(winner+1) || word != uint64(winner+1) {
					t.Fatalf("word %d is %d; the sides found %d and %d: want one winner", k, word, olds[0][k], olds[1][k])
				}
			}
			if won[0]+won[1] != words {
				t.Errorf("%d and %d words were won, want %d together", won[0], won[1], words)
			}
		})
	}
}
