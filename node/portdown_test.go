package node

import (
	"testing"

	"ibverbx/bootstrap"
)

// TestSessionWithPortDown: sessions are established and re-established while a port is down. Once
// the port is active again, all lanes enter service.
func TestSessionWithPortDown(t *testing.T) {
	n := newNetwork(2)
	a, b := n.start(t), n.start(t)
	for rail := range 2 {
		a.nics[rail].SetPort(false)
		there, here := a.meet(b)
		withoutRail(t, a, b, there, here, rail)
		a.nics[rail].SetPort(true)
		for _, p := range []*Peer{there, here} {
			eventually(t, "all rails have lanes", func() bool { return lanes(p, 0) > 0 && lanes(p, 1) > 0 })
		}
	}
}

// TestSessionWithFailedDevice: sessions are established and re-established, and memory is
// registered, while a device of either side has failed. Once the device works again, all lanes
// enter service.
func TestSessionWithFailedDevice(t *testing.T) {
	n := newNetwork(2)
	for rail := range 2 {
		for side := range 2 {
			hosts := [2]*host{n.start(t), n.start(t)}
			a, b := hosts[0], hosts[1]
			hosts[side].nics[rail].Fail()
			there, here := a.meet(b)
			withoutRail(t, a, b, there, here, rail)
			hosts[side].nics[rail].Recover()
			for _, p := range []*Peer{there, here} {
				eventually(t, "all rails have lanes", func() bool { return lanes(p, 0) > 0 && lanes(p, 1) > 0 })
			}
			for range 4 {
				a.do(there, a.write(there, 0, 1<<20, 1))
				b.do(here, b.write(here, 0, 1<<20, 1))
			}
		}
	}
}

// TestRealmWithFailedDevice: a realm and its shards are created while a device has failed. The
// device joins once it works again.
func TestRealmWithFailedDevice(t *testing.T) {
	n := newNetwork(2)
	a := n.start(t, func(c *Config) {
		c.Authorize = func(bootstrap.Peer) (Grant, error) { return Grant{Realm: "other"}, nil }
	})
	b := n.start(t)
	a.nics[1].Fail()
	there, _ := a.meet(b)
	a.do(there, a.write(there, 0, 1<<20, 1))
	a.nics[1].Recover()
	eventually(t, "both rails have lanes", func() bool { return lanes(there, 0) > 0 && lanes(there, 1) > 0 })
	a.do(there, a.write(there, 0, 1<<20, 2))
}

// withoutRail makes the peers of a and b transfer data, lose their session and transfer again while
// a rail is out of service.
func withoutRail(t *testing.T, a, b *host, there, here *Peer, rail int) {
	t.Helper()
	for range 2 {
		for _, p := range []*Peer{there, here} {
			eventually(t, "only the other rail has lanes", func() bool { return lanes(p, rail) == 0 && lanes(p, 1-rail) > 0 })
		}
		a.do(there, a.write(there, 0, 1<<20, uint32(rail+1)))
		b.do(here, b.write(here, 0, 1<<20, uint32(rail+1)))
		losses := a.node.Stats().Losses
		lose(there)
		eventually(t, "the session is lost", func() bool { return a.node.Stats().Losses > losses })
		wait(t, there, StateReady)
		wait(t, here, StateReady)
	}
}
