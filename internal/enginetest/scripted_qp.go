package enginetest

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// ScriptedQP is a host whose VirtualQP is connected to itself, over NICs controlled by the test: sends are held until the test completes
// or fails them.
type ScriptedQP struct {
	*Host
	// NIC is the first NIC.
	NIC    *nullnic.NIC
	Region *ibverbx.Region // 1 MiB
}

// NewScriptedQP returns a ScriptedQP with one NIC.
func NewScriptedQP(tb testing.TB, cfg ibverbx.Config) *ScriptedQP {
	tb.Helper()
	x := NewFreeScriptedQP(tb, cfg)
	hold(x.NIC)
	return x
}

// NewFreeScriptedQP returns a ScriptedQP with one NIC that completes every send immediately.
func NewFreeScriptedQP(tb testing.TB, cfg ibverbx.Config) *ScriptedQP {
	tb.Helper()
	nic := nullnic.New("null0", 0x11)
	return newScriptedQP(tb, cfg, nic, nic)
}

// NewScriptedQPOn returns a ScriptedQP with several NICs. The engine uses NIC i through
// contexts[i].
func NewScriptedQPOn(tb testing.TB, cfg ibverbx.Config, nics []*nullnic.NIC, contexts ...verbs.Context) *ScriptedQP {
	tb.Helper()
	x := newScriptedQP(tb, cfg, nics[0], contexts...)
	hold(nics...)
	return x
}

// hold holds the sends of all QPs.
func hold(nics ...*nullnic.NIC) {
	for _, nic := range nics {
		for _, q := range nic.QPs() {
			q.Hold()
		}
	}
}

func newScriptedQP(tb testing.TB, cfg ibverbx.Config, nic *nullnic.NIC, contexts ...verbs.Context) *ScriptedQP {
	tb.Helper()
	var rails []ibverbx.RailConfig
	for _, ctx := range contexts {
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	h := NewRailsOn(tb, rails...)
	h.NewCQ(ibverbx.CQConfig{})
	card, err := h.NewQP(cfg).Card()
	Must(tb, err)
	Must(tb, h.QP.Connect(card))
	return &ScriptedQP{Host: h, NIC: nic, Region: h.Region(1 << 20)}
}

// Request returns a signaled request of n bytes from and to the start of the region.
func (x *ScriptedQP) Request(id uint64, op verbs.Opcode, n uint32) ibverbx.SendWR {
	wr := ibverbx.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled, Remote: x.Region.Remote()}
	if n > 0 {
		wr.SetSGE(x.Region.SGE(0, n))
	}
	return wr
}

// Settle completes all sends held by the first NIC, polls until no completions are left, and
// returns all of them.
func (x *ScriptedQP) Settle() []ibverbx.WC {
	x.tb.Helper()
	return x.SettleWith(func() {
		for _, q := range x.NIC.QPs() {
			q.Complete(len(q.Posted()))
		}
	})
}

// SettleWith polls until no completions are left, calling before ahead of every poll, and returns
// all completions.
func (x *ScriptedQP) SettleWith(before func()) (all []ibverbx.WC) {
	x.tb.Helper()
	for idle := 0; idle < 20; idle++ {
		before()
		wcs := x.Poll()
		if all = append(all, wcs...); len(wcs) > 0 {
			idle = 0
		}
	}
	return all
}
