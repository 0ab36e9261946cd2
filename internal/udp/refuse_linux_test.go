package udp

import (
	"net/netip"
	"testing"
)

// A destination that does not accept runs does not affect the others: they continue to use runs.
func TestRunsRefusedByDestination(t *testing.T) {
	c := open(t, Config{})
	if c.Segments() == 1 {
		t.Skip("the kernel has no UDP_SEGMENT")
	}
	w := c.NewWriter()
	to := NewDest(netip.MustParseAddrPort("0.1.2.3:4791"), true) // an address without a host: EINVAL
	for i := range 2 {
		put(w, to, 0, pattern(1000, i))
	}
	if dropped := w.Flush(); dropped != 2 {
		t.Fatalf("%d of 2 datagrams to %v dropped, want both", dropped, to.Addr())
	}
	if !to.refused || c.Segments() == 1 {
		t.Errorf("runs to it refused: %v, to others: at most %d datagrams, want true and %d", to.refused, c.Segments(), maxSegments)
	}
	for i := range 2 {
		if k := put(w, to, 0, pattern(1000, i)); k != 0 {
			t.Errorf("datagram %d is number %d of a run, want 0", i, k)
		}
	}
	w.Flush()
}
