package enginetest

import "ibverbx/verbs"

// Limits describe a small device. Zero means the limit of the underlying NIC.
type Limits struct {
	CQE int // the depth of a CQ
	WR  int // requests in one queue of a QP
	SGE int // SGEs of a request
	// Inline is the maximum number of inline bytes per request; verbs.ExplicitZero disables inline
	// data. As in libibverbs, the device does not report it.
	Inline int
	// FixedCQ hides that CQs can be resized.
	FixedCQ bool
}

type fixedCQ struct{ verbs.CQ }

// Over returns a device with these limits on top of another.
func (l Limits) Over(inner verbs.Context) verbs.Context {
	if l == (Limits{}) {
		return inner
	}
	return &limitedContext{Context: inner, limits: l}
}

type limitedContext struct {
	verbs.Context
	limits Limits
}

func (x *limitedContext) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := x.Context.QueryDevice()
	lower := func(p *int, limit int) {
		if limit > 0 {
			*p = min(*p, limit)
		}
	}
	lower(&a.MaxCQE, x.limits.CQE)
	lower(&a.MaxQPWR, x.limits.WR)
	lower(&a.MaxSGE, x.limits.SGE)
	if x.limits.Inline != 0 {
		a.MaxInline = 0
	}
	return a, err
}

func (x *limitedContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	if limit := x.limits.CQE; limit > 0 && cfg.Depth > limit {
		return nil, verbs.Invalidf("CQConfig.Depth is %d: want 1 to %d", cfg.Depth, limit)
	}
	cq, err := x.Context.CreateCQ(cfg)
	if err == nil && x.limits.FixedCQ {
		cq = fixedCQ{cq}
	}
	return cq, err
}

func (x *limitedContext) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	return &limitedPD{PD: pd, limits: x.limits}, err
}

type limitedPD struct {
	verbs.PD
	limits Limits
}

func (d *limitedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	for _, f := range [...]struct {
		name         string
		value, limit int
	}{
		{"MaxSendWR", cfg.MaxSendWR, d.limits.WR},
		{"MaxRecvWR", cfg.MaxRecvWR, d.limits.WR},
		{"MaxSendSGE", cfg.MaxSendSGE, d.limits.SGE},
		{"MaxRecvSGE", cfg.MaxRecvSGE, d.limits.SGE},
		{"MaxInline", cfg.MaxInline, d.limits.Inline},
	} {
		if f.limit != 0 && f.value > max(f.limit, 0) {
			return nil, verbs.Invalidf("QPConfig.%s is %d: want 0 to %d", f.name, f.value, max(f.limit, 0))
		}
	}
	if d.limits.FixedCQ {
		cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(fixedCQ).CQ, cfg.RecvCQ.(fixedCQ).CQ
	}
	return d.PD.CreateQP(cfg)
}
