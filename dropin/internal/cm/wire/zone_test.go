//go:build linux

package wire

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"ibverbx/dropin/internal/cm"
)

// linkLocal returns a link-local address of this host. Its zone is the number of the interface, as programs name it.
func linkLocal(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range all {
		addrs, _ := in.Addrs() // the interface may be gone
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				return p.Addr().WithZone(strconv.Itoa(in.Index))
			}
		}
	}
	t.Skip("this host has no link-local IPv6 address")
	return netip.Addr{}
}

// TestLinkLocal: addresses of both sides keep their zones, whether a port is bound or not, so that a program can use them.
func TestLinkLocal(t *testing.T) {
	addr := linkLocal(t)
	for _, at := range []netip.Addr{addr, netip.IPv6Unspecified()} {
		h := newEnds()
		p, conns := listen(t, Link{}, netip.AddrPortFrom(at, 0).String(), newEnds())
		to := netip.AddrPortFrom(addr, p.Local().Port())
		for _, from := range []netip.Addr{{}, addr, netip.IPv6Unspecified()} {
			var b cm.Port
			var err error
			if from.IsValid() {
				if b, err = (Link{}).Bind(netip.AddrPortFrom(from, 0), cm.PortOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if b, err = (Link{}).Resolve(b, netip.AddrPort{}, to, cm.PortOptions{}); err != nil {
				t.Fatalf("Resolve from %s: %v", from, err)
			}
			defer b.Close()
			m := request()
			m.Port = b.Local().Port()
			c := b.Connect(m, h)
			defer c.Close()
			select {
			case why := <-h.lost:
				t.Errorf("connecting from %s to %s failed with %v", from, to, why)
			case passive := <-conns:
				if local, remote := passive.Addrs(); local != to || remote != b.Local() || remote.Addr() != addr {
					t.Errorf("connection from %s at %s, and %s at the dialer; want %s at %s", remote, local, b.Local(), netip.AddrPortFrom(addr, m.Port), to)
				}
			}
		}
	}
}
