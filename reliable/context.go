package reliable

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"ibverbx/internal/clock"
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// pathContext is a context whose RC QPs consist of paths.
type pathContext struct {
	inner verbs.Context // the wrapped context, owned by pathContext
	cfg   Config        // with defaults filled in
	// original is the cfg of Wrap.
	original Config
	attr     verbs.DeviceAttr // describes the inner device
	clock    func() int64     // returns nanoseconds, never decreasing
	// corked is inner if it implements verbs.Corker, otherwise nil.
	corked  verbs.Corker
	carrier carrier
	recvs   recvSizes
	// maxEngines is the maximum number of engines per PD. With Config.Now it is 1: the owner runs them in one goroutine.
	maxEngines int
	events     events // wait for the user to poll them to poll them
	ports      ports  // grant credit to peers to peers

	closed atomic.Bool // set by Close
	mu     sync.Mutex  // guards the fields below and those of pd
	pds    []*pd       // the open PDs
	// doorbells sums the posts of the engines of closed PDs.
	doorbells Doorbells
	// closedStats sums the counters of the connections of closed PDs.
	closedStats core.Stats
}

var (
	_ verbs.Context     = (*pathContext)(nil)
	_ Stepper           = (*pathContext)(nil)
	_ TransportReporter = (*pathContext)(nil)
)

// Wrap returns a context whose RC QPs consist of paths on inner. QPs of other types are inner's own.
// Wrap takes ownership of inner: closing the wrapped context closes it.
//
// Wrap returns [ErrNoCarrier] if the device supports neither UC nor UD, or not Config.Carrier, and verbs.ErrInvalid for an invalid cfg. After an error inner stays open,
// and the caller still owns it. With Config.FallBackToRC, a device that cannot carry paths is accepted,
// and the RC QPs are inner's own; see [TransportReporter].
func Wrap(inner verbs.Context, cfg Config) (verbs.Context, error) {
	if inner == nil {
		return nil, verbs.NewOpError("wrap context", "", 0, verbs.Invalidf("the Context is nil"))
	}
	attr, err := inner.QueryDevice()
	if err != nil {
		return nil, err
	}
	original := cfg
	if _, err := cfg.withDefaults(&carrier{typ: verbs.UC}); err != nil {
		return nil, verbs.NewOpError("wrap context", "", 0, err)
	}
	if cfg.Carrier == verbs.RC {
		return rcFallback{inner, original}, nil
	}
	carrier, err := probe(inner, &attr, cfg.Carrier)
	if cfg.FallBackToRC && errors.Is(err, verbs.ErrNotSupported) {
		return rcFallback{inner, original}, nil
	}
	if err == nil && cfg.ChunkBytes == 0 {
		cfg.ChunkBytes = cfg.ChunkOn(inner)
	}
	if err == nil && cfg.WindowBytes == 0 && onCaller(inner) {
		cfg.WindowBytes = callerWindow
	}
	if err == nil && cfg.RecvBytes == 0 && carrier.ownReceives() {
		cfg.RecvBytes = ownBytes
	}
	if err == nil {
		cfg, err = cfg.withDefaults(&carrier)
	}
	var recvs recvSizes
	if err == nil {
		recvs, err = cfg.sizeReceives(inner, &carrier, &attr)
	}
	if errors.Is(err, verbs.ErrNotSupported) {
		err = fmt.Errorf("%w; use the context without Wrap, or set Config.FallBackToRC at both ends", err)
	}
	if err != nil {
		return nil, verbs.NewOpError("wrap context", inner.Device().Name(), 0, err)
	}
	ctx := &pathContext{inner: inner, cfg: cfg, attr: attr, clock: cfg.Now, carrier: carrier, recvs: recvs, maxEngines: 1, events: events{inner: inner}}
	ctx.original = original
	ctx.corked, _ = inner.(verbs.Corker)
	if cfg.Now == nil {
		ctx.clock, ctx.maxEngines = clock.Monotonic(), maxEngines
	}
	return ctx, nil
}

// Device returns a device that opens wrapped contexts.
func (ctx *pathContext) Device() verbs.Device {
	return wrapped{ctx.inner.Device(), ctx.original}
}

// wrapped is a device that opens wrapped contexts.
type wrapped struct {
	verbs.Device
	cfg Config
}

// Unwrap returns the wrapped device.
func (w wrapped) Unwrap() verbs.Device { return w.Device }

func (w wrapped) Open() (verbs.Context, error) {
	inner, err := w.Device.Open()
	if err != nil {
		return nil, err
	}
	ctx, err := Wrap(inner, w.cfg)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return ctx, nil
}

// QueryDevice returns the limits of wrapped QPs.
func (ctx *pathContext) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := ctx.inner.QueryDevice()
	a.Provider = "reliable over " + a.Provider
	if ctx.carrier.datagrams() { // each QP has a handshake QP
		a.MaxQP = min(max(a.MaxQP-ctx.cfg.Paths-len(engineResources{}.control), 0), ctx.recvs.connections()*ctx.cfg.Flows)
	} else {
		a.MaxQP = min(a.MaxQP/(ctx.cfg.Paths+ctx.cfg.Flows+1), ctx.recvs.connections()) * ctx.cfg.Flows
	}
	a.MaxSGE = min(a.MaxSGE, verbs.MaxSGE)
	a.MaxInline = maxInline // copied to memory of the wrapper
	a.MaxMsgSize = ctx.maxMsg()
	a.Atomic = verbs.AtomicHCA // by the CPU; unwrapped QPs use the NIC
	a.Capabilities &^= verbs.CapSQD | verbs.CapTimestamp
	a.Capabilities |= verbs.CapFlushOnPost | verbs.CapSRQ | verbs.CapRC
	a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = maxSRQ, maxSRQWR, verbs.MaxSGE
	return a, err
}

// maxMsg is the maximum length of a message. The core counts bytes in 32 bits.
func (ctx *pathContext) maxMsg() uint64 { return min(ctx.attr.MaxMsgSize, 1<<30) }

func (ctx *pathContext) QueryPort(port int) (verbs.PortAttr, error) { return ctx.inner.QueryPort(port) }

func (ctx *pathContext) QueryGID(port, index int) (verbs.GIDEntry, error) {
	return ctx.inner.QueryGID(port, index)
}

// Close stops the goroutines and closes every object of the context.
func (ctx *pathContext) Close() error {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	if ctx.closed.Swap(true) {
		return nil
	}
	for len(ctx.pds) > 0 {
		ctx.pds[0].free()
	}
	return ctx.inner.Close()
}

// each calls f for every engine, which is locked. The context is locked.
func (ctx *pathContext) each(f func(*engine)) {
	for _, p := range ctx.pds {
		p.each(f)
	}
}

// Step implements Stepper.
func (ctx *pathContext) Step() (next int64, pending bool) {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	next = core.Never
	for _, p := range ctx.pds {
		for _, e := range p.engines {
			next = min(next, e.step())
		}
	}
	return next, next != core.Never
}

func (ctx *pathContext) opError(op string, qpn uint32, err error) error {
	return verbs.NewOpError(op, ctx.inner.Device().Name(), qpn, err)
}
