package reliable

import "testing"

// TestConnectionNumbers: a connection does not get the number of an earlier one for a long time, whose packets may
// be late. Packets of all connections between two engines come from the same UD QPs.
func TestConnectionNumbers(t *testing.T) {
	for _, open := range []int{1, 32, 64, 100, 256} {
		e, seen := &engine{}, make(map[uint32]int)
		for made := 0; made < 4000; made += open {
			for i := range open {
				c := &connection{engine: e}
				if err := c.register(); err != nil {
					t.Fatal(err)
				}
				if before, ok := seen[c.id]; ok {
					t.Fatalf("with %d connections at a time, number %d has the id of number %d", open, made+i, before)
				}
				if seen[c.id] = made + i; e.findConnection(c.id) != c {
					t.Fatalf("findConnection does not find number %d", made+i)
				}
			}
			clear(e.conns)
		}
	}
}
