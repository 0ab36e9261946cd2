package service

import (
	"net"
	"testing"
)

// TestByHostIsBounded: addresses on more than 256 hosts are counted under "other".
func TestByHostIsBounded(t *testing.T) {
	counts := ByHost[int]{}
	for i := range 2 * maxHosts {
		addr := &net.TCPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i)), Port: 1000 + i}
		host, first := counts.Of(addr)
		again, second := counts.Of(addr)
		want := addr.IP.String()
		if i >= maxHosts {
			want = otherHost
		}
		if host != want || again != want || first != second {
			t.Fatalf("host %d counts under %q and %q, want %q", i, host, again, want)
		}
	}
	if len(counts) != maxHosts+1 {
		t.Errorf("%d hosts are kept, want %d", len(counts), maxHosts+1)
	}
	if host, c := counts.Of(nil); host != otherHost || c == nil {
		t.Errorf("without an address: got %q, want %q", host, otherHost)
	}
}
