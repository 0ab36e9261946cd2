package softnic

import (
	"time"
)

// Link connects NICs. The implementations are MemoryLink, FaultLink, UDPLink and ShmLink. Links are not
// closed: closing the last NIC releases all resources. All methods are safe for concurrent use.
type Link interface {
	// Step runs all due timers and deliveries on a link with its own clock. It returns the time of the
	// next one; pending is false if none is scheduled.
	Step() (next int64, pending bool)

	// attach adds a new NIC and sets its core.
	attach(n *NIC) error
}

// carrier sends the packets of a core: its link, or a NIC's sockets.
type carrier interface {
	// send carries p. The caller holds the core's lock. p and its payload are valid only during the
	// call.
	send(from *NIC, p *packet)
}

var (
	_ Link = (*MemoryLink)(nil)
	_ Link = (*FaultLink)(nil)
	_ Link = (*UDPLink)(nil)
	_ Link = (*ShmLink)(nil)
)

// made reports whether link was created by its constructor.
func made(link Link) bool {
	switch l := link.(type) {
	case *MemoryLink:
		return l != nil && l.link != nil
	case *FaultLink:
		return l != nil && l.link != nil
	case *UDPLink:
		return l != nil && l.nics != nil
	case *ShmLink:
		return l != nil && l.link != nil
	}
	return false
}

// linkTraits describes a link to the QPs on it.
type linkTraits struct {
	// kind names the link in DeviceAttr.Link.
	kind string
	// immediate is set if the link delivers every packet intact within the sending call, at any length.
	// Other links segment messages by the path MTU.
	immediate bool
	// window is the maximum number of unacknowledged packets of a requester.
	window uint32
	// windowBytes further limits window for full packets, to the number that fit in it. 0 means
	// unlimited.
	windowBytes uint32
	// readAhead is the maximum number of response packets per READ request. Longer READs use several
	// requests. 0 means unlimited.
	readAhead uint32
	// probeAfter is the delay before a requester probes a silent peer. 0 disables probes.
	probeAfter time.Duration
	// shm is the link itself if it is a ShmLink, otherwise nil.
	shm *ShmLink
}

// windows returns the maximum number of unacknowledged packets on a path, and the maximum that applies
// to full packets, of seg bytes.
func (t *linkTraits) windows(p *path, seg uint32) (n, long uint32) {
	n = t.window
	if p != nil && p.route != nil {
		n = min(n, p.route.window)
	}
	if t.windowBytes == 0 {
		return n, n
	}
	return n, min(n, t.windowBytes/seg)
}

// MemoryConfig configures a MemoryLink. The zero value, or a nil pointer, means real time.
type MemoryConfig struct {
	// Now is the clock, in nanoseconds. Nil means the system's monotonic clock and a helper goroutine
	// for timers. With a clock, the link starts no goroutine: call Step whenever the clock advances.
	Now func() int64
}

// MemoryLink connects NICs within one process. A packet is a header and a reference to the sender's
// bytes, of any length. Sending delivers it in the same call, so a transfer is one copy from source to
// destination. The link is lossless.
type MemoryLink struct {
	core
}

// NewMemoryLink returns a link without NICs. A nil cfg means real time.
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
