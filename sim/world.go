package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// world is one run of a plan. Everything in it happens in one goroutine.
type world struct {
	plan         *Plan
	pool         *Pool
	opts         *Options
	report       *Report
	now          int64 // virtual time in nanoseconds
	rng          *rand.Rand
	links        []*softnic.FaultLink // by rail
	hosts        []*host
	ends         []*end // two for each connection, a and then b
	eventQueue   eventQueue
	trace        *tracer // nil without a trace
	phase        phase
	healed       int64          // end of the last fault
	still        int            // consecutive turns without progress
	retried      bool           // refused posts were tried again since the last progress or long jump of time
	outage       time.Duration  // sum of all faults that make NICs wait for answers
	control      []*controlPair // by connection, with failover
	watches      []*watch
	placed       []softnic.MemoryAccess // packets placed in this turn, while there are watches
	activeFaults []activeFault          // injected faults
	meter        meter
	tick         time.Duration // longest time without a poll, with failover
}

// phase is a stage of a run.
type phase uint8

const (
	phaseWork phase = iota // Requests are posted and faults injected.

	phaseBarrier  // The last request of every end is in flight.
	phaseCapacity // Every queue is filled again.
	phaseDone
)

// build makes the hosts, links, connections and faults of a plan.
func (w *world) build(p *Plan, o *Options) error {
	w.plan, w.pool, w.opts, w.tick = p, o.Pool, o, minTick
	w.rng = rand.New(rand.NewPCG(p.Seed, 2))
	if o.Trace != nil {
		w.trace = newTracer(o.Trace)
	}
	clock := func() int64 { return w.now }
	for i, rp := range p.Rails {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{
			Seed: p.Seed*31 + uint64(i), Impairment: rp.Impairment, Window: rp.Window, Queue: rp.Queue, InTurn: rp.InTurn, Now: clock,
		})
		if err != nil {
			return err
		}
		w.links = append(w.links, link)
	}
	for i := range p.Hosts {
		h, err := w.newHost(i)
		w.hosts = append(w.hosts, h)
		if err != nil {
			return fmt.Errorf("host %d: %w", i, err)
		}
	}
	if err := w.layPaths(); err != nil {
		return err
	}
	for i := range p.Connects {
		if err := w.connect(&p.Connects[i], nil); err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
	}
	w.schedule()
	return nil
}

// host is a machine: a NIC on every rail, one completion queue, memory, and the ends of
// connections.
type host struct {
	w     *world
	index int
	nics  []*softnic.NIC // by rail
	// transports are the contexts of wrapped rails, by rail, nil for the others.
	transports []*transport
	rails      *ibverbx.Rails
	cq         *ibverbx.VirtualCQ
	memory     *verbs.Memory
	region     *ibverbx.Region
	remote     *ibverbx.RemoteRegion
	owners     []*span   // owner of each granule of memory, nil if it is free
	allocated  int       // granules in use by rings
	shared     *span     // counter that all peers add to
	sum        [2]uint64 // the minimum that peers have added to it, and the possible rest
	pool       recvPool

	ends     []*end
	byQP     map[*ibverbx.VirtualQP]*end // also ends that crashed
	wcs      []ibverbx.WC
	events   []ibverbx.Event
	batch    int   // completions of one poll
	nextPoll int64 // time of the next poll, never without an event since the last one
	paused   int64 // end of the time without polls
	cqFailed bool  // a fault has failed the CQ
	poll     pollFunc
}

