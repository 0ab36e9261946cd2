package node

import "testing"

// TestSessionWithPortDown: sessions are established and re-established while a port is down. When the port is
// active again, all lanes enter service.
func TestSessionWithPortDown(t *testing.T) {
	n := newNetwork(2)
	a, b := n.start(t), n.start(t)
	for rail := range 2 {
		a.nics[rail].SetPort(false)
		there, here := a.meet(b)
		for range 2 {
			for _, p := range []*Peer{there, here} {
				eventually(t, "the port that is down has no lane and the other one has", func() bool { return lanes(p, rail) == 0 && lanes(p, 1-rail) > 0 })
			}
			a.do(there, a.write(there, 0, 1<<20, uint32(rail+1)))
			b.do(here, b.write(here, 0, 1<<20, uint32(rail+1)))
			losses := a.node.Stats().Losses
			lose(there)
			eventually(t, "the session is lost", func() bool { return a.node.Stats().Losses > losses })
			wait(t, there, StateReady)
			wait(t, here, StateReady)
		}
		a.nics[rail].SetPort(true)
		for _, p := range []*Peer{there, here} {
			eventually(t, "all rails have lanes", func() bool { return lanes(p, 0) > 0 && lanes(p, 1) > 0 })
		}
	}
}
