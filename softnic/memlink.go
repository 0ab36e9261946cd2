package softnic

import (
	"net/netip"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// MemoryConfig describes a MemoryLink. The zero value, or a nil pointer, is real time.
type MemoryConfig struct {
	// Now is the clock, in nanoseconds. Nil means the system's monotonic clock and a
	// helper goroutine for what is due unattended. With a clock of its own the link
	// starts no goroutine: whoever moves the clock calls Step.
	Now func() int64
}

// MemoryLink joins NICs of one process. A packet is a header and a reference to the
// sender's bytes, of any length, handed over within the call that sends it: a transfer
// is one copy, from source to destination. It loses nothing.
type MemoryLink struct {
	core core
}

// NewMemoryLink returns a link without NICs. A nil cfg means the defaults.
func NewMemoryLink(cfg *MemoryConfig) *MemoryLink {
	if cfg == nil {
		cfg = &MemoryConfig{}
	}
	l := &MemoryLink{}
	l.core.init(l, cfg.Now)
	return l
}

// Step runs what is due at the present time of the link's clock. It returns the time
// at which something will be due next, and whether anything will.
func (l *MemoryLink) Step() (next int64, pending bool) { return l.core.step() }

func (l *MemoryLink) shared() *core                         { return &l.core }
func (l *MemoryLink) kind() string                          { return "memory" }
func (l *MemoryLink) segment(verbs.MTU) uint32              { return maxMsgSize }
func (l *MemoryLink) readAhead() uint32                     { return 0 }
func (l *MemoryLink) window(*path, uint32) (n, long uint32) { return maxWindow, maxWindow }
func (l *MemoryLink) flush()                                {}
func (l *MemoryLink) pump() (read, busy bool)               { return false, false }
func (l *MemoryLink) plug(*NIC) error                       { return nil }
func (l *MemoryLink) room(*NIC, *qp) bool                   { return true }
func (l *MemoryLink) deliver(int64, int) int                { return 0 }
func (l *MemoryLink) next() int64                           { return never }
func (l *MemoryLink) forget(*NIC)                           {}

func (l *MemoryLink) address() (netip.Addr, error) { return l.core.freeAddr(), nil }

func (l *MemoryLink) route(_ *NIC, p *path) error {
	l.core.find(p)
	return nil
}

func (l *MemoryLink) direct(q *qp) *qp {
	to := l.core.find(q.path)
	if to == nil || !q.nic.portUp || !to.portUp {
		return nil
	}
	peer := to.qps.get(q.attr.DestQPN)
	if peer == nil || peer.transport != roce.RC || q.transport != roce.RC || !receivable[peer.state] {
		return nil
	}
	if !peer.knows(q.path) || peer.state == verbs.StateRTR {
		return nil
	}
	return peer
}

func (l *MemoryLink) send(from *NIC, p *packet) {
	to := p.path.peer
	if to == nil || to.closed {
		if to = l.core.find(p.path); to == nil {
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
