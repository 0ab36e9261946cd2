package softnic

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx/verbs"
)

// stationsAt plugs NICs into link at 127.0.0.first and the addresses behind it.
func stationsAt(t *testing.T, link *UDPLink, first byte, n int) (all []*nicRig) {
	t.Helper()
	for i := range n {
		all = append(all, newNICRig(t, link, 64, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, first + byte(i)})}))
	}
	return all
}

// writeTo executes n WRITEs from a to b, sequentially, on a new connection.
func writeTo(t *testing.T, a, b *nicRig, n int) {
	qa, qb := a.qp(verbs.RC, 4), b.qp(verbs.RC, 4)
	join(t, qa, qb)
	for range n {
		post(t, qa, a.to(b, verbs.OpRDMAWrite))
		for deadline := time.Now().Add(time.Minute); ; {
			if wcs := a.poll(); len(wcs) > 0 {
				if wcs[0].Status != verbs.StatusSuccess {
					t.Error(wcs[0].Err())
				}
				break
			}
			if time.Now().After(deadline) {
				t.Error("a WRITE has not completed after a minute")
				return
			}
		}
	}
}

// TestUDPNICsDoNotWaitForEachOther: while one NIC's lock is held, others on the same link work.
func TestUDPNICsDoNotWaitForEachOther(t *testing.T) {
	link, err := NewUDPLink(nil)
	check(t, err)
	all := stationsAt(t, link, 41, 3)
	all[0].nic.core.mu.Lock()
	defer all[0].nic.core.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		writeTo(t, all[1], all[2], 100)
		if err := link.Impair(all[1].nic, netip.AddrFrom4([4]byte{127, 0, 0, 43}), Impairment{}); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("NICs wait for the lock of another")
	}
}

// countPackets is a Capture without a lock.
type countPackets struct{ n int }

func (c *countPackets) Packet(int64, netip.AddrPort, netip.AddrPort, uint16, uint8, uint8, ...[]byte) {
	c.n++
}

// TestUDPCaptureTakesOneAtATime: a Capture needs no locking, although NICs send concurrently.
func TestUDPCaptureTakesOneAtATime(t *testing.T) {
	seen := &countPackets{}
	link, err := NewUDPLink(&UDPConfig{Capture: seen})
	check(t, err)
	all := stationsAt(t, link, 45, 4)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() { writeTo(t, all[2*i], all[2*i+1], 200) })
	}
	wg.Wait()
	link.capturing.Lock()
	defer link.capturing.Unlock()
	sent := 0
	for _, s := range all {
		sent += int(s.nic.Stats().PacketsSent)
	}
	if seen.n != sent {
		t.Errorf("%d packets were captured, want %d", seen.n, sent)
	}
}

// TestUDPAddressTaken: two NICs on a link cannot share an address, and closing a NIC releases its address.
func TestUDPAddressTaken(t *testing.T) {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 49})
	link, err := NewUDPLink(&UDPConfig{Addrs: []netip.Addr{addr}})
	check(t, err)
	for range 2 {
		n, err := New(link, Config{})
		check(t, err)
		for _, cfg := range []Config{{}, {Addr: addr}} {
			if other, err := New(link, cfg); err == nil {
				check(t, other.Close())
				t.Errorf("a second NIC got the address %v, want an error", addr)
			}
		}
		check(t, n.Close())
	}
}
