package perf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ibverbx"
)

// Remote is a measurement whose other end is in another process: one end is the client,
// who says what is measured, the other the server.
type Remote struct {
	cfg     Config // as the client said
	own     Config // what this end wants of its VirtualQP
	side    int
	partner Partner
	rails   []ibverbx.RailConfig
	sizes   []int
	head    Report
	chatter time.Duration // between words of progress, for tests; zero means progressEvery
}

// NewClient asks the server for a test. A Config that cannot be is a *ConfigError.
func NewClient(ctx context.Context, p Partner, cfg Config) (*Remote, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	switch {
	case !cfg.virtual():
		return nil, refuse(flagValue("connection", cfg.Connection), "between processes there are VirtualQPs only, of RC QPs", "drop it")
	case cfg.Kill.On:
		return nil, refuse(flagValue("kill-rail", cfg.Kill.Rail), "the ports of two processes are not one process's to take down", "drop the host")
	}
	sizes, err := cfg.rows(min(cfg.limit(maxFragment, 0), remoteBytes))
	if err != nil {
		return nil, err
	}
	if len(cfg.Sizes) == 0 {
		sizes = slices.DeleteFunc(sizes, func(s int) bool { return remoteFits(&cfg, s) != nil })
	}
	for _, s := range sizes {
		if err := remoteFits(&cfg, s); err != nil {
			return nil, err
		}
	}
	r := &Remote{cfg: cfg, own: cfg, partner: p, sizes: sizes}
	mine, err := r.open(cfg.Wish())
	if err != nil {
		return nil, err
	}
	if err := say(ctx, p, specOf(&cfg, sizes)); err != nil {
		return nil, err
	}
	if err := say(ctx, p, mine); err != nil {
		return nil, err
	}
	theirs, err := r.meet(ctx)
	if err != nil {
		return nil, err
	}
	r.describe(mine, theirs)
	return r, nil
}

// NewServer takes the test that a client asks for. own is what this end wants of its
// VirtualQP, as far as the client leaves a choice; its zero value wants nothing. If the
// test cannot be the client is told why. A client that asks for nothing is not waited for:
// others may want to be served.
func NewServer(ctx context.Context, p Partner, own Config) (*Remote, error) {
	return newServer(ctx, p, own, askAfter)
}

// askAfter is how long a client may take to say what it wants.
const askAfter = 30 * time.Second

