package reliable

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// TransportReporter is implemented by every context that Wrap returns. It is safe for concurrent use.
type TransportReporter interface {
	// Transport returns the type of the QPs that carry the context's RC QPs: verbs.UC, or verbs.RC if
	// the device cannot carry paths and Config.FallBackToRC is set.
	Transport() verbs.QPType
}

// Transport implements the interface of that name.
func (ctx *pathContext) Transport() verbs.QPType { return verbs.UC }

// plain is the context of a device that cannot carry paths. All its objects are the device's own.
// Its QPs connect to QPs of plain or unwrapped contexts. A QP made of paths refuses them, because
// their endpoints have no card.
type plain struct {
	verbs.Context
	cfg Config
}

var (
	_ TransportReporter = plain{}
	_ Stepper           = plain{}
)

// Transport reports that QPs are the device's own.
func (plain) Transport() verbs.QPType { return verbs.RC }

// Step does nothing.
func (plain) Step() (next int64, pending bool) { return 0, false }

// Device returns a device that opens contexts with the same Config.
func (p plain) Device() verbs.Device { return wrapped{p.Context.Device(), p.cfg} }

// QueryDevice reports the fallback in the name of the provider.
func (p plain) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := p.Context.QueryDevice()
	a.Provider = "RC, instead of reliable, over " + a.Provider
	return a, err
}

// ErrNoUC is returned by Wrap if the device does not support UC QPs, which carry the paths. It wraps
// verbs.ErrNotSupported.
var ErrNoUC = fmt.Errorf("%w: the device has no UC QPs", verbs.ErrNotSupported)

// probe finds out whether a device can carry paths, and whether UC QPs can use a shared receive
// queue. It looks at the device's attributes and then creates such QPs.
func probe(ctx verbs.Context, attr *verbs.DeviceAttr) (shared bool, err error) {
	switch {
	case attr.Capabilities&verbs.CapUC == 0:
		return false, ErrNoUC
	case attr.Capabilities&verbs.CapUD == 0:
		return false, fmt.Errorf("%w: the device has no UD QPs, which carry acknowledgements", verbs.ErrNotSupported)
	case attr.MaxSGE < verbs.MaxSGE:
		return false, fmt.Errorf("%w: the device allows %d elements per request, want %d", verbs.ErrNotSupported, attr.MaxSGE, verbs.MaxSGE)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return false, err
	}
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 1})
	if err != nil {
		return false, errors.Join(err, pd.Close())
	}
	shared, err = probeUC(pd, cq, attr)
	if e := errors.Join(cq.Close(), pd.Close()); err == nil {
		err = e
	}
	return shared, err
}

// probeUC creates a UC QP, and one with a shared receive queue.
func probeUC(pd verbs.PD, cq verbs.CQ, attr *verbs.DeviceAttr) (shared bool, err error) {
	cfg := verbs.QPConfig{Type: verbs.UC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}
	qp, err := pd.CreateQP(cfg)
	if errors.Is(err, verbs.ErrLimit) || errors.Is(err, verbs.ErrClosed) {
		return false, err // says nothing about UC
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrNoUC, err)
	}
	if err := qp.Close(); err != nil {
		return false, err
	}
	const need = verbs.CapSRQ | verbs.CapSRQOnUC
	if attr.Capabilities&need != need {
		return false, nil
	}
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1, MaxSGE: 1})
	if err != nil {
		return false, nil //nolint:nilerr // paths do without an SRQ then
	}
	cfg.SRQ, cfg.MaxRecvWR = srq, 0
	if qp, err = pd.CreateQP(cfg); err == nil {
		shared, err = true, qp.Close()
	} else {
		err = nil
	}
	return shared, errors.Join(err, srq.Close())
}
