//go:build linux

package softnic

import (
	"errors"
	"net/netip"
	"testing"

	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// TestUDPMarks: packets carry the traffic class and hop limit of their address vector, and paths that differ
// in them are sent in separate runs.
func TestUDPMarks(t *testing.T) {
	link, err := NewUDPLink(nil)
	check(t, err)
	nic, err := New(link, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 63})})
	check(t, err)
	t.Cleanup(func() { check(t, nic.Close()) })
	nic.core.mu.Lock()
	defer nic.core.mu.Unlock()
	to := func(class, hops uint8) *udp.Dest {
		p, err := nic.newPath(verbs.AHAttr{DGID: verbs.GIDFromAddr(netip.AddrFrom4([4]byte{127, 0, 0, 64})), TrafficClass: class, HopLimit: hops}, false, nil, nil)
		check(t, err)
		return p.route.dest
	}
	if got, want := to(0xb8, 5).Marks(), (udp.Marks{Class: 0xb8, Hops: 5}); got != want {
		t.Errorf("the marks of a path are %+v, want %+v", got, want)
	}
	if one, other := to(0xb8, 5), to(0xb8, 5); one != other {
		t.Error("two paths with the same marks have two destinations, want one")
	}
	if to(0, 0) == to(0xb8, 0) || to(0, 64) != to(0, 0) {
		t.Error("paths with and without a class have one destination, or those with the usual hop limit have two; want it the other way round")
	}
}

// TestUDPFlowLabel: the flow label of an address vector selects the sending socket, just as it selects the
// source port on hardware. A label beyond 20 bits is refused.
func TestUDPFlowLabel(t *testing.T) {
	link, err := NewUDPLink(&UDPConfig{Sockets: udp.DefaultSockets})
	check(t, err)
	nic, err := New(link, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 65})})
	check(t, err)
	t.Cleanup(func() { check(t, nic.Close()) })
	nic.core.mu.Lock()
	defer nic.core.mu.Unlock()
	from := func(label uint32) (int, error) {
		p, err := nic.newPath(verbs.AHAttr{DGID: verbs.GIDFromAddr(netip.AddrFrom4([4]byte{127, 0, 0, 66})), FlowLabel: label}, false, nil, nil)
		if err != nil {
			return 0, err
		}
		return p.route.socket, nil
	}
	used := map[int]bool{}
	for label := range uint32(udp.DefaultSockets) {
		socket, err := from(1<<14 | label)
		check(t, err)
		used[socket] = true
	}
	if len(used) != udp.DefaultSockets {
		t.Errorf("%d labels with ports in a row leave from %d sockets, want as many", udp.DefaultSockets, len(used))
	}
	one, err := from(0x04001)
	check(t, err)
	other, err := from(0x08002) // folds to the same port
	check(t, err)
	if one != other {
		t.Errorf("labels of one source port leave from sockets %d and %d, want one", one, other)
	}
	if _, err := from(1 << 20); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a label of 21 bits: %v, want %v", err, verbs.ErrInvalid)
	}
}