func (w *world) newHost(index int) (*host, error) {
	h := &host{w: w, index: index, byQP: make(map[*ibverbx.VirtualQP]*end), wcs: make([]ibverbx.WC, 64), events: make([]ibverbx.Event, 16)}
	h.batch = 1 + w.rng.IntN(w.plan.Work.Batch)
	var cfgs []ibverbx.RailConfig
	for r, link := range w.links {
		cfg := softnic.Config{
			Name: fmt.Sprintf("h%dr%d", index, r), MTU: w.plan.Rails[r].MTU, Seed: w.plan.Seed<<8 + uint64(index*16+r) + 1,
		}
		if p := &w.plan.Rails[r]; p.Wrapped && p.Datagrams {
			cfg.QPTypes = []verbs.QPType{verbs.UD}
		}
		nic, err := softnic.New(link, cfg)
		if err != nil {
			return h, err
		}
		h.nics = append(h.nics, nic)
		nic.Observe(h.touched)
		if err := link.Bottleneck(nic, w.plan.Rails[r].PortRate, w.plan.Rails[r].PortQueue); err != nil {
			return h, err
		}
		var ctx verbs.Context
		if ctx, err = nic.Open(); err != nil {
			return h, err
		}
		var t *transport
		if w.plan.Rails[r].Wrapped {
			if t, err = w.wrap(ctx, nic, r, index); err != nil {
				return h, err
			}
			ctx = t
		}
		h.transports = append(h.transports, t)
		if w.opts.wrap != nil {
			ctx = w.opts.wrap(ctx)
		}
		cfgs = append(cfgs, ibverbx.RailConfig{Context: ctx})
	}
	var err error
	if h.rails, err = ibverbx.NewRails(cfgs...); err != nil {
		return h, err
	}
	if h.cq, err = h.rails.NewCQ(ibverbx.CQConfig{Depth: w.cqDepth(index), SharedReceives: w.plan.Shared, SharedData: w.plan.Pool}); err != nil {
		return h, err
	}
	h.poll = h.cq.Poll
	if w.opts.wrapPoll != nil {
		h.poll = w.opts.wrapPoll(h.poll)
	}
	if h.memory, err = w.pool.take(w.memorySize(index)); err != nil {
		return h, err
	}
	h.owners = make([]*span, h.memory.Len()/granule)
	if h.region, err = h.rails.Register(h.memory, verbs.AccessAll); err != nil {
		return h, err
	}
	h.remote = h.region.Remote()
	h.shared = h.newRing(granule).static(setOf(softnic.AccessRemoteAtomic), "shared counters")
	clear(h.shared.bytes())
	for range w.plan.Pool {
		h.pool.free = append(h.pool.free, h.newRing(w.inboxSpan()).static(0, "receive of the pool"))
	}
	h.pool.posted = make(map[uint64]*receive)
	return h, nil
}

// static makes a ring a single range that is never released.
func (z *ringAllocator) static(allow touchSet, label string) *span {
	s := &span{ring: z, off: z.at * granule, len: z.size * granule, allow: allow, label: label}
	for i := range z.size {
		z.host.owners[z.at+i] = s
	}
	return s
}

// cqDepth is the depth of the CQs of a host.
func (w *world) cqDepth(host int) int {
	depth := w.plan.Shared + w.plan.Pool + 16
	w.eachEnd(host, func(c *ConnectPlan, e *EndPlan) { depth += c.completions(e) })
	return depth
}

// memorySize is the size of a host's memory in bytes.
func (w *world) memorySize(host int) int {
	size := 4*granule + w.plan.Pool*(w.inboxSpan()+granule)
	w.eachEnd(host, func(_ *ConnectPlan, e *EndPlan) { size += w.endSize(e) + 16*granule })
	return size
}

// eachEnd calls f for every end that a host will have: planned ends and their replacements after crashes.
func (w *world) eachEnd(host int, f func(*ConnectPlan, *EndPlan)) {
	both := func(c *ConnectPlan) {
		for side, at := range [2]int{c.From, c.To} {
			if at == host {
				f(c, &c.Ends[side])
			}
		}
	}
	for i := range w.plan.Connects {
		both(&w.plan.Connects[i])
	}
	for i := range w.plan.Faults {
		if x := &w.plan.Faults[i]; x.Kind == FaultCrash || x.Kind == FaultRestart {
			both(&w.plan.Connects[x.Connect%len(w.plan.Connects)])
		}
	}
}

// close closes everything and returns all errors. The world may be built in part.
func (w *world) close() error {
	var errs []error
	for _, e := range w.ends {
		errs = append(errs, e.qp.Close())
	}
	for _, h := range w.hosts {
		if h.cq != nil {
			errs = append(errs, h.cq.Close())
		}
		if h.region != nil {
			errs = append(errs, h.region.Close())
		}
		if h.rails != nil {
			errs = append(errs, h.rails.Close())
		}
		for _, t := range h.transports {
			if t != nil {
				errs = append(errs, t.Close())
			}
		}
		for _, nic := range h.nics {
			errs = append(errs, nic.Close())
		}
		if h.memory != nil {
			w.pool.give(h.memory)
		}
	}
	return errors.Join(errs...)
}
