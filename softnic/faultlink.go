package softnic

import (
	"net/netip"
	"time"

	"ibverbx/verbs"
)

// FaultConfig describes a FaultLink. The zero value, or a nil pointer, is a link that
// segments and queues packets but treats them well.
type FaultConfig struct {
	// Seed decides every fault. The same seed and the same traffic give the same
	// faults.
	Seed uint64
	// Impairment is what happens to packets in every direction that Impair does not
	// name. Zero is nothing.
	Impairment Impairment
	// Window is how many packets a requester may have unacknowledged. Zero means 128.
	Window int
	// Queue is how many packets of one NIC may be under way before it must wait.
	// Zero means 1024.
	Queue int
	// ReadAhead is how many packets one READ request asks for at the most: longer READs
	// are made of several, as over UDP. Zero is without limit.
	ReadAhead int
	// ProbeAfter is how long a requester waits for an answer before it sends its oldest
	// unacknowledged packet again, to make its peer speak, as over UDP; that is no
	// retry. Zero is never.
	ProbeAfter time.Duration
	// InTurn makes packets come to the queues of paths and bottlenecks when their time has
	// come, and so in turn with those of other senders, as it is in a fabric. Without it they
	// take their place there when they are sent, which is less work and right for one
	// sender.
	InTurn bool
	// Now is the clock; see MemoryConfig.Now.
	Now func() int64
}

// FaultLink joins NICs of one process by packets of at most one MTU, which it copies,
// queues, and treats as badly as it is told: it loses, repeats, delays, reorders and
// corrupts them, and can be cut. Every decision comes from a seed.
type FaultLink struct {
	core       core
	cfg        FaultConfig
	directions map[[2]*NIC]*direction
	faults
}

// NewFaultLink returns a link without NICs. A nil cfg means the defaults.
func NewFaultLink(cfg *FaultConfig) (*FaultLink, error) {
	l := &FaultLink{directions: make(map[[2]*NIC]*direction)}
	if cfg != nil {
		l.cfg = *cfg
	}
	if err := l.cfg.Impairment.validate(); err != nil {
		return nil, verbs.NewOpError("make fault link", "", 0, err)
	}
	if l.cfg.Window < 0 || l.cfg.Window > maxWindow || l.cfg.Queue < 0 {
		return nil, verbs.NewOpError("make fault link", "", 0,
			verbs.Invalidf("Window %d and Queue %d: want at least 0, and a window of at most %d", l.cfg.Window, l.cfg.Queue, maxWindow))
	}
	if l.cfg.ReadAhead < 0 || l.cfg.ReadAhead > maxReadAhead || l.cfg.ProbeAfter < 0 {
		return nil, verbs.NewOpError("make fault link", "", 0,
			verbs.Invalidf("ReadAhead %d and ProbeAfter %v: want 0 to %d, and at least 0", l.cfg.ReadAhead, l.cfg.ProbeAfter, maxReadAhead))
	}
	if l.cfg.Window == 0 {
		l.cfg.Window = 128
	}
	if l.cfg.Queue == 0 {
		l.cfg.Queue = 1024
	}
	l.core.init(l, l.cfg.Now)
	l.init(&l.core, l.cfg.Seed, l.cfg.Queue, l.land)
	l.inTurn = l.cfg.InTurn
	l.core.timed, l.core.probeAfter = true, l.cfg.ProbeAfter
	return l, nil
}

// Step runs what is due at the present time of the link's clock. It returns the time
// at which something will be due next, and whether anything will.
func (l *FaultLink) Step() (next int64, pending bool) { return l.core.step() }

// Impair sets what happens to packets from one NIC to another; the way back is not
// touched.
func (l *FaultLink) Impair(from, to *NIC, imp Impairment) error {
	if from == nil || to == nil {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("a NIC is nil"))
	}
	if err := imp.validate(); err != nil {
		return verbs.NewOpError("impair", from.name, 0, err)
	}
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.direction(from, to).imp = imp
	return nil
}

// Cut makes every packet from one NIC to another disappear, from now on and those
// under way too, until Restore.
func (l *FaultLink) Cut(from, to *NIC) { l.setCut(from, to, true) }

// Restore ends a Cut.
func (l *FaultLink) Restore(from, to *NIC) { l.setCut(from, to, false) }

func (l *FaultLink) setCut(from, to *NIC, cut bool) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	l.direction(from, to).cut = cut
}

// Stats returns what happened to packets from one NIC to another.
func (l *FaultLink) Stats(from, to *NIC) FaultStats {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[[2]*NIC{from, to}]; d != nil {
		return d.stats
	}
	return FaultStats{}
}

func (l *FaultLink) direction(from, to *NIC) *direction {
	key := [2]*NIC{from, to}
	d := l.directions[key]
	if d == nil {
		d = &direction{imp: l.cfg.Impairment}
		l.directions[key] = d
	}
	return d
}

func (l *FaultLink) shared() *core                { return &l.core }
func (l *FaultLink) kind() string                 { return "fault" }
func (l *FaultLink) segment(mtu verbs.MTU) uint32 { return uint32(mtu.Bytes()) }
func (l *FaultLink) readAhead() uint32            { return uint32(l.cfg.ReadAhead) }
func (l *FaultLink) window(*path, uint32) (n, long uint32) {
	return uint32(l.cfg.Window), uint32(l.cfg.Window)
}
func (l *FaultLink) flush()                  {}
func (l *FaultLink) pump() (read, busy bool) { return false, false }
func (l *FaultLink) plug(*NIC) error         { return nil }

func (l *FaultLink) address() (netip.Addr, error) { return l.core.freeAddr(), nil }

func (l *FaultLink) route(_ *NIC, p *path) error {
	l.core.find(p)
	return nil
}

func (l *FaultLink) direct(*qp) *qp { return nil }

// forget drops the packets from and to n, and what is set for its directions.
func (l *FaultLink) forget(n *NIC) {
	for key := range l.directions {
		if key[0] == n || key[1] == n {
			delete(l.directions, key)
		}
	}
	l.faults.forget(n)
}

func (l *FaultLink) send(from *NIC, p *packet) {
	to := l.core.find(p.path)
	switch {
	case to == nil:
		from.stats.Unroutable++
		return
	case !from.portUp:
		from.stats.PortDownDrops++
		return
	}
	d := l.direction(from, to)
	l.carry(d, l.routeOf(d, from, to, p), from, to, p)
}

// land hands a packet to its destination, unless its direction is held.
func (l *FaultLink) land(f *flight) {
	if f.dir.holding {
		f.dir.kept = append(f.dir.kept, f)
		return
	}
	l.arrive(f)
	l.recycle(f)
}

// arrive hands a packet on, or not, as its direction and its destination are now.
func (l *FaultLink) arrive(f *flight) {
	switch {
	case f.to.closed:
	case f.dir.cut || (f.route != nil && f.route.Cut):
		f.dir.stats.Cut++
	case f.corrupt:
		f.to.stats.BadICRC++
	default:
		f.dir.stats.Delivered++
		f.to.receive(&f.packet)
	}
}
