package softnic_test

import (
	"testing"

	enginerig "ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// rig is two NICs on a link, with a context on each and the objects that tests need.
type rig struct {
	// ackTimeout is PathConfig's field of the same name.
	ackTimeout int8
	tb         testing.TB
	a, b       *softnic.NIC
	ca, cb     verbs.Context
	pa, pb     verbs.PD
	// sa and sb seal the QPs of pair, unless they are nil.
	sa, sb verbs.Seal
}

func newRig(tb testing.TB, link softnic.Link) *rig {
	tb.Helper()
	r := &rig{tb: tb}
	r.a, r.ca, r.pa = plug(tb, link)
	r.b, r.cb, r.pb = plug(tb, link)
	return r
}

// plug opens a NIC on link, closed at the end of the test.
func plug(tb testing.TB, link softnic.Link) (*softnic.NIC, verbs.Context, verbs.PD) {
	tb.Helper()
	nic, err := softnic.New(link, softnic.Config{})
	must(tb, err)
	tb.Cleanup(func() { must(tb, nic.Close()) })
	ctx, err := nic.Open()
	must(tb, err)
	pd, err := ctx.AllocPD()
	must(tb, err)
	return nic, ctx, pd
}

// must fails the test on error.
var must = enginerig.Must

// memory returns n touched bytes, registered with all access rights.
func memory(tb testing.TB, pd verbs.PD, n int) (*verbs.Memory, verbs.MR) {
	tb.Helper()
	return memoryWith(tb, pd, n, nil)
}

func memoryWith(tb testing.TB, pd verbs.PD, n int, cfg *verbs.MemoryConfig) (*verbs.Memory, verbs.MR) {
	tb.Helper()
	m, err := verbs.AllocMemory(n, cfg)
	must(tb, err)
	tb.Cleanup(func() { must(tb, m.Free()) })
	pattern := make([]byte, 256)
	for i := range pattern {
		pattern[i] = byte(i)
	}
	for done := 0; done < n; done += len(pattern) {
		copy(m.Bytes()[done:], pattern)
	}
	mr, err := pd.RegisterMemory(m, verbs.AccessAll)
	must(tb, err)
	tb.Cleanup(func() { must(tb, mr.Close()) })
	return m, mr
}

func newCQ(tb testing.TB, ctx verbs.Context, depth int) verbs.CQ {
	tb.Helper()
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: depth})
	must(tb, err)
	return cq
}

// pair returns two connected QPs that complete on the given CQs.
func (r *rig) pair(typ verbs.QPType, cqA, cqB verbs.CQ, depth int) (qa, qb verbs.QP) {
	r.tb.Helper()
	cfg := verbs.QPConfig{Type: typ, Path: verbs.PathConfig{AckTimeout: r.ackTimeout}, MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: verbs.MaxSGE, MaxRecvSGE: verbs.MaxSGE, MaxInline: 64}
	cfg.SendCQ, cfg.RecvCQ, cfg.Path.Seal = cqA, cqA, r.sa
	qa, err := r.pa.CreateQP(cfg)
	must(r.tb, err)
	cfg.SendCQ, cfg.RecvCQ, cfg.Path.Seal = cqB, cqB, r.sb
	qb, err = r.pb.CreateQP(cfg)
	must(r.tb, err)
	connect(r.tb, qa, qb)
	return qa, qb
}

func connect(tb testing.TB, qa, qb verbs.QP) {
	tb.Helper()
	ea, err := qa.Endpoint()
	must(tb, err)
	eb, err := qb.Endpoint()
	must(tb, err)
	must(tb, qa.Connect(eb))
	must(tb, qb.Connect(ea))
}
