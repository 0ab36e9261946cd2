package softnic

// MemoryConfig describes a MemoryLink. The zero value, or a nil pointer, means real time.
type MemoryConfig struct {
	// Now is the clock, in nanoseconds. Nil means the system's monotonic clock and a helper
	// goroutine that runs timers. A link with a clock of its own starts no goroutine: the
	// program calls Step whenever it moves the clock.
	Now func() int64
}

// MemoryLink joins NICs of one process. A packet is a header and a reference to the sender's
// bytes, of any length. The call that sends a packet also delivers it, so a transfer is one
// copy from source to destination. The link loses nothing.
type MemoryLink struct {
	core
}

// NewMemoryLink returns a link without NICs. A nil cfg means the defaults.
func NewMemoryLink(cfg *MemoryConfig) *MemoryLink {
	if cfg == nil {
		cfg = &MemoryConfig{}
	}
	l := &MemoryLink{}
	l.init(l, linkTraits{kind: "memory", immediate: true, window: maxWindow}, cfg.Now)
	return l
}

func (l *MemoryLink) send(from *NIC, p *packet) {
	to := p.path.peer
	if to == nil || to.closed {
		if to = l.find(p.path); to == nil {
			from.stats.Unroutable++
			return
		}
	}
	if !from.portUp {
		from.stats.PortDownDrops++
		return
	}
	to.receive(p)
}
