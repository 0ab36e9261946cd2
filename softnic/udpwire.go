package softnic

import "ibverbx/verbs"

// udpWire is what a NIC on a UDPLink does not share with the others: a core, and so a lock, timers and a
// helper, and the faults on the way out.
type udpWire struct {
	core
	link *UDPLink
	port *udpPort
	// dirty says that the port has packets to flush.
	dirty bool
	// corks counts the goroutines that collect packets: see verbs.Corked.
	corks int
	faults
}

// newWire makes the wire of a NIC. mu is held.
func (l *UDPLink) newWire() *udpWire {
	t := linkTraits{kind: "udp", window: uint32(l.cfg.Window), readAhead: udpReadAhead, probeAfter: udpProbeAfter}
	if t.window == 0 {
		t.window, t.windowBytes = defaultUDPWindow, defaultUDPInFlight
	}
	w := &udpWire{link: l}
	w.core.init(w, t, nil)
	w.nonce, w.count, w.wire = l.nonce, l.count, w
	w.faults.init(&w.core, l.cfg.Seed+uint64(l.count), udpQueue, l.cfg.Impairment, w.land)
	if l.cfg.Impairment != (Impairment{}) {
		w.queue = &w.faults
	}
	return w
}

// attach plugs n into the link, with a wire of its own.
func (l *UDPLink) attach(n *NIC) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.newWire()
	n.core = &w.core
	if !n.cfg.Addr.IsValid() {
		addr, err := l.address()
		if err != nil {
			return err
		}
		n.cfg.Addr = addr
	}
	if other := l.ports[verbs.GIDFromAddr(n.cfg.Addr.Unmap())]; other != nil {
		return addressTaken(n.cfg.Addr, other.nic)
	}
	if err := w.core.attach(n); err != nil {
		return err
	}
	l.count = w.count
	l.ports[n.gids[0].GID] = n.udp
	return nil
}

// detach unplugs the NIC with that port.
func (l *UDPLink) detach(u *udpPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gid := u.nic.gids[0].GID; l.ports[gid] == u {
		delete(l.ports, gid)
	}
}
