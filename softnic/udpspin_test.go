//go:build linux

package softnic

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx/verbs"
)

// watchedPorts creates a link with NICs in use by QPs. most is the maximum number of watching goroutines.
func watchedPorts(t *testing.T, most int32, cfg UDPConfig, nics int) (*spinLimiter, []*udpPort) {
	t.Helper()
	link, err := NewUDPLink(&cfg)
	check(t, err)
	link.spinners.limit = most
	ports := make([]*udpPort, nics)
	for i := range ports {
		s := newNICRig(t, link, 4, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, byte(70 + i)})})
		s.qp(verbs.UD, 1)
		ports[i] = s.nic.udp
	}
	return &link.spinners, ports
}

// TestUDPWatchTurns: at most the allowed number of goroutines watch. One that stops wakes the waiting ones.
func TestUDPWatchTurns(t *testing.T) {
	w := &spinLimiter{}
	w.init()
	w.limit = 2
	ports := []*udpPort{{}, {}, {}}
	for _, u := range ports {
		u.udpNIC = &udpNIC{}
		u.background.wakeup = make(chan struct{}, 1)
		w.setUsed(u, true)
	}
	a, b, c := ports[0], ports[1], ports[2]
	for i, u := range []*udpPort{a, a, b, c} {
		if w.acquire(u) != (u != c) {
			t.Errorf("call %d of begin is %t", i, u == c)
		}
	}
	w.release(c) // it does not look
	if w.acquire(c) || len(a.background.wakeup)+len(b.background.wakeup) > 0 {
		t.Error("the end of one that does not look changes something")
	}
	c.background.waiting.Store(true)
	w.release(a)
	if len(c.background.wakeup) != 1 || len(b.background.wakeup) != 0 {
		t.Errorf("%d and %d alarms of c, which waits, and b, which does not: want 1 and 0", len(c.background.wakeup), len(b.background.wakeup))
	}
	if !w.acquire(c) || w.acquire(a) {
		t.Error("c may not look after a has stopped, or a may look again")
	}
	w.setUsed(b, false)
	if n := len(*w.ports.Load()); n != 2 {
		t.Errorf("%d ports are listed, want 2", n)
	}
}

// TestUDPWatchOthers: a watching goroutine reads unwatched ports, except ports that the program reads.
func TestUDPWatchOthers(t *testing.T) {
	w, ports := watchedPorts(t, 0, UDPConfig{}, 2) // no goroutine watches: each reads its port occasionally
	a, b := ports[0], ports[1]
	conn, err := net.Dial("udp", b.conn.Addr().String())
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close()) })
	try := func() bool {
		_, err := conn.Write([]byte("no packet"))
		check(t, err)
		return w.pollOthers(a).served
	}
	for deadline := time.Now().Add(2 * time.Minute); !try(); { // the goroutine may have been first
		if time.Now().After(deadline) {
			t.Fatal("packets of another port are not read")
		}
	}
	for range 100 {
		b.background.polls.Add(1)
		if try() {
			t.Fatal("a port is read although the program reads it")
		}
	}
}

// say sends a datagram to a port, which counts it as malformed.
func say(t *testing.T, u *udpPort) {
	t.Helper()
	conn, err := net.Dial("udp", u.conn.Addr().String())
	check(t, err)
	_, err = conn.Write([]byte("no packet"))
	check(t, err)
	check(t, conn.Close())
}

// until waits for a condition, and fails the test on timeout.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// TestUDPWatchBusyNIC: the other NICs on a link serve packets and close while one NIC is busy, here for the
// whole test.
func TestUDPWatchBusyNIC(t *testing.T) {
	_, ports := watchedPorts(t, 1, UDPConfig{Spin: time.Hour}, 2)
	a, b := ports[0], ports[1]
	until(t, "nobody looks", func() bool { say(t, a); return a.background.spinning.Load() || b.background.spinning.Load() })
	if b.background.spinning.Load() {
		a, b = b, a
	}
	b.nic.core.mu.Lock()
	defer b.nic.core.mu.Unlock()
	for range 10 {
		say(t, b)
		before := a.nic.Stats().Malformed
		say(t, a)
		until(t, "a serves no packets while b is busy", func() bool { return a.nic.Stats().Malformed > before })
	}
	check(t, a.nic.Close())
}

// TestUDPWatchAlone: if a NIC may wait for a device, only its own goroutine reads its ports.
func TestUDPWatchAlone(t *testing.T) {
	w, ports := watchedPorts(t, 0, UDPConfig{Spin: time.Hour}, 2)
	a, b := ports[0], ports[1]
	b.udpNIC.mayBlock.Store(true)
	before := b.nic.Stats().Malformed
	for n := range uint64(100) {
		say(t, b)
		if w.pollOthers(a).served {
			t.Fatal("another goroutine reads the port")
		}
		until(t, "its goroutine does not read the port", func() bool { return b.nic.Stats().Malformed > before+n })
	}
	if b.background.spinning.Load() || w.active.Load() != 0 {
		t.Error("it counts among those that look")
	}
}

// TestUDPWatchServes: packets to all NICs on a link are served, however many goroutines may watch, even if
// the watchers never stop.
func TestUDPWatchServes(t *testing.T) {
	for _, most := range []int32{1, 2, 3} {
		for _, spin := range []time.Duration{-1, 0, time.Hour} {
			_, ports := watchedPorts(t, most, UDPConfig{Spin: spin}, 3)
			for round := range 50 {
				u := ports[round*7%3]
				say(t, u)
				want := uint64(0)
				for r := range round + 1 {
					want += uint64(index(ports[r*7%3] == u))
				}
				until(t, fmt.Sprintf("a datagram is not read: %d may look, for %v", most, spin), func() bool { return u.nic.Stats().Malformed >= want })
			}
			for _, u := range ports {
				check(t, u.nic.Close())
			}
		}
	}
}
