package peer

import (
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// TestCardAddresses: packets go to the peer, to addresses that it can have, and to no other host.
func TestCardAddresses(t *testing.T) {
	var local []netip.Prefix
	for _, p := range []string{"127.0.0.1/8", "10.1.2.3/24", "192.168.7.1/31", "2001:db8:1::3/64", "fe80::3/64"} {
		local = append(local, netip.MustParsePrefix(p))
	}
	for _, tt := range []struct {
		peer, addr string
		ok         bool
	}{
		{"203.0.113.5", "203.0.113.5", true},        // the connection's own
		{"203.0.113.5", "10.1.2.9", true},           // another rail, on a network of this host
		{"203.0.113.5", "192.168.7.0", true},        // a link of two hosts lacks a broadcast address
		{"203.0.113.5", "2001:db8:1::9", true},      //
		{"203.0.113.5", "fe80::9", true},            //
		{"203.0.113.5", "198.51.100.7", true},       // in PeerNetworks
		{"203.0.113.5", "203.0.113.99", true},       // in the certificate
		{"203.0.113.5", "203.0.113.6", false},       // next to the peer's address
		{"203.0.113.5", "8.8.8.8", false},           // anybody
		{"203.0.113.5", "2001:db8:2::9", false},     //
		{"203.0.113.5", "10.1.2.255", false},        // broadcast
		{"203.0.113.5", "255.255.255.255", false},   //
		{"203.0.113.5", "224.0.0.1", false},         // multicast
		{"203.0.113.5", "ff02::1", false},           //
		{"203.0.113.5", "0.0.0.0", false},           //
		{"203.0.113.5", "::", false},                //
		{"203.0.113.5", "127.0.0.1", false},         // this host, as seen from another
		{"203.0.113.5", "10.1.2.3", false},          //
		{"127.0.0.1", "127.0.0.2", true},            // both on this host
		{"127.0.0.1", "10.1.2.3", true},             //
		{"10.1.2.3", "127.0.0.9", true},             //
		{"::1", "127.0.0.1", true},                  //
		{"127.0.0.1", "127.255.255.255", false},     //
		{"127.0.0.1", "10.1.2.9", false},            // a local process cannot have another host's address
		{"2001:db8:9::1", "2001:db8:9::1", true},    //
		{"2001:db8:9::1", "2001:db8:9::2", false},   //
		{"203.0.113.5", "198.51.101.7", false},      // beside PeerNetworks
		{"198.51.100.1", "198.51.100.255", true},    // the prefix length of that network is unknown here
		{"203.0.113.5", "::ffff:203.0.113.5", true}, // as a GID has it
	} {
		v := allowedAddrs{peer: netip.MustParseAddr(tt.peer), local: local, more: []netip.Prefix{
			netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.99/32"),
		}}
		err := v.check(netip.MustParseAddr(tt.addr).Unmap())
		if (err == nil) != tt.ok || (err != nil && !errors.Is(err, verbs.ErrInvalid)) {
			t.Errorf("a card of %s with %s: got %v, want it accepted: %v", tt.peer, tt.addr, err, tt.ok)
		}
	}
}

// TestAllowedAddrs: the allowed addresses derive from the connection, this host, the Config and the certificate.
func TestAllowedAddrs(t *testing.T) {
	c := Config{Fabric: Fabric{PeerNetworks: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}}
	v, err := c.allowedAddrs(bootstrap.Peer{
		Addr:        &net.TCPAddr{IP: net.ParseIP("203.0.113.5"), Port: 1},
		Certificate: &x509.Certificate{IPAddresses: []net.IP{net.ParseIP("203.0.113.99")}},
	})
	if err != nil || v.peer.String() != "203.0.113.5" || len(v.local) == 0 {
		t.Fatalf("vicinity: got %+v, %v, want the peer's address and those of this host", v, err)
	}
	for _, a := range []string{"198.51.100.7", "203.0.113.99"} {
		if err := v.check(netip.MustParseAddr(a)); err != nil {
			t.Errorf("%s: got %v, want no error", a, err)
		}
	}
	if !v.isLocal(netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("127.0.0.1 is not an address of this host, want it to be")
	}
}

// TestCardBesideSharedMemory: rails beside shared memory send packets, so the addresses in the peer's card are checked. Shared memory in place of
// rails sends none, nor do rails of a Node that are ends of a softnic.ShmLink.
func TestCardBesideSharedMemory(t *testing.T) {
	auth := bootstrap.Config{InsecurePlaintextOnLoopback: true}
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", auth)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	conn, err := bootstrap.Dial(t.Context(), l.Addr().String(), auth)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = conn.Close() }()
	elsewhere := verbs.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	card := &ibverbx.Card{Lanes: []ibverbx.CardLane{{GID: elsewhere}}}
	rails := []OfferRail{{Network: "roce"}}
	for name, s := range map[string]*Session{
		"beside shared memory":   {Conn: conn, Link: LinkShm, shared: true, shmConns: make([]*net.UnixConn, 1)},
		"replaced":               {Conn: conn, Link: LinkShm},
		"of a Node on a ShmLink": {Conn: conn, Link: LinkShm, shared: true},
		"without shared memory":  {Conn: conn, Link: LinkUDP, shared: true},
	} {
		checked := len(s.shmConns) > 0 || s.Link == LinkUDP
		errs := []error{s.checkCard(&Config{}, rails, &ibverbx.Card{Lanes: make([]ibverbx.CardLane, 1)}, card), s.checkGID(&Config{}, rails)(0, elsewhere)}
		for i, what := range []string{"the card", "an address that follows"} {
			if errors.Is(errs[i], verbs.ErrInvalid) != checked {
				t.Errorf("rails %s: %s with the address of another host: got %v", name, what, errs[i])
			}
		}
	}
}
