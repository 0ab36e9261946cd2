package softnic_test

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestWireTakesTime sends 256 packets without responses over a wire that transmits each in 83.16 ns.
// Fractions of a nanosecond add up, and lost or cut packets also occupy the wire.
func TestWireTakesTime(t *testing.T) {
	const exact = 256 * (4096 + softnic.PacketOverhead) / 50
	for name, c := range map[string]struct {
		loss float64
		cut  bool
		low  int64
	}{"none lost": {0, false, exact}, "half lost": {0.5, false, exact - 1500}, "first half cut off": {0, true, 2*exact - 1}} {
		w := newWorld(t, softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: c.loss, Rate: 50e9}})
		r := newRig(t, w.link)
		_, src := memory(t, r.pa, mib)
		_, dst := memory(t, r.pb, mib)
		cq := newCQ(t, r.ca, 4)
		qa, _ := r.pair(verbs.UC, cq, newCQ(t, r.cb, 4), 4)
		high := int64(exact)
		if c.cut {
			high *= 2
			w.link.Cut(r.a, r.b)
			if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, mib)}); err != nil {
				t.Fatalf("PostSend = %v, want none", err)
			}
			w.link.Restore(r.a, r.b)
		}
		if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, mib)}); err != nil {
			t.Fatalf("PostSend = %v, want none", err)
		}
		w.settle(t)
		if w.now < c.low || w.now > high+1 {
			t.Errorf("%s: the last packet came at %d ns, want %d to %d", name, w.now, c.low, high+1)
		}
	}
}