func newServer(ctx context.Context, p Partner, own Config, limit time.Duration) (*Remote, error) {
	late := fmt.Errorf("the client has not said within %v what to measure", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	r, err := serverOf(ctx, p, own)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return r, err
}

// serverOf is NewServer as long as ctx lasts.
func serverOf(ctx context.Context, p Partner, own Config) (*Remote, error) {
	b, err := p.Recv(ctx)
	if err != nil {
		return nil, err
	}
	var s spec
	if err := decodeNote(b, &s); err != nil {
		return nil, err
	}
	r := &Remote{own: own, side: 1, partner: p}
	var mine hostInfo
	left := 0
	if r.cfg, err = s.config(); err == nil {
		left, err = own.lends(&r.cfg, s.Sizes)
	}
	if err == nil {
		r.sizes = s.Sizes
		wanted := r.cfg.Wish()
		wanted.Memory = left
		if own.Rails > 0 {
			wanted.Rails = own.Rails
		}
		mine, err = r.open(wanted)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the client's test: %w", err), say(ctx, p, hostInfo{Devices: []string{}, Text: brief(err.Error())}))
	}
	theirs, err := r.meet(ctx)
	if err != nil {
		return nil, err
	}
	if err := say(ctx, p, mine); err != nil {
		return nil, err
	}
	r.describe(theirs, mine)
	return r, nil
}

// meet takes what the partner says of itself.
func (r *Remote) meet(ctx context.Context) (h hostInfo, err error) {
	b, err := r.partner.Recv(ctx)
	if err != nil {
		return h, err
	}
	if err := decodeNote(b, &h); err != nil {
		return h, err
	}
	if err := h.check(); err != nil {
		return h, err
	}
	if h.Text != "" {
		return h, fmt.Errorf("the partner refuses: %q", h.Text)
	}
	return h, nil
}

// open opens NICs and begins the head of the report.
func (r *Remote) open(w Wish) (hostInfo, error) {
	var err error
	if r.rails, err = r.partner.Open(w); err != nil {
		return hostInfo{}, err
	}
	info, attr, port, err := describeHost(r.rails)
	r.head.Provider, r.head.Link, r.head.LinkLayer, r.head.MTU = attr.Provider, attr.Link, port.LinkLayer.String(), port.ActiveMTU.Bytes()
	return info, err
}

// describe fills in the head of the report.
func (r *Remote) describe(client, server hostInfo) {
	c, h := &r.cfg, &r.head
	h.Op, h.Mode, h.Connection, h.Scheme = c.op(), c.Mode, c.Connection.String(), r.scheme().String()
	h.Transport = c.transport()
	h.Device, h.Peer = strings.Join(client.Devices, ","), strings.Join(server.Devices, ",")
	h.Rails, h.QPs, h.Lanes = len(r.rails), c.QPs, c.QPs
	h.TxDepth, h.CQMod, h.Bidirectional, h.Checked = c.TxDepth, c.CQMod, c.Bidirectional, c.Check
	h.Policy, h.Fragment, h.OutstandingReads = r.own.Policy.String(), c.Fragment, min(client.Reads, server.Reads)
	h.Results, h.PerLane = []Result{}, []Lane{}
	h.Role = [...]string{"client", "server"}[r.side]
	if c.MTU > 0 {
		h.MTU = c.MTU
	}
	if c.Mode == Latency {
		h.TxDepth = 1
	} else if c.TxDepth == 0 {
		h.TxDepth = defaultTxDepth
	}
	for i := range r.rails {
		h.PerRail = append(h.PerRail, Rail{Rail: i, Device: client.Devices[i%len(client.Devices)], Peer: server.Devices[i%len(server.Devices)]})
	}
}

func (r *Remote) scheme() ibverbx.Scheme { return r.own.Scheme }

// Head returns the report without results: what will be measured. Lanes, scheme, fragment
// and MTU are wishes until the first row is connected.
func (r *Remote) Head() Report { return r.head }

// Sizes returns the message sizes that will be measured, in order.
func (r *Remote) Sizes() []int { return r.sizes }

// Run measures row by row. When ctx ends at the client it stops and returns what it has,
// with Interrupted set and no error; both ends stop then. At the server it is an error.
// o.Head, if not nil, is called when it is known what was agreed on.
func (r *Remote) Run(ctx context.Context, o Observer) (Report, error) {
	report := r.head
	report.PerRail, report.PerLane, report.Results = slices.Clone(report.PerRail), []Lane{}, []Result{}
	talk, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if r.side == 1 {
		defer context.AfterFunc(ctx, cancel)()
	}
	for i, size := range r.sizes {
		progress := func(done float64) {
			if o.Progress != nil {
				o.Progress(Progress{Row: i, Rows: len(r.sizes), Size: size, Done: min(done, 1)})
			}
		}
		result, more, err := r.row(talk, ctx, size, &report, progress, o.Head)
		if err != nil {
			return report, fmt.Errorf("%s %s of %s: %w", report.Op, r.cfg.Mode, FormatSize(size), err)
		}
		if result.Iterations > 0 {
			report.Results = append(report.Results, result)
			if o.Result != nil {
				o.Result(result)
			}
		}
		if !more {
			report.Interrupted = true
			break
		}
	}
	return report, nil
}

// row connects, measures and closes one row. more says that neither end has had enough.
func (r *Remote) row(talk, stop context.Context, size int, rep *Report, progress func(float64), head func(Report)) (res Result, more bool, err error) {
	p := newPlan(&r.cfg, size, maxRequests)
	link, err := r.partner.Connect(talk, r.shape(&p))
	if err != nil {
		return res, false, err
	}
	defer func() { err = errors.Join(err, link.Close()) }()
	if len(rep.Results) == 0 {
		rep.Lanes, rep.QPs, rep.Scheme, rep.MTU, rep.Fragment = link.Lanes, link.Lanes, link.Scheme.String(), link.MTU, link.Fragment
		if head != nil {
			head(*rep)
		}
	}
	h, err := openHalf(talk, &r.cfg, p, r.side, link, r.partner, deviceNames(r.rails))
	if err != nil {
		return res, false, err
	}
	h.stop, h.progress = stop, progress
	if r.chatter > 0 {
		h.every = r.chatter
	}
	hearing, cancel := context.WithCancel(talk)
	h.notes = newNotes(hearing, r.partner)
	defer func() {
		cancel()
		<-h.notes.ended
	}()
	progress(0)
	mine, theirs, err := h.run()
	if err != nil {
		return res, false, h.because(err)
	}
	return r.settle(size, rep, mine, theirs), !mine.Interrupted && !theirs.Interrupted, nil
}

// shape says what this end of a row should be.
func (r *Remote) shape(p *plan) Shape {
	cfg := p.virtualConfig(&r.cfg)
	s := Shape{QP: cfg, MTU: r.own.MTU, Schemes: allSchemes(r.own.Scheme), Direct: r.cfg.direct() || r.own.QPs == 1, Bytes: p.endBytes(r.side)}
	s.QP.Scheme, s.QP.Policy = 0, r.own.Policy
	if r.side == 1 {
		s.QP.Lanes, s.QP.FragmentSize = r.own.QPs, uint32(r.own.Fragment)
	}
	return s
}

// settle makes a result of what the two ends found, the same at both.
func (r *Remote) settle(size int, rep *Report, mine, theirs *over) Result {
	ends := [2]*over{mine, theirs}
	if r.side == 1 {
		ends[0], ends[1] = theirs, mine
	}
	res := Result{Size: size}
	b := &BandwidthResult{}
	for _, e := range ends {
		if r.cfg.Mode == Latency {
			continue
		}
		one := bandwidthResult(size, e.Messages, 0, e.Elapsed, e.Peak, 0)
		res.Iterations += e.Messages
		b.BytesPerSecond += one.BytesPerSecond
		b.PeakBytesPerSecond += one.PeakBytesPerSecond
		b.MessagesPerSecond += one.MessagesPerSecond
	}
	if r.cfg.Mode == Latency {
		res.LatencyResult, res.Iterations = ends[0].Latency, ends[0].Messages
		if res.LatencyResult == nil {
			res.Iterations = 0
		}
	} else {
		res.BandwidthResult = b
	}
	r.account(rep, ends[:])
	return res
}

// account adds what lanes did at the ends that sent. Rails are this end's, as far as the
// lanes of the other end can be laid over them.
func (r *Remote) account(rep *Report, ends []*over) {
	for _, e := range ends {
		for i, lane := range e.Lanes {
			if i == len(rep.PerLane) {
				rep.PerLane = append(rep.PerLane, Lane{Lane: lane.Lane, Rail: lane.Rail, QPN: lane.QPN, Role: lane.Role})
			}
			rep.PerLane[i].add(lane.Carried)
			rep.PerLane[i].QPN = lane.QPN
			rep.PerLane[i].Deaths += lane.Deaths
			rep.PerRail[max(lane.Rail, 0)%len(rep.PerRail)].add(lane.Carried)
		}
	}
}
