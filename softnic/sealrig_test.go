//go:build linux

package softnic_test

import (
	"bytes"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// newSeals returns the two sides of a session.
func newSeals(tb testing.TB) (dialer, listener *softnic.Seal) {
	tb.Helper()
	secret := bytes.Repeat([]byte{42}, 32)
	dialer, err := softnic.NewSeal(secret, true)
	must(tb, err)
	listener, err = softnic.NewSeal(secret, false)
	must(tb, err)
	return dialer, listener
}

// sealedContext seals all QPs and AHs of a context.
type sealedContext struct {
	verbs.Context
	verbs.ClockReader
	seal verbs.Seal
}

func (x *sealedContext) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	if err != nil {
		return nil, err
	}
	return &sealedPD{pd, x.seal}, nil
}

type sealedPD struct {
	verbs.PD
	seal verbs.Seal
}

func (d *sealedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.Path.Seal = d.seal
	return d.PD.CreateQP(cfg)
}

func (d *sealedPD) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	attr.Seal = d.seal
	return d.PD.CreateAH(attr)
}

// sealPair seals the two contexts of a pair. A UD QP on each side passes its greeting to the other's NIC,
// because the suite connects some QPs without endpoints.
func sealPair(tb testing.TB, p verbstest.Pair) verbstest.Pair {
	tb.Helper()
	seals := [2]verbs.Seal{}
	seals[0], seals[1] = newSeals(tb)
	var qps [2]verbs.QP
	for i, side := range []*verbs.Context{&p.A, &p.B} {
		x := &sealedContext{*side, (*side).(verbs.ClockReader), seals[i]}
		*side = x
		pd, err := x.AllocPD()
		must(tb, err)
		cq := newCQ(tb, x, 1)
		qps[i], err = pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1})
		must(tb, err)
	}
	connect(tb, qps[0], qps[1])
	const (
		loops   = "a NIC does not seal packets to itself"
		harness = "the test makes an object without the harness, which adds the Seal"
		wrong   = "the test presents more than 16 wrong keys, which end a sealed session"
	)
	p.Departures = map[string]string{
		"connect/Loopback": loops, "connect/Itself": loops, "ud/TwoSenders": loops, "close/ContextOfPeer": loops,
		"close/EveryOrder": loops, "many/Loopback": loops, "device/OpenTwice": loops,
		"close/Reopen": harness, "connect/Path": harness,
		"keys/RemoteEveryBit": wrong, "uc/BadRemoteDrops": wrong,
	}
	return p
}
