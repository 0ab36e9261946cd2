package softnic

import (
	"math"
	"time"

	"ibverbx/verbs"
)

// FaultConfig describes a FaultLink. The zero value, or a nil pointer, is a link that segments
// and queues packets but harms none.
type FaultConfig struct {
	// Seed decides every fault. The same seed and the same traffic give the same faults.
	Seed uint64
	// Impairment applies to every direction that Impair does not name. Zero is none.
	Impairment Impairment
	// Window is how many packets a requester may have unacknowledged. Zero means 128.
	Window int
	// Queue is how many packets of one NIC may be under way before it must wait. Zero means
	// 1024.
	Queue int
	// ReadAhead is how many packets one READ request asks for at most. Longer READs are made of
	// several requests, as over UDP. Zero is no limit.
	ReadAhead int
	// ProbeAfter is how long a requester waits for an answer before it sends its oldest
	// unacknowledged packet again, as over UDP. Such a probe does not count as a retry. Zero
	// means that it sends no probes.
	ProbeAfter time.Duration
	// InTurn makes packets enter the queues of paths and bottlenecks when they reach them, in
	// turn with packets of other senders, as in a real fabric. Without it they take their place
	// there when they are sent, which costs less and is exact for one sender.
	InTurn bool
	// Now is the clock; see MemoryConfig.Now.
	Now func() int64
}

// FaultLink joins NICs of one process by packets of at most one MTU, which it copies and
// queues. On request it loses, repeats, delays, reorders and corrupts packets, and can be cut.
// Every decision comes from a seed.
type FaultLink struct {
	core
	faults
}

// NewFaultLink returns a link without NICs. A nil cfg means the defaults.
func NewFaultLink(cfg *FaultConfig) (*FaultLink, error) {
	var c FaultConfig
	if cfg != nil {
		c = *cfg
	}
	if err := c.complete(); err != nil {
		return nil, verbs.NewOpError("make fault link", "", 0, err)
	}
	l := &FaultLink{}
	l.core.init(l, linkTraits{
		kind: "fault", window: uint32(c.Window), readAhead: uint32(c.ReadAhead), probeAfter: c.ProbeAfter,
	}, c.Now)
	l.faults.init(&l.core, c.Seed, c.Queue, c.Impairment, l.land)
	l.inTurn, l.queue = c.InTurn, &l.faults
	return l, nil
}

// complete fills in the defaults and checks the rest.
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

// Impair sets what happens to packets from one NIC to another. The opposite direction is not
// affected.
func (l *FaultLink) Impair(from, to *NIC, imp Impairment) error {
	if from == nil || to == nil {
		return verbs.NewOpError("impair", "", 0, verbs.Invalidf("a NIC is nil"))
	}
	return l.impair(between(from, to), imp)
}

// Impairment returns what happens to packets from one NIC to another, so that a change of it
// can be undone.
func (l *FaultLink) Impairment(from, to *NIC) (imp Impairment) {
	l.change(between(from, to), func(d *direction) { imp = d.imp })
	return imp
}

// Cut makes every packet from one NIC to another disappear until Restore, packets under way
// included.
func (l *FaultLink) Cut(from, to *NIC) {
	l.change(between(from, to), func(d *direction) { d.cut = true })
}

// Restore ends a Cut.
func (l *FaultLink) Restore(from, to *NIC) {
	l.change(between(from, to), func(d *direction) { d.cut = false })
}

// Stats returns what happened to packets from one NIC to another.
func (l *FaultLink) Stats(from, to *NIC) FaultStats { return l.statsOf(between(from, to)) }

// Hold keeps back the packets from one NIC to another until Release, packets under way
// included, as a path does while it is rerouted.
func (l *FaultLink) Hold(from, to *NIC) {
	l.change(between(from, to), func(d *direction) { d.holding = true })
}

// Release ends a Hold. The packets that were kept back arrive now, in order, even if their
// senders have given up long ago.
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

// Held returns how many packets a Hold keeps back.
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

// land delivers a packet, unless its direction is held.
func (l *FaultLink) land(f *flight) {
	if f.dir.holding {
		f.dir.kept = append(f.dir.kept, f)
		return
	}
	l.arrive(f)
	l.recycle(f)
}

// arrive delivers a packet or drops it, by the present state of its direction and destination.
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
