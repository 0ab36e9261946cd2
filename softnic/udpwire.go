package softnic

import (
	"maps"
	"sync/atomic"

	"ibverbx/verbs"
)

// udpWire is what a NIC on a UDPLink does not share with the others: a core, and so a lock, timers and a
// helper, and the faults on the way out.
type udpWire struct {
	core
	link *UDPLink
	nic  *NIC
	// alone says that the NIC may wait for a device or a neighbor while it serves packets: see udpWatch.
	alone atomic.Bool
	// dirty says that the NIC has packets to flush.
	dirty bool
	// corks counts the goroutines that collect packets: see verbs.Corked.
	corks        int
	faults       faults
	neighborhood neighborhood
	// groups are the multicast groups that the NIC has joined.
	groups []*group
}

// newWire makes the wire of a NIC. The link's mu is held.
func (l *UDPLink) newWire(n *NIC) *udpWire {
	t := linkTraits{kind: "udp", window: uint32(l.cfg.Window), readAhead: udpReadAhead, probeAfter: udpProbeAfter}
	if t.window == 0 {
		t.window, t.windowBytes = defaultUDPWindow, defaultUDPInFlight
	}
	w := &udpWire{link: l, nic: n}
	w.alone.Store(l.cfg.SharedMemory)
	w.init(w, t, nil)
	w.nonce, w.count, w.wire = l.nonce, l.count, w
	w.faults.init(&w.core, l.cfg.Seed+uint64(l.count), udpQueue, l.cfg.Impairment, w.land)
	if l.cfg.Impairment != (Impairment{}) {
		w.queue = &w.faults
	}
	return w
}

// attach plugs n into the link, with a wire of its own.
func (l *UDPLink) attach(n *NIC) error {
	w, err := l.admit(n)
	if err != nil {
		return err
	}
	if err := w.attach(n); err != nil {
		l.detach(n)
		return err
	}
	return nil
}

// admit gives n an address that no other NIC of the link has, and a wire.
func (l *UDPLink) admit(n *NIC) (*udpWire, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !n.cfg.Addr.IsValid() {
		addr, err := l.address()
		if err != nil {
			return nil, err
		}
		n.cfg.Addr = addr
	}
	gid := verbs.GIDFromAddr(n.cfg.Addr.Unmap())
	if l.nics[gid] != nil {
		return nil, verbs.Invalidf("Config.Addr %s belongs to another NIC on this link", n.cfg.Addr)
	}
	l.nics[gid] = n
	w := l.newWire(n)
	l.count++
	return w, nil
}

// remember notes from where a port sends.
func (l *UDPLink) remember(u *udpPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gid := verbs.GIDFromAddr(u.conn.Addr().Addr())
	for socket := range u.conn.Sockets() + 1 {
		l.senders[udpAddr{gid, u.conn.SourcePort(socket)}] = u.nic
	}
}

// detach forgets n.
func (l *UDPLink) detach(n *NIC) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range n.ports {
		l.watch.set(u, false)
	}
	maps.DeleteFunc(l.nics, func(_ verbs.GID, other *NIC) bool { return other == n })
	maps.DeleteFunc(l.senders, func(_ udpAddr, other *NIC) bool { return other == n })
}
