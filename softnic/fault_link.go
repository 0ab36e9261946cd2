package softnic

import (
	"math"
	"time"

	"ibverbx/verbs"
)

// FaultConfig configures a FaultLink. The zero value, or a nil pointer, is a link that segments and
// queues packets without faults.
type FaultConfig struct {
	// Seed determines every fault. The same seed and traffic give the same faults.
	Seed uint64
	// Impairment applies to every direction not set by Impair. Zero means no faults.
	Impairment Impairment
	// Window is the maximum number of unacknowledged packets of a requester. Zero means 128.
	Window int
	// Queue is the maximum number of a NIC's packets in flight; the NIC then waits. Zero means 1024.
	Queue int
	// ReadAhead is the maximum number of response packets per READ request. Longer READs use several
	// requests, as over UDP. Zero means unlimited.
	ReadAhead int
	// ProbeAfter is the delay before a requester resends its oldest unacknowledged packet as a probe, as
	// over UDP. Probes do not count as retries. Zero disables them.
	ProbeAfter time.Duration
	// InTurn makes packets enter the queues of paths and bottlenecks on arrival, interleaved with other
	// senders' packets, as in a real fabric. By default packets are queued when sent, which is cheaper
	// and exact for one sender.
	InTurn bool
	// Now is the clock; see MemoryConfig.Now.
	Now func() int64
}

// FaultLink connects NICs within one process with packets of at most one MTU, which it copies and
// queues. It can lose, duplicate, delay, reorder and corrupt packets, and cut directions. A seed
// determines every fault. All methods are safe for concurrent use. Get one from NewFaultLink: methods of the
// zero value panic. So do methods without an error result if a NIC is nil.
type FaultLink struct {
	core
	faults
}

// NewFaultLink returns a link without NICs. A nil cfg means the defaults. Values out of range return
// verbs.ErrInvalid.
func NewFaultLink(cfg *FaultConfig) (*FaultLink, error) {
	var c FaultConfig
	if cfg != nil {
		c = *cfg
	}
	if err := c.complete(); err != nil {
		return nil, verbs.NewOpError("create fault link", "", 0, err)
	}
	l := &FaultLink{}
	l.core.init(l, linkTraits{
		kind: "fault", window: uint32(c.Window), readAhead: uint32(c.ReadAhead), probeAfter: c.ProbeAfter,
	}, c.Now)
	l.faults.init(&l.core, c.Seed, c.Queue, c.Impairment, l.land)
	l.inTurn, l.queue = c.InTurn, &l.faults
	return l, nil
}

// complete sets the defaults and validates the rest.
func (cfg *FaultConfig) complete() error {
	setDefault(&cfg.Window, 128)
	setDefault(&cfg.Queue, 1024)
	if cfg.ProbeAfter < 0 {
		return verbs.Invalidf("FaultConfig.ProbeAfter is %v: want at least 0", cfg.ProbeAfter)
	}
	if err := checkRanges("FaultConfig",
		bounded{"Window", cfg.Window, maxWindow},
		bounded{"Queue", cfg.Queue, math.MaxInt},
		bounded{"ReadAhead", cfg.ReadAhead, maxReadAhead}); err != nil {
		return err
	}
	return cfg.Impairment.validate()
}

// Impair sets the faults for packets from one NIC to another, in this direction only. It returns
// verbs.ErrInvalid for a nil NIC or a value out of range.
func (l *FaultLink) Impair(from, to *NIC, imp Impairment) error {
	if from == nil || to == nil {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("a NIC is nil"))
	}
	return l.impair(between(from, to), imp)
}

// Impairment returns the current faults for packets from one NIC to another, for example to restore them
// later.
func (l *FaultLink) Impairment(from, to *NIC) (imp Impairment) {
	l.change(between(from, to), func(d *direction) { imp = d.imp })
	return imp
}

// Cut drops every packet from one NIC to another until Restore, including packets in flight.
func (l *FaultLink) Cut(from, to *NIC) {
	l.change(between(from, to), func(d *direction) { d.cut = true })
}

// Restore undoes Cut.
func (l *FaultLink) Restore(from, to *NIC) {
	l.change(between(from, to), func(d *direction) { d.cut = false })
}

// Stats returns the counters of packets from one NIC to another.
func (l *FaultLink) Stats(from, to *NIC) FaultStats {
	if from == nil || to == nil {
		return FaultStats{}
	}
	return l.statsOf(between(from, to))
}

// Hold delays all packets from one NIC to another until Release, including packets in flight, like a
// path being rerouted.
func (l *FaultLink) Hold(from, to *NIC) {
	l.change(between(from, to), func(d *direction) { d.holding = true })
}

// Release undoes Hold. The delayed packets arrive now, in order, even if their senders gave up long ago.
func (l *FaultLink) Release(from, to *NIC) {
	l.change(between(from, to), func(d *direction) {
		kept := d.kept
		d.holding, d.kept = false, nil
		l.at = l.clock()
		for _, f := range kept {
			l.arrive(f)
			l.recycle(f)
		}
		l.settle()
	})
}

// Held returns the number of packets delayed by Hold.
func (l *FaultLink) Held(from, to *NIC) (n int) {
	l.look(between(from, to), func(d *direction) { n = len(d.kept) })
	return n
}

func (l *FaultLink) send(from *NIC, p *packet) {
	to := l.find(p.path)
	switch {
	case to == nil:
		from.stats.Unroutable++
		return
	case !from.portUp:
		from.stats.PortDownDrops++
		return
	}
	d := l.direction(between(from, to))
	l.carry(d, l.routeOf(d, from, to, p), from, to, p)
}

// land delivers a packet, or keeps it while its direction is held.
func (l *FaultLink) land(f *inFlightPacket) {
	if f.dir.holding {
		f.dir.kept = append(f.dir.kept, f)
		return
	}
	l.arrive(f)
	l.recycle(f)
}

// arrive delivers or drops a packet, depending on the current state of its direction and destination.
func (l *FaultLink) arrive(f *inFlightPacket) {
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
