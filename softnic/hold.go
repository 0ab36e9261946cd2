package softnic

// Hold keeps back the packets from one NIC to another, those under way too, until Release:
// as a path does that is being rerouted, or a switch that is paused.
func (l *FaultLink) Hold(from, to *NIC) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.direction(from, to).holding = true
}

// Release ends a Hold. What was kept back arrives now, in its order, however late that is:
// its senders may have given up long ago.
func (l *FaultLink) Release(from, to *NIC) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	d := l.direction(from, to)
	d.holding = false
	kept := d.kept
	d.kept = nil
	l.core.at = l.core.clock()
	for _, f := range kept {
		l.arrive(f)
		l.recycle(f)
	}
	l.core.settle()
}

// Held returns how many packets a Hold keeps back.
func (l *FaultLink) Held(from, to *NIC) int {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[[2]*NIC{from, to}]; d != nil {
		return len(d.kept)
	}
	return 0
}

// Impairment returns what happens to packets from one NIC to another, so that a change of
// it can be undone.
func (l *FaultLink) Impairment(from, to *NIC) Impairment {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	return l.direction(from, to).imp
}

// Next returns the time at which something is due on the link, and whether anything is. It
// runs nothing: virtual time may jump there, and then Step runs what is due.
func (l *FaultLink) Next() (at int64, pending bool) { return l.core.when() }

// Next returns the time at which something is due on the link: see FaultLink.Next.
func (l *MemoryLink) Next() (at int64, pending bool) { return l.core.when() }

// when is Next of the links.
func (c *core) when() (at int64, pending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at = c.next()
	return at, at != never
}
