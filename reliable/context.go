package reliable

import (
	"errors"
	"fmt"
	"sync"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// device is an open device whose RC QPs are made of paths.
type device struct {
	inner verbs.Context
	cfg   Config
	attr  verbs.DeviceAttr
	clock func() int64
	// shared says that UC QPs can use a shared receive queue.
	shared bool

	mu       sync.Mutex // guards everything below, and all objects of the device
	cq       verbs.CQ   // takes the completions of all inner QPs
	wcs      []verbs.WC
	stash    []verbs.WC // taken from cq and not looked at yet
	stashed  int        // of which were looked at
	more     bool       // the last drive has not taken all
	wakeAt   int64      // when the keeper looks next
	now      int64      // read once per batch
	routes   routes
	qps      []*qp   // by number; nil is free
	links    []*link // by number of the connection; nil is free
	lives    uint32  // counts the links that there were
	live     []*link // connected
	sidesAt  int64   // when the side QPs are looked at next
	asking   int     // QPs that wait for the card of their peer
	domains  []*domain
	prepared uint32 // counts what domains have made
	events   []verbs.Event
	eventErr error
	notify   *verbs.Waker
	polled   bool // since the keeper looked
	cqs      []*cq
	dirty    []*link       // have something to post
	pacers   []*core.Pacer // by port, nil for those without; only with Config.Credits
	keeper   *keeper
	closed   bool
}

var (
	_ verbs.Context = (*device)(nil)
	_ Stepper       = (*device)(nil)
)

// engineDepth is how many completions of inner QPs may wait: the windows of 256 QPs, full.
const engineDepth = 1 << 16

// Wrap returns a context whose RC QPs are made of paths on ctx, which it takes over: closing
// the wrapped context closes ctx. Other QPs are those of ctx. [ErrNoUC] if the device has no
// UC; then ctx stays open, and its owner's. With Config.FallBackToRC there is a context in its
// place whose QPs are those of ctx; see [Carrier].
func Wrap(ctx verbs.Context, cfg Config) (verbs.Context, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, verbs.NewOpError("wrap context", "", 0, err)
	}
	attr, err := ctx.QueryDevice()
	if err != nil {
		return nil, err
	}
	shared, err := probe(ctx, &attr)
	if cfg.FallBackToRC && errors.Is(err, verbs.ErrNotSupported) {
		return plain{ctx, cfg}, nil
	}
	if err == nil && !shared && cfg.pathShare() > cfg.RecvDepth {
		err = verbs.Invalidf("UC QPs of the device cannot use a shared receive queue, and Config.RecvDepth is %d: want Paths*PathRecv, %d, for each QP",
			cfg.RecvDepth, cfg.pathShare())
	}
	if errors.Is(err, verbs.ErrNotSupported) {
		err = fmt.Errorf("%w; use the context as it is, or set Config.FallBackToRC at both ends", err)
	}
	if err != nil {
		return nil, verbs.NewOpError("wrap context", ctx.Device().Name(), 0, err)
	}
	d := &device{inner: ctx, cfg: cfg, attr: attr, clock: cfg.Now, shared: shared, wcs: make([]verbs.WC, 64)}
	d.stash = make([]verbs.WC, 0, 256)
	waker := verbs.NewWaker()
	if d.clock == nil {
		d.clock = monotonic()
		d.keeper = newKeeper(d, waker)
	}
	d.cq, err = ctx.CreateCQ(verbs.CQConfig{Depth: min(engineDepth, attr.MaxCQE), Waker: waker})
	if err != nil {
		return nil, err
	}
	if d.keeper != nil {
		if err := ctx.NotifyEvents(waker); err != nil {
			return nil, errors.Join(err, d.cq.Close())
		}
		d.keeper.start()
	}
	return d, nil
}

// Device returns the device; what it opens is wrapped, too.
func (d *device) Device() verbs.Device { return wrapped{d.inner.Device(), d.cfg} }

// wrapped is a device that opens wrapped contexts.
type wrapped struct {
	verbs.Device
	cfg Config
}

// Open implements verbs.Device.
func (w wrapped) Open() (verbs.Context, error) {
	ctx, err := w.Device.Open()
	if err != nil {
		return nil, err
	}
	c, err := Wrap(ctx, w.cfg)
	if err != nil {
		return nil, errors.Join(err, ctx.Close())
	}
	return c, nil
}

// QueryDevice tells the limits of wrapped QPs.
func (d *device) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := d.inner.QueryDevice()
	a.Provider = "reliable over " + a.Provider
	a.MaxQP = min(a.MaxQP/(d.cfg.Paths+d.cfg.Flows+1), d.maxLinks()) * d.cfg.Flows
	a.MaxInline = min(a.MaxInline, maxInline)
	a.MaxMsgSize = d.maxMsg()
	a.Capabilities &^= verbs.CapSRQ | verbs.CapSRQOnUC | verbs.CapSQD | verbs.CapDMABuf | verbs.CapTimestamp
	a.Capabilities |= verbs.CapFlushOnPost
	a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = 0, 0, 0
	return a, err
}

// maxMsg is how long a message may be. The core counts its bytes in 32 bits, and a READ goes to the
// inner device as it is.
func (d *device) maxMsg() uint64 { return min(d.attr.MaxMsgSize, 1<<30) }

func (d *device) QueryPort(port int) (verbs.PortAttr, error) { return d.inner.QueryPort(port) }

func (d *device) QueryGID(port, index int) (verbs.GIDEntry, error) {
	return d.inner.QueryGID(port, index)
}

// Close ends the goroutine and closes everything.
func (d *device) Close() error {
	if d.keeper != nil {
		d.keeper.end()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	for _, q := range d.qps {
		if q != nil {
			q.destroy()
		}
	}
	for len(d.domains) > 0 {
		d.domains[0].free()
	}
	d.closed = true
	return d.inner.Close()
}

func (d *device) opError(op string, qpn uint32, err error) error {
	return verbs.NewOpError(op, d.inner.Device().Name(), qpn, err)
}
