package perf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"ibverbx"
	"ibverbx/verbs"
)

// Test is a measurement between two ends. Make one with New; Run may be called several
// times, by one goroutine at a time.
type Test struct {
	cfg   Config
	rails [2][]ibverbx.RailConfig
	sizes []int
	maxWR int // what a queue of any of the devices holds
	head  Report
}

// Observer is told how a test goes on, by the goroutine that runs it. Nil functions
// are not called.
type Observer struct {
	// Progress is called several times a second.
	Progress func(Progress)
	// Result is called with each row as it is complete.
	Result func(Result)
	// Head is called by Remote.Run alone, when it is known what the ends agreed on.
	Head func(Report)
}

// Progress says how far a test is.
type Progress struct {
	// Row counts from 0 to Rows-1; Size is its message size.
	Row, Rows, Size int
	// Done is the part of the row that is measured, 0 to 1.
	Done float64
}

// New checks a Config against two ends, which have as many rails each as the completed
// Config says; rail i of one reaches rail i of the other. A Config that cannot be is a
// *ConfigError.
func New(initiator, target []ibverbx.RailConfig, cfg Config) (*Test, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if len(initiator) != cfg.Rails || len(target) != cfg.Rails {
		return nil, fmt.Errorf("%d and %d rails were opened, want %d at each end", len(initiator), len(target), cfg.Rails)
	}
	if cfg.Kill.On && cfg.Kill.SetPort == nil {
		return nil, refuse(flagValue("kill-rail", cfg.Kill.Rail), "the ports of these NICs are not the program's to take down", "use --provider softnic")
	}
	t := &Test{cfg: cfg, rails: [2][]ibverbx.RailConfig{initiator, target}}
	attrs, err := t.describe()
	if err != nil {
		return nil, err
	}
	maxMsg := uint64(math.MaxUint64)
	t.maxWR = math.MaxInt
	for i := range attrs {
		maxMsg, t.maxWR = min(maxMsg, attrs[i].MaxMsgSize), min(t.maxWR, attrs[i].MaxQPWR)
	}
	if t.sizes, err = cfg.rows(cfg.limit(maxMsg, t.head.MTU)); err != nil {
		return nil, err
	}
	for _, size := range t.sizes {
		p := newPlan(&t.cfg, size, t.maxWR)
		for i := range attrs {
			if err := p.fits(&t.cfg, &attrs[i]); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// describe asks the devices what they are and fills in the head of the report. It returns
// the attributes of all devices.
func (t *Test) describe() (attrs []verbs.DeviceAttr, err error) {
	mtu, reads := verbs.MTU4096, math.MaxInt
	var link verbs.LinkLayer
	for side := range t.rails {
		for i := range t.rails[side] {
			rail := &t.rails[side][i]
			attr, err := rail.Context.QueryDevice()
			if err != nil {
				return nil, err
			}
			p, err := rail.Context.QueryPort(portOf(rail))
			if err != nil {
				return nil, err
			}
			if p.State != verbs.PortActive {
				return nil, fmt.Errorf("port %d of %s is %s, not %s", portOf(rail), rail.Context.Device().Name(), p.State, verbs.PortActive)
			}
			mtu, link = min(mtu, p.ActiveMTU), p.LinkLayer
			reads = min(reads, []int{attr.MaxQPInitRdAtomic, attr.MaxQPRdAtomic}[side])
			attrs = append(attrs, attr)
		}
	}
	if want := t.cfg.MTU; want > mtu.Bytes() {
		return nil, refuse(flagValue("mtu", want), fmt.Sprintf("the ports carry at most %d bytes", mtu.Bytes()), "use a smaller MTU")
	}
	t.describeTest(&attrs[0])
	t.head.LinkLayer, t.head.OutstandingReads = link.String(), reads
	if t.head.MTU == 0 {
		t.head.MTU = mtu.Bytes()
	}
	return attrs, nil
}

// describeTest fills in what the Config says. attr is of the first device.
func (t *Test) describeTest(attr *verbs.DeviceAttr) {
	c := &t.cfg
	t.head = Report{
		Op: c.op(), Mode: c.Mode, Provider: attr.Provider, Link: attr.Link,
		Device: deviceNames(t.rails[0]), Peer: deviceNames(t.rails[1]),
		Connection: c.Connection.String(), Transport: c.transport(), QPs: c.QPs, Rails: c.Rails, Scheme: "none",
		TxDepth: c.TxDepth, CQMod: c.CQMod, MTU: c.MTU,
		Bidirectional: c.Bidirectional, Checked: c.Check,
		Results: []Result{}, PerLane: []Lane{},
		Policy: c.Policy.String(), Fragment: c.Fragment,
	}
	if c.virtual() {
		t.head.Lanes, t.head.Scheme = c.QPs, c.Scheme.String()
	}
	for i := range c.Rails {
		rail := Rail{Rail: i, Device: deviceNames(t.rails[0][i : i+1]), Peer: deviceNames(t.rails[1][i : i+1])}
		t.head.PerRail = append(t.head.PerRail, rail)
	}
	if c.Mode == Latency {
		t.head.TxDepth = 1
	} else if c.TxDepth == 0 {
		t.head.TxDepth = defaultTxDepth
	}
}

// Head returns the report without results: what will be measured.
func (t *Test) Head() Report { return t.head }

// Sizes returns the message sizes that will be measured, in order.
func (t *Test) Sizes() []int { return t.sizes }

// Run measures row by row. When ctx ends it stops within milliseconds and returns what
// it has, with Interrupted set and no error. After an error the report holds the rows
// before it.
func (t *Test) Run(ctx context.Context, o Observer) (Report, error) {
	var cancelled atomic.Bool
	defer context.AfterFunc(ctx, func() { cancelled.Store(true) })()
	report := t.head
	report.Results = make([]Result, 0, len(t.sizes))
	report.PerRail, report.PerLane = slices.Clone(report.PerRail), []Lane{}
	for i, size := range t.sizes {
		if ctx.Err() != nil {
			break
		}
		progress := func(done float64) {
			if o.Progress != nil {
				o.Progress(Progress{Row: i, Rows: len(t.sizes), Size: size, Done: min(done, 1)})
			}
		}
		result, err := t.runRow(size, &report, &cancelled, progress)
		if err != nil {
			return report, fmt.Errorf("%s %s of %s over %s: %w", t.head.Op, t.cfg.Mode, FormatSize(size), t.cfg.Connection, err)
		}
		if result.Iterations == 0 {
			break
		}
		report.Results = append(report.Results, result)
		if o.Result != nil {
			o.Result(result)
		}
	}
	report.Interrupted = ctx.Err() != nil
	return report, nil
}

// runRow opens, measures and closes one row, and adds to the report what its lanes did.
func (t *Test) runRow(size int, rep *Report, cancelled *atomic.Bool, progress func(float64)) (res Result, err error) {
	r, err := t.openRow(size, cancelled, progress)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, r.pair.close()) }()
	progress(0)
	switch {
	case t.cfg.Kill.On:
		return r.failover(rep) // it accounts for itself, because lanes change rails
	case t.cfg.Mode == Latency:
		res, err = r.latency()
	default:
		res, err = r.bandwidth()
	}
	if err == nil && res.Iterations > 0 {
		r.account(rep)
	}
	return res, err
}
