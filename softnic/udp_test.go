//go:build linux

package softnic_test

import (
	"net/netip"
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// openUDP returns contexts on NICs at two addresses, on one link if they differ.
func openUDP(tb testing.TB, cfg *softnic.UDPConfig, nic softnic.Config, addrs ...string) verbstest.Pair {
	tb.Helper()
	link, err := softnic.NewUDPLink(cfg)
	must(tb, err)
	var ctx [2]verbs.Context
	for i, a := range addrs {
		if i == 1 && a == addrs[0] {
			link, err = softnic.NewUDPLink(cfg)
			must(tb, err)
		}
		nic.Addr = netip.MustParseAddr(a)
		n, err := softnic.New(link, nic)
		must(tb, err)
		tb.Cleanup(func() {
			if tb.Failed() {
				tb.Logf("%s: %+v", a, n.Stats())
			}
			must(tb, n.Close())
		})
		ctx[i], err = n.Open()
		must(tb, err)
	}
	return verbstest.Pair{A: ctx[0], B: ctx[1]}
}

// TestConformanceUDP runs the suite over UDP on loopback: with and without runs of datagrams, over both
// IP versions, with header-only and full ICRCs, and between NICs on one link and on two, which must use
// different ports.
func TestConformanceUDP(t *testing.T) {
	t.Parallel()
	plain := softnic.UDPConfig{NoSegment: true, NoCoalesce: true}
	full := plain
	full.ICRC = softnic.ICRCFull
	variants := []struct {
		name string
		cfg  softnic.UDPConfig
		mtu  verbs.MTU
		a, b string
	}{
		{"ipv4", softnic.UDPConfig{}, 0, "127.0.0.1", "127.0.0.2"},
		{"ipv4 plain", plain, verbs.MTU1024, "127.0.0.1", "127.0.0.2"},
		{"ipv4 two links", softnic.UDPConfig{ICRC: softnic.ICRCFull}, verbs.MTU256, "127.0.0.3", "127.0.0.3"},
		{"ipv6 two links", softnic.UDPConfig{}, 0, "::1", "::1"},
		{"ipv6 plain", full, verbs.MTU2048, "::1", "::1"},
		{"shared memory", softnic.UDPConfig{SharedMemory: true}, 0, "127.0.0.3", "127.0.0.3"},
	}
	if heapMemory {
		// Two links have separate locks, so the race detector cannot see that a packet is sent before it is
		// received.
		variants = variants[:2]
	}
	for i, v := range variants {
		if !testslice.Of(t).Has(i, len(variants)) {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
				p := openUDP(tb, &v.cfg, softnic.Config{MTU: v.mtu}, v.a, v.b)
				p.Alloc = func(size int) (*verbs.Memory, error) {
					return verbs.AllocMemory(size, &verbs.MemoryConfig{Shared: v.cfg.SharedMemory})
				}
				return p
			})
		})
	}
}

// TestConformanceSealed runs the suite over sealed packets, and its RC part over a corrupting network as
// well.
func TestConformanceSealed(t *testing.T) {
	t.Parallel()
	t.Run("intact", func(t *testing.T) {
		pickVariant(t, 3)
		verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
			return sealPair(tb, openUDP(tb, nil, softnic.Config{}, "127.0.0.4", "127.0.0.5"))
		})
	})
	t.Run("faults", func(t *testing.T) {
		pickVariant(t, 4)
		verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
			p := openUDP(tb, &softnic.UDPConfig{
				Seed:       1,
				Impairment: softnic.Impairment{Loss: 0.02, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.005},
			}, softnic.Config{MTU: verbs.MTU1024}, "127.0.0.4", "127.0.0.5")
			p.Lossy = true
			return sealPair(tb, p)
		})
	})
}

// TestConformanceUDPOverFaults runs the RC part of the suite over UDP with a layer that loses, duplicates,
// reorders and corrupts outgoing packets.
func TestConformanceUDPOverFaults(t *testing.T) {
	pickVariant(t, 2)
	t.Parallel() // mostly waiting
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		p := openUDP(tb, &softnic.UDPConfig{
			Seed:       1,
			Impairment: softnic.Impairment{Loss: 0.02, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.005},
		}, softnic.Config{MTU: verbs.MTU1024}, "127.0.0.6", "127.0.0.7")
		p.Lossy = true
		return p
	})
}
