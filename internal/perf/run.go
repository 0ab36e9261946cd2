package perf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"ibverbx/verbs"
)

// Test is a measurement between two devices. Make one with New; Run may be called
// several times, by one goroutine at a time.
type Test struct {
	cfg   Config
	ctxs  [2]verbs.Context
	sizes []int
	head  Report
}

// Observer is told how a test goes on, by the goroutine that runs it. Nil functions
// are not called.
type Observer struct {
	// Progress is called several times a second.
	Progress func(Progress)
	// Result is called with each row as it is complete.
	Result func(Result)
}

// Progress says how far a test is.
type Progress struct {
	// Row counts from 0 to Rows-1; Size is its message size.
	Row, Rows, Size int
	// Done is the part of the row that is measured, 0 to 1.
	Done float64
}

// New checks a Config against two open devices. A Config that cannot be is a
// *ConfigError.
func New(initiator, target verbs.Context, cfg Config) (*Test, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Test{cfg: cfg, ctxs: [2]verbs.Context{initiator, target}}
	attrs, err := t.describe()
	if err != nil {
		return nil, err
	}
	limit := min(attrs[0].MaxMsgSize, attrs[1].MaxMsgSize, math.MaxUint32, math.MaxInt)
	if cfg.Connection == verbs.UD {
		limit = uint64(t.head.MTU)
	}
	if t.sizes, err = cfg.rows(limit); err != nil {
		return nil, err
	}
	for _, size := range t.sizes {
		p := newPlan(&t.cfg, size)
		for i := range attrs {
			if err := p.fits(&t.cfg, &attrs[i]); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// describe asks the devices what they are and fills in the head of the report.
func (t *Test) describe() (attrs [2]verbs.DeviceAttr, err error) {
	mtu := verbs.MTU4096
	var link verbs.LinkLayer
	for i, ctx := range t.ctxs {
		if attrs[i], err = ctx.QueryDevice(); err != nil {
			return attrs, err
		}
		p, err := ctx.QueryPort(port)
		if err != nil {
			return attrs, err
		}
		if p.State != verbs.PortActive {
			return attrs, fmt.Errorf("port %d of %s is %s, not %s", port, ctx.Device().Name(), p.State, verbs.PortActive)
		}
		mtu, link = min(mtu, p.ActiveMTU), p.LinkLayer
	}
	if want := t.cfg.MTU; want > mtu.Bytes() {
		return attrs, refuse(flagValue("mtu", want), fmt.Sprintf("the ports carry at most %d bytes", mtu.Bytes()), "use a smaller MTU")
	}
	t.head = Report{
		Op: t.cfg.Op, Mode: t.cfg.Mode, Provider: attrs[0].Provider, Link: attrs[0].Link,
		Device: t.ctxs[0].Device().Name(), Peer: t.ctxs[1].Device().Name(),
		Connection: t.cfg.Connection.String(), QPs: t.cfg.QPs, TxDepth: t.cfg.TxDepth, CQMod: t.cfg.CQMod, MTU: t.cfg.MTU,
		Bidirectional: t.cfg.Bidirectional, Checked: t.cfg.Check,
		Results:          []Result{},
		LinkLayer:        link.String(),
		OutstandingReads: min(attrs[0].MaxQPInitRdAtomic, attrs[1].MaxQPRdAtomic),
	}
	if t.head.MTU == 0 {
		t.head.MTU = mtu.Bytes()
	}
	if t.cfg.Mode == Latency {
		t.head.TxDepth = 1
	} else if t.head.TxDepth == 0 {
		t.head.TxDepth = defaultTxDepth
	}
	return attrs, nil
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
	for i, size := range t.sizes {
		if ctx.Err() != nil {
			break
		}
		progress := func(done float64) {
			if o.Progress != nil {
				o.Progress(Progress{Row: i, Rows: len(t.sizes), Size: size, Done: min(done, 1)})
			}
		}
		result, err := t.runRow(size, &cancelled, progress)
		if err != nil {
			return report, fmt.Errorf("%s %s of %s over %s: %w", t.cfg.Op, t.cfg.Mode, FormatSize(size), t.cfg.Connection, err)
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

// runRow opens, measures and closes one row.
func (t *Test) runRow(size int, cancelled *atomic.Bool, progress func(float64)) (res Result, err error) {
	r, err := t.openRow(size, cancelled, progress)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, r.pair.close()) }()
	progress(0)
	if t.cfg.Mode == Latency {
		return r.latency()
	}
	return r.bandwidth()
}
