package sim

import "testing"

// BenchmarkMixed is the mixed world, one seed after the other.
func BenchmarkMixed(b *testing.B) {
	pool := NewPool()
	s, err := Builtin("mixed")
	if err != nil {
		b.Fatal(err)
	}
	seed, turns, packets, messages := uint64(0), 0, 0, 0
	for b.Loop() {
		plans, err := s.Plans(seed)
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range plans {
			r := p.Run(Options{Pool: pool})
			if r.Failure != nil {
				b.Fatalf("seed %d: %v", seed, r.Failure)
			}
			turns += r.Turns
			packets += int(r.Packets)
			messages += r.Messages
		}
		seed++
	}
	for name, n := range map[string]int{"turns": turns, "packets": packets, "messages": messages} {
		b.ReportMetric(float64(n)/float64(seed), name+"/op")
	}
	if err := pool.Close(); err != nil {
		b.Fatal(err)
	}
}
