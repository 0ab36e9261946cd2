//go:build linux

package softnic

import (
	"net/netip"
	"testing"

	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// TestUDPMarks: the traffic class and the hop limit of an address vector are those of its
// packets, and paths that differ in them do not leave in one run.
func TestUDPMarks(t *testing.T) {
	link, err := NewUDPLink(nil)
	check(t, err)
	nic, err := New(link, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 63})})
	check(t, err)
	t.Cleanup(func() { check(t, nic.Close()) })
	link.mu.Lock()
	defer link.mu.Unlock()
	to := func(class, hops uint8) *udp.Dest {
		p, err := nic.newPath(verbs.AHAttr{DGID: verbs.GIDFromAddr(netip.AddrFrom4([4]byte{127, 0, 0, 64})), TrafficClass: class, HopLimit: hops}, false)
		check(t, err)
		return p.way.dest
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
