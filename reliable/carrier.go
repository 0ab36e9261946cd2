package reliable

import (
	"errors"
	"fmt"
	"strings"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// TransportReporter is implemented by every context that Wrap returns. It is safe for concurrent use.
type TransportReporter interface {
	// Transport returns the type of the QPs that carry the context's RC QPs: verbs.UC or verbs.UD, or
	// verbs.RC if the device cannot carry paths and Config.FallBackToRC is set.
	Transport() verbs.QPType
	// Carrier is the name of Transport: "uc", "ud" or "rc".
	Carrier() string
}

// Transport implements TransportReporter.
func (ctx *pathContext) Transport() verbs.QPType { return ctx.carrier.typ }

// Carrier implements TransportReporter.
func (ctx *pathContext) Carrier() string { return ctx.carrier.name() }

// rcFallback is the context of a device that cannot carry paths. All its objects are the device's own.
// Its QPs connect to QPs of plain or unwrapped contexts. A QP made of paths refuses them, because
// their endpoints have no card.
type rcFallback struct {
	verbs.Context
	cfg Config
}

var (
	_ TransportReporter = rcFallback{}
	_ Stepper           = rcFallback{}
)

// Transport reports that QPs are the device's own.
func (rcFallback) Transport() verbs.QPType { return verbs.RC }

// Carrier implements TransportReporter.
func (rcFallback) Carrier() string { return "rc" }

// Step does nothing.
func (rcFallback) Step() (next int64, pending bool) { return 0, false }

// Device returns a device that opens contexts with the same Config.
func (p rcFallback) Device() verbs.Device { return wrapped{p.Context.Device(), p.cfg} }

// QueryDevice reports the fallback in the name of the provider.
func (p rcFallback) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := p.Context.QueryDevice()
	a.Provider = "RC, instead of reliable, over " + a.Provider
	return a, err
}

// ErrNoCarrier is returned by Wrap if the device has no QPs of the type that carries the paths. It wraps
// verbs.ErrNotSupported.
var ErrNoCarrier = fmt.Errorf("%w: the device has no QPs that can carry paths", verbs.ErrNotSupported)

// carrier describes the inner QPs that carry the paths.
type carrier struct {
	typ  verbs.QPType // UC or UD
	srq  bool         // set if they can use a shared receive queue
	rc   bool         // set if the device has RC QPs, for handshake QPs and copiers
	sges int          // the number of elements of a request
}

// name is the name shown to users.
func (c *carrier) name() string { return strings.ToLower(c.typ.String()) }

// datagrams reports whether the paths use UD QPs of the engine.
func (c *carrier) datagrams() bool { return c.typ == verbs.UD }

// ownReceives reports whether each path has its own Config.PathRecv receives.
func (c *carrier) ownReceives() bool { return !c.srq && !c.datagrams() }

const (
	// datagramWindow is the default of Config.Window for datagrams, 4 MiB of 4 KiB.
	datagramWindow = core.MaxWindow
	// datagramAck and datagramBurst are core.Config.AckBytes and Burst for datagrams: acknowledgements and doorbells
	// cost as much as those of larger chunks.
	datagramAck, datagramBurst = 128 << 10, 32 << 10
	// minSGEs is the minimum number of elements per request: a header and the payload.
	minSGEs = 2
)

// describe sets the core's properties of the carrier.
func (c *carrier) describe(cfg *core.Config) {
	if c.datagrams() {
		cfg.Carrier.Software, cfg.Carrier.Unordered, cfg.Carrier.Shared = true, true, true
		cfg.Carrier.AckBytes, cfg.Carrier.Burst = datagramAck, datagramBurst
	}
}

// probe finds the carrier of a device: the given type, or UC, or else UD. It checks
// the device's attributes and then creates such QPs.
func probe(ctx verbs.Context, attr *verbs.DeviceAttr, want verbs.QPType) (c carrier, err error) {
	c = carrier{typ: want, sges: min(attr.MaxSGE, verbs.MaxSGE), rc: attr.Capabilities&verbs.CapRC != 0}
	switch {
	case want != 0:
	case attr.Capabilities&verbs.CapUC != 0 && c.sges == verbs.MaxSGE && c.rc:
		c.typ = verbs.UC
	default:
		c.typ = verbs.UD
	}
	switch {
	case attr.Capabilities&verbs.CapUD == 0:
		return c, fmt.Errorf("%w: there is no UD, which also carries acknowledgements", ErrNoCarrier)
	case !c.datagrams() && (attr.Capabilities&verbs.CapUC == 0 || !c.rc):
		return c, fmt.Errorf("%w: Config.Carrier is UC, which is made of UC, RC and UD", ErrNoCarrier)
	case !c.datagrams() && c.sges < verbs.MaxSGE, c.sges < minSGEs:
		return c, fmt.Errorf("%w: the device allows %d elements per request", ErrNoCarrier, attr.MaxSGE)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return c, err
	}
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 1})
	if err != nil {
		return c, errors.Join(err, pd.Close())
	}
	err = c.probeQP(pd, cq, attr)
	if e := errors.Join(cq.Close(), pd.Close()); err == nil {
		err = e
	}
	if want == 0 && !c.datagrams() && errors.Is(err, ErrNoCarrier) {
		return probe(ctx, attr, verbs.UD)
	}
	return c, err
}

// probeQP creates a QP, and one with a shared receive queue.
func (c *carrier) probeQP(pd verbs.PD, cq verbs.CQ, attr *verbs.DeviceAttr) error {
	cfg := verbs.QPConfig{Type: c.typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: c.sges}
	qp, err := pd.CreateQP(cfg)
	if errors.Is(err, verbs.ErrLimit) || errors.Is(err, verbs.ErrClosed) {
		return err // proves nothing about the type
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoCarrier, err)
	}
	if err := qp.Close(); err != nil {
		return err
	}
	need := verbs.CapSRQ | verbs.CapSRQOnUC
	if c.datagrams() {
		need = verbs.CapSRQ | verbs.CapSRQOnUD
	}
	if attr.Capabilities&need != need {
		return nil
	}
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1, MaxSGE: 1})
	if err != nil {
		return nil //nolint:nilerr // paths do without an SRQ then
	}
	cfg.SRQ, cfg.MaxRecvWR = srq, 0
	if qp, err = pd.CreateQP(cfg); err == nil {
		c.srq, err = true, qp.Close()
	} else {
		err = nil
	}
	return errors.Join(err, srq.Close())
}
