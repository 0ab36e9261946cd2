package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestControl checks that a control channel delivers datagrams in order, and applies its faults.
func TestControl(t *testing.T) {
	for _, c := range []struct {
		fault FaultKind
		holds func(got []string) bool
	}{
		{numFaults, func(got []string) bool { return len(got) == 100 && slices.IsSorted(got) }},
		{FaultControlCut, func(got []string) bool { return len(got) == 0 }},
		{FaultControlLoss, func(got []string) bool { return len(got) > 20 && len(got) < 80 && slices.IsSorted(got) }},
		{FaultControlRepeat, func(got []string) bool { return len(got) > 150 && len(got) <= 300 && slices.IsSorted(got) }},
		{FaultControlDelay, func(got []string) bool { return len(got) == 100 && slices.IsSorted(got) }},
		{FaultControlReorder, func(got []string) bool { return len(got) == 100 && !slices.IsSorted(got) }},
	} {
		w := &world{plan: &Plan{Failover: true}, rng: rand.New(rand.NewPCG(1, 1))}
		pair := &controlPair{w: w}
		w.control = []*controlPair{pair}
		from, to := channel{pair: pair, side: 0}, channel{pair: pair, side: 1}
		if c.fault < numFaults {
			w.injectControl(&end{}, &Fault{Kind: c.fault}, int64(time.Second))
		}
		for i := range 100 {
			if err := from.Send(fmt.Appendf(nil, "%03d", i)); err != nil {
				t.Fatal(err)
			}
		}
		buf := make([]byte, 512)
		if n, err := to.Recv(buf); n != 0 || err != nil {
			t.Errorf("%v: Recv = %d, %v before anything can have come", c.fault, n, err)
		}
		var got []string
		for at := pair.next(); at != never; at = pair.next() {
			w.now = at
			for n, _ := to.Recv(buf); n > 0; n, _ = to.Recv(buf) {
				got = append(got, string(buf[:n]))
			}
		}
		if !c.holds(got) {
			t.Errorf("%v: %d datagrams came: %q", c.fault, len(got), got)
		}
		if n, _ := from.Recv(buf); n != 0 {
			t.Errorf("%v: what one end sends came back to it", c.fault)
		}
	}
}
