package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Test is a measurement between two sides, in one process or in two. Create it with New, NewClient or NewServer.
// If both sides are in one process, Run may be called several times, but not concurrently.
type Test struct {
	cfg   Config
	own   Config // this side's VirtualQP settings and timeouts
	side  int    // 1 for a server, otherwise 0
	peer  Peer   // nil if both sides are in this process
	rails [2][]ibverbx.RailConfig
	sizes []int
	maxWR int // smallest queue capacity over all devices, in requests
	head  Report
}

// Observer follows a test, in the goroutine that runs it. Nil functions are skipped.
type Observer struct {
	// Head is called before the first row, with the parameters that the two sides agreed on.
	Head func(Report)
	// Progress is called several times a second.
	Progress func(Progress)
	// Interval is the length of a span in Result.Timeline. Zero disables the timeline.
	Interval time.Duration
	// Span is called after each span, with its message size.
	Span func(size int, s Span)
	// Opened is called when a side of a row is connected: with 0 for the initiator or 1 for the
	// target, its VirtualQP, nil if the QPs are raw, and its rails. The returned function is called
	// before they are closed.
	Opened func(side int, qp *ibverbx.VirtualQP, rails []ibverbx.RailConfig) (closing func())
	// Snapshot is called at the start of a row and after each span.
	Snapshot func(Snapshot)
	// Measuring is called with true after the warm-up of a row, and with false after the row. A
	// side that only receives cannot detect the warm-up of the other side, so its rows start
	// without one.
	Measuring func(on bool)
	// Result is called after each row.
	Result func(Result)
	// Paths returns the paths of an open QP, by its context and number, nil for a QP without paths.
	// If Paths is nil, the report omits paths.
	Paths func(ctx verbs.Context, qpn uint32) []Path
	// Health returns the counters of a NIC if qpn is 0, otherwise of an open QP. ok is false if
	// they are unavailable. If Health is nil, the report omits health.
	Health func(ctx verbs.Context, qpn uint32) (h Health, ok bool)
}

// notify calls a function of an Observer, unless it is nil.
func notify[T any](f func(T), v T) {
	if f != nil {
		f(v)
	}
}

// Snapshot is the state of a row in progress. Its slices are not modified later.
type Snapshot struct {
	// Size is the message size in bytes.
	Size int
	// At is the time since the start of the row, without copies.
	At time.Duration
	// Messages counts delivered messages.
	Messages int64
	// P50 is the median in microseconds of the times since the last Snapshot, 0 if unknown.
	P50 float64
	// P99 is the 99th percentile of these times.
	P99 float64
	// Lanes are the lane counters of this side. If both sides are in this process and send, bytes
	// are sums.
	Lanes []ibverbx.LaneStats
	// Contexts are the NICs in this process, by rail.
	Contexts [][]verbs.Context
}

// Progress is the progress of a test.
type Progress struct {
	// Row counts from 0 to Rows-1.
	Row int
	// Rows is the number of rows.
	Rows int
	// Size is the message size of the row in bytes.
	Size int
	// Done is the measured fraction of the row, 0 to 1. It never decreases, and does not advance
	// while the row is stalled.
	Done float64
	// At is the time since the start of the row, without copies.
	At time.Duration
	// Messages counts this side's delivered messages.
	Messages int64
	// Stalled is the time since the last delivered message, 0 unless the row is stalled.
	Stalled time.Duration
	// Lost counts lane losses at this side.
	Lost int
	// Rebuilt counts lane recoveries at this side.
	Rebuilt int
	// Passive is set if this side only exposes its memory or receives, and cannot observe the
	// progress of the other side.
	Passive bool
}

// New checks a Config against the rails of two ends in this process. Each end must have as many
// rails as the completed Config; rail i of one reaches rail i of the other. A Config that cannot be
// measured is a *ConfigError.
func New(initiator, target []ibverbx.RailConfig, cfg Config) (*Test, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if len(initiator) != cfg.Rails || len(target) != cfg.Rails {
		return nil, fmt.Errorf("%d and %d rails were opened, want %d at each end", len(initiator), len(target), cfg.Rails)
	}
	if err := cfg.Kill.control(initiator, target); err != nil {
		return nil, err
	}
	t := &Test{cfg: cfg, own: cfg, rails: [2][]ibverbx.RailConfig{initiator, target}, maxWR: math.MaxInt}
	var hosts [2]host
	var attrs []verbs.DeviceAttr
	for side := range hosts {
		hosts[side].Memory = cfg.Memory[side].Device
		found, err := t.query(side, &hosts[side])
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, found...)
	}
	if carried := t.head.MTU; cfg.MTU > carried {
		return nil, Refuse("mtu", cfg.MTU, fmt.Sprintf("the ports carry at most %d bytes", carried), "use a smaller MTU")
	}
	t.describe(hosts)
	return t, t.plan(attrs)
}

