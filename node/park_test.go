package node

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/service"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// TestParkAndReturn: an idle session is parked on both sides. The next operation from either side reopens it,
// invisibly to services.
func TestParkAndReturn(t *testing.T) {
	n := newNetwork(2)
	a, b := n.start(t, idleAfter(4*time.Millisecond)), n.start(t, idleAfter(4*time.Millisecond))
	there, here := a.meet(b)
	for i := range 6 {
		for _, p := range []*Peer{there, here} {
			eventually(t, "the session is parked", func() bool {
				d := p.Stats()
				return d.State == StateParked && len(d.QP.Rails) == 0
			})
		}
		switch i % 3 {
		case 0:
			a.do(there, a.write(there, 0, 8, 1))
		case 1:
			b.do(here, b.write(here, 0, 8, 1))
		case 2:
			var both sync.WaitGroup
			both.Go(func() { a.do(there, a.write(there, 0, 8, 1)) })
			both.Go(func() { b.do(here, b.write(here, 64, 8, 1)) })
			both.Wait()
		}
	}
	for _, h := range []*host{a, b} {
		h.mu.Lock()
		if h.ups != 1 || h.downs != 0 {
			t.Errorf("a service saw %d sessions begin and %d end, want 1 and 0", h.ups, h.downs)
		}
		h.mu.Unlock()
		if s := h.node.Stats(); s.Losses != 0 || s.Sessions != 1 {
			t.Errorf("Stats: got %+v, want one session and no losses", s)
		}
	}
}

// TestParkDuringTraffic: sessions are parked as often as possible while both sides submit operations with pauses. All succeed.
func TestParkDuringTraffic(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t, idleAfter(200*time.Microsecond)), n.start(t, idleAfter(200*time.Microsecond))
	there, here := a.meet(b)
	var all sync.WaitGroup
	for _, side := range []struct {
		h *host
		p *Peer
	}{{a, there}, {b, here}} {
		all.Go(func() {
			flow := &service.Flow{}
			for i := range 150 {
				j := side.h.job(side.p, verbs.OpRDMAWrite, 0, 0)
				j.Replay, j.Flow = false, flow // a lost session would fail the operation
				side.h.do(side.p, j)
				if i%3 == 0 {
					time.Sleep(time.Duration(i%7) * 100 * time.Microsecond)
				}
			}
		})
	}
	all.Wait()
	if s := a.node.Stats(); s.Losses != 0 {
		t.Errorf("Stats: got %+v, want no losses", s)
	}
}

// TestParkSealed: over UDP, with a token, packets are sealed. A session reopened on the same
// connection is sealed too.
func TestParkSealed(t *testing.T) {
	host := func(addr, listen string) func(*Config) {
		return func(c *Config) {
			c.Listen = listen
			c.Auth.InsecurePlaintextOnLoopback, c.Auth.Token = false, []byte("a token for tests, and long enough")
			c.Open, c.IdleAfter = peer.OpenSoftNICs(netip.MustParseAddr(addr)), 20*time.Millisecond
		}
	}
	a, b := network{}.start(t, host("127.0.0.1", "")), network{}.start(t, host("127.0.0.2", "127.0.0.1:0"))
	there, here := a.meet(b)
	for i := range 3 {
		copy(a.mem.Bytes(), []byte{byte(i + 1), 2, 3})
		a.do(there, a.write(there, 0, 1<<20, uint32(i)))
		b.eventually("the notification has come", func() bool { return b.count() == i+1 })
		if got := b.mem.Bytes()[0]; got != byte(i+1) {
			t.Errorf("the first byte is %d, want %d", got, i+1)
		}
		if !there.Stats().Agreed.Sealed {
			t.Error("the session is not sealed")
		}
		wait(t, there, StateParked)
		wait(t, here, StateParked)
	}
}
