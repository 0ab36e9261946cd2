package transport

import (
	"net"
	"testing"
)

// TestSelected: interfaces are selected as by NCCL_SOCKET_IFNAME.
func TestSelected(t *testing.T) {
	for _, tt := range []struct {
		selection, name string
		want            bool
	}{
		{"eth", "eth0", true},
		{"eth", "ib0", false},
		{"eth,ib", "ib0", true},
		{"=eth0", "eth0", true},
		{"=eth0", "eth01", false},
		{"=eth0,ib0", "ib0", true},
		{"^docker", "eth0", true},
		{"^docker", "docker0", false},
		{"^docker,lo", "lo", false},
		{"^=eth0", "eth0", false},
		{"^=eth0", "eth01", true},
		{"eth0:1", "eth0", true},
	} {
		if got := selected(tt.name, tt.selection); got != tt.want {
			t.Errorf("selected(%q, %q) = %v, want %v", tt.name, tt.selection, got, tt.want)
		}
	}
}

// TestHostAddrs: loopback is used if it is selected, or alone.
func TestHostAddrs(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	addrs := hostAddrs(all, "")
	if len(addrs) == 0 {
		t.Skip("this host has no address, not even a loopback one")
	}
	for _, a := range addrs {
		if len(addrs) > 1 && a.IsLoopback() {
			t.Errorf("%v is a loopback address beside others: %v", a, addrs)
		}
	}
	if got := hostAddrs(all, "no-such-interface"); len(got) != 0 {
		t.Errorf("hostAddrs without an interface = %v, want none", got)
	}
}
