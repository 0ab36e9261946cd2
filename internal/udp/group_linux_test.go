package udp

import (
	"net/netip"
	"testing"
)

// TestGroups: every Conn of a group receives its datagrams on its interface, in order, and no
// others.
func TestGroups(t *testing.T) {
	from := open(t, Config{})
	group, other := netip.MustParseAddr("239.77.0.1"), netip.MustParseAddr("239.77.0.2")
	cfg := Config{Addr: loopback4, Port: from.Addr().Port()}
	var members [2]*Conn
	for i := range members {
		c, err := OpenGroup(cfg, group)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		members[i] = c
	}
	if err := from.AimAt(group); err != nil {
		t.Fatal(err)
	}
	w := from.NewWriter()
	for _, to := range []netip.Addr{other, group} {
		for k := range 3 {
			put(w, NewDest(netip.AddrPortFrom(to, cfg.Port), true), 0, pattern(100, k))
		}
	}
	if dropped := w.Flush(); dropped != 0 {
		t.Fatalf("%d datagrams were dropped", dropped)
	}
	for i, c := range members {
		datagrams, _ := got(t, c, c.NewReader(), 3)
		for k, b := range datagrams {
			if string(b) != string(pattern(100, k)) {
				t.Errorf("member %d: datagram %d is not what was sent", i, k)
			}
		}
	}
}

// TestGroupRefused: joining a group fails for an address without an interface, and AimAt fails for
// groups of the other IP version.
func TestGroupRefused(t *testing.T) {
	if c, err := OpenGroup(Config{Addr: netip.MustParseAddr("203.0.113.9"), Port: testPort}, netip.MustParseAddr("239.77.0.1")); err == nil {
		_ = c.Close()
		t.Error("an address of no interface has joined a group")
	}
	if err := open(t, Config{}).AimAt(netip.MustParseAddr("ff0e::77")); err == nil {
		t.Error("a socket of IPv4 leads to a group of IPv6")
	}
}
