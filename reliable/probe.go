package reliable

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// ErrNoUC says that a device has no UC QPs, of which paths are made. It is a
// verbs.ErrNotSupported.
var ErrNoUC = fmt.Errorf("%w: the device has no UC QPs", verbs.ErrNotSupported)

// probe finds out whether paths can be made on a context, and whether their QPs can share a
// receive queue: by what it says about itself, and then by making such QPs.
func probe(ctx verbs.Context, attr *verbs.DeviceAttr) (shared bool, err error) {
	switch {
	case attr.Capabilities&verbs.CapUC == 0:
		return false, ErrNoUC
	case attr.Capabilities&verbs.CapUD == 0:
		return false, fmt.Errorf("%w: the device has no UD QPs, which carry acknowledgements", verbs.ErrNotSupported)
	case attr.MaxSGE < verbs.MaxSGE:
		return false, fmt.Errorf("%w: a request of the device has %d elements at the most, want %d", verbs.ErrNotSupported, attr.MaxSGE, verbs.MaxSGE)
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

// probeUC makes a UC QP, and one with a shared receive queue.
func probeUC(pd verbs.PD, cq verbs.CQ, attr *verbs.DeviceAttr) (shared bool, err error) {
	cfg := verbs.QPConfig{Type: verbs.UC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}
	qp, err := pd.CreateQP(cfg)
	if errors.Is(err, verbs.ErrLimit) || errors.Is(err, verbs.ErrClosed) {
		return false, err // it says nothing about UC
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
		return false, nil //nolint:nilerr // the device can do without
	}
	cfg.SRQ, cfg.MaxRecvWR = srq, 0
	if qp, err = pd.CreateQP(cfg); err == nil {
		shared, err = true, qp.Close()
	} else {
		err = nil
	}
	return shared, errors.Join(err, srq.Close())
}
