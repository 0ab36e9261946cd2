package reliable

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// onlyUD configures a NIC whose only QPs are UD QPs.
var onlyUD = softnic.Config{QPTypes: []verbs.QPType{verbs.UD}}

// newQP returns a QP of a wrapped context on a new NIC, which lacks the hidden capabilities, and its PD. Without
// cfg.Now the clock stands still. A context acts only when a test steps it.
func newQP(tb testing.TB, link softnic.Link, nicCfg softnic.Config, hidden verbs.Capabilities, cfg Config) (*qp, *pd) {
	tb.Helper()
	if cfg.Now == nil {
		cfg.Now = func() int64 { return 1 }
	}
	nic, err := softnic.New(link, nicCfg)
	fatal(tb, err)
	tb.Cleanup(func() { fatal(tb, nic.Close()) })
	inner, err := nic.Open()
	fatal(tb, err)
	ctx, err := Wrap(without{inner, hidden}, cfg)
	fatal(tb, err)
	tb.Cleanup(func() { fatal(tb, ctx.Close()) })
	p, err := ctx.AllocPD()
	fatal(tb, err)
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 256})
	fatal(tb, err)
	q, err := p.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	fatal(tb, err)
	return q.(*qp), p.(*pd)
}

// without hides capabilities of a context.
type without struct {
	verbs.Context
	hidden verbs.Capabilities
}

func (w without) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := w.Context.QueryDevice()
	a.Capabilities &^= w.hidden
	return a, err
}

// connectTo connects a QP to another one, or to itself.
func (q *qp) connectTo(tb testing.TB, to *qp) {
	tb.Helper()
	ep, err := to.Endpoint()
	fatal(tb, err)
	fatal(tb, q.Connect(ep))
}

func fatal(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("error %v, want none", err)
	}
}