// host describes the NICs of one side.
type host struct {
	// Devices are the NIC names, by rail.
	Devices []string `json:"devices"`
	// Reads is the maximum number of outstanding READs or atomics per QP.
	Reads int `json:"reads"`
	// Memory is the name of the memory device with this side's buffers, empty for the host.
	Memory string `json:"memory,omitempty"`
	// Text is the reason why this side refuses the test, empty if it accepts it.
	Text string `json:"text"`
	// Ahead is the number of clients before this one. If it is not zero, this host only notifies a
	// client that it has to wait.
	Ahead int `json:"ahead,omitempty"`
}

// agree adopts the parameters that both sides agreed on. Over shared memory, a side with more rails than the other does
// not use the excess ones.
func (rep *Report) agree(s *peer.Session) {
	rep.Link, rep.LinkReason, rep.Rails = string(s.Link), s.LinkReason, s.Rails.Len()
	rep.PerRail = rep.PerRail[:rep.Rails]
	a := &s.Agreed
	rep.Lanes, rep.QPs, rep.Scheme, rep.MTU, rep.Table.Fragment, rep.Sealed = a.Lanes, a.Lanes, a.Scheme.String(), a.MTU.Bytes(), a.FragmentSize, a.Sealed
}

// plan chooses the row sizes and fails if a device cannot run the test.
func (t *Test) plan(attrs []verbs.DeviceAttr) (err error) {
	maxMsg := uint64(math.MaxUint64)
	for i := range attrs {
		maxMsg, t.maxWR = min(maxMsg, attrs[i].MaxMsgSize), min(t.maxWR, attrs[i].MaxQPWR)
	}
	if t.sizes, err = t.cfg.rows(t.cfg.limit(maxMsg, t.head.MTU)); err != nil {
		return err
	}
	for _, size := range t.sizes {
		p := newPlan(&t.cfg, size, t.maxWR)
		for i := range attrs {
			if err := p.fits(&t.cfg, &attrs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// query reads the attributes of a side's NICs and fills in the report header.
func (t *Test) query(side int, h *host) (attrs []verbs.DeviceAttr, err error) {
	h.Reads = math.MaxUint8
	rep := &t.head
	for i := range t.rails[side] {
		rail := &t.rails[side][i]
		name := rail.Context.Device().Name()
		attr, err := rail.Context.QueryDevice()
		if err != nil {
			return nil, err
		}
		port, err := rail.Context.QueryPort(portOf(rail))
		if err != nil {
			return nil, err
		}
		if port.State != verbs.PortActive {
			return nil, fmt.Errorf("port %d of %s is %s, not %s", portOf(rail), name, port.State, verbs.PortActive)
		}
		if rep.MTU == 0 {
			rep.Provider, rep.Link, rep.MTU = attr.Provider, attr.Link, port.ActiveMTU.Bytes()
		}
		rep.MTU, rep.Table.LinkLayer = min(rep.MTU, port.ActiveMTU.Bytes()), port.LinkLayer.String()
		h.Devices = append(h.Devices, name)
		h.Reads = min(h.Reads, attr.MaxQPInitRdAtomic, attr.MaxQPRdAtomic)
		attrs = append(attrs, attr)
	}
	return attrs, nil
}

// describe fills in the head of the report. hosts describes the first and the second side.
func (t *Test) describe(hosts [2]host) {
	c, h := &t.cfg, &t.head
	h.Op, h.Mode, h.Connection, h.Transport = c.op(), c.Mode, c.Connection.String(), c.transport()
	h.Device, h.Peer = strings.Join(hosts[0].Devices, ","), strings.Join(hosts[1].Devices, ",")
	c.Memory[0].Device, c.Memory[1].Device = hosts[0].Memory, hosts[1].Memory
	h.QPs, h.Rails, h.Scheme = c.QPs, len(t.rails[t.side]), "none"
	if c.virtual() {
		h.Lanes, h.Scheme = c.QPs, t.own.Scheme.String()
	}
	h.TxDepth, h.CQMod, h.Bidirectional, h.Checked = c.TxDepth, c.CQMod, c.Bidirectional, c.Check
	h.Table.Policy, h.Table.Fragment, h.Table.OutstandingReads = t.own.Policy.String(), c.Fragment, min(hosts[0].Reads, hosts[1].Reads)
	h.Results, h.PerLane, h.Run.Options = []Result{}, []Lane{}, *c
	for i := range c.Memory {
		h.Run.Options.Memory[i] = Memory{Device: c.Memory[i].String()}
	}
	if c.MTU > 0 {
		h.MTU = c.MTU
	}
	if c.Mode == Latency {
		h.TxDepth = 1
	} else if c.TxDepth == 0 {
		h.TxDepth = defaultTxDepth
	}
	for i := range h.Rails {
		a, b := hosts[0].Devices, hosts[1].Devices
		h.PerRail = append(h.PerRail, Rail{Rail: i, Device: a[i%len(a)], Peer: b[i%len(b)]})
	}
}

// Sizes returns the message sizes that will be measured, in order.
func (t *Test) Sizes() []int { return t.sizes }

// Run measures row by row. When ctx is done, it stops and returns a partial report with Interrupted
// set and a nil error. It waits up to 2 s for messages in flight. If a client stops, the server
// stops too. At a server, cancelling ctx is an error. After an error the report holds the rows
// before it.
func (t *Test) Run(ctx context.Context, o Observer) (Report, error) {
	var cancelled atomic.Bool
	defer context.AfterFunc(ctx, func() { cancelled.Store(true) })()
	control, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	wait := time.Duration(0)
	if t.side == 0 {
		wait = cmp.Or(t.own.Timing.Drain, drainAfter)
	}
	defer context.AfterFunc(ctx, func() { time.AfterFunc(wait, cancel) })()
	report := t.head
	report.Results = make([]Result, 0, len(t.sizes))
	report.Run.Options.Sizes = t.sizes
	report.PerRail, report.PerLane = slices.Clone(report.PerRail), []Lane{}
	if t.peer == nil {
		notify(o.Head, report)
	}
	for i, size := range t.sizes {
		if t.peer == nil && ctx.Err() != nil {
			break
		}
		result, err := t.runRow(control, i, &report, &o, &cancelled)
		if err != nil {
			return report, fmt.Errorf("%s %s of %s over %s: %w", report.Op, t.cfg.Mode, FormatSize(size), t.cfg.Connection, err)
		}
		if result.Iterations > 0 {
			report.Results = append(report.Results, result)
			notify(o.Result, result)
		}
		report.shares()
		if report.Interrupted {
			break
		}
	}
	report.Interrupted = report.Interrupted || t.peer == nil && ctx.Err() != nil
	return report, nil
}

// runRow opens, measures and closes one row. It sets Interrupted if a user has stopped the test.
func (t *Test) runRow(ctx context.Context, row int, rep *Report, o *Observer, cancelled *atomic.Bool) (res Result, err error) {
	size := t.sizes[row]
	r, err := t.openRow(ctx, size, o, cancelled)
	defer func() { err = errors.Join(err, r.closers.Close()) }()
	if errors.Is(err, errCancelled) {
		rep.Interrupted = true
		return res, nil
	}
	if err != nil {
		return res, err
	}
	if o.Opened != nil {
		r.announce(o.Opened)
	}
	if o.Interval > 0 {
		r.series = &series{run: r, every: o.Interval, observer: o, forget: t.cfg.Live.On && !t.cfg.Kill.On}
		if o.Snapshot != nil {
			r.timed()
		}
	}
	if t.cfg.Kill.On {
		r.outage = r.newOutage(rep)
		if r.series == nil {
			r.series = &series{run: r, every: min(bucketLong, max(t.cfg.Duration/bucketsMin, time.Microsecond))}
		}
	}
	if r.session != nil && len(rep.Results) == 0 {
		rep.agree(r.session)
		if err := rep.locate(r.session, t.side); err != nil {
			return res, err
		}
		notify(o.Head, *rep)
	}
	r.pace.first = Progress{Row: row, Rows: len(t.sizes), Size: size, Passive: r.own().out == nil}
	notify(o.Progress, r.pace.first)
	defer notify(o.Measuring, false)
	found, err := r.run()
	if err != nil {
		return res, r.control.explain(err)
	}
	res = t.cfg.settle(size, found)
	res.Histogram, res.HDR = found[t.side].histogram, found[t.side].hdr
	if o.Interval > 0 {
		res.Timeline = r.series.spans()
	}
	rep.Interrupted = rep.Interrupted || found[0].Interrupted // only a client's user can stop a test
	for i, side := range found {
		if res.Iterations > 0 {
			rep.add(i, side)
		}
	}
	if o.Paths != nil && t.side == 0 {
		rep.examinePaths(t.rails[0], o.Paths)
	}
	return res, nil
}
