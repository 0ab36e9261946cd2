package rig

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// Instrument is a VirtualQP, connected to itself, over NICs controlled by the test: sends are held
// until the test completes or fails them.
type Instrument struct {
	tb testing.TB
	// NIC is the first NIC.
	NIC    *nullnic.NIC
	Rails  *ibverbx.Rails
	CQ     *ibverbx.VirtualCQ
	QP     *ibverbx.VirtualQP
	Region *ibverbx.Region // 1 MiB
}

// NewInstrument returns an instrument with one NIC.
func NewInstrument(tb testing.TB, cfg ibverbx.Config) *Instrument {
	tb.Helper()
	x := NewFreeInstrument(tb, cfg)
	hold(x.NIC)
	return x
}

// NewFreeInstrument returns an instrument with one NIC that completes every send immediately.
func NewFreeInstrument(tb testing.TB, cfg ibverbx.Config) *Instrument {
	tb.Helper()
	nic := nullnic.New("null0", 0x11)
	return newInstrument(tb, cfg, nic, nic)
}

// NewInstrumentOn returns an instrument with several NICs. The engine uses NIC i through
// contexts[i].
func NewInstrumentOn(tb testing.TB, cfg ibverbx.Config, nics []*nullnic.NIC, contexts ...verbs.Context) *Instrument {
	tb.Helper()
	x := newInstrument(tb, cfg, nics[0], contexts...)
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

func newInstrument(tb testing.TB, cfg ibverbx.Config, nic *nullnic.NIC, contexts ...verbs.Context) *Instrument {
	tb.Helper()
	var rails []ibverbx.RailConfig
	for _, ctx := range contexts {
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	x := &Instrument{tb: tb, NIC: nic}
	var err error
	x.Rails, err = ibverbx.NewRails(rails...)
	Must(tb, err)
	x.CQ, err = x.Rails.NewCQ(ibverbx.CQConfig{})
	Must(tb, err)
	x.QP, err = x.CQ.NewQP(cfg)
	Must(tb, err)
	tb.Cleanup(func() { Must(tb, x.QP.Close()) })
	card, err := x.QP.Card()
	Must(tb, err)
	Must(tb, x.QP.Connect(card))
	x.Region = register(tb, x.Rails, 1<<20)
	return x
}

// Request returns a signaled request of n bytes from and to the start of the region.
func (x *Instrument) Request(id uint64, op verbs.Opcode, n uint32) ibverbx.SendWR {
	wr := ibverbx.SendWR{WRID: id, Opcode: op, Flags: verbs.SendSignaled, Remote: x.Region.Remote()}
	if n > 0 {
		wr.SetSGE(x.Region.SGE(0, n))
	}
	return wr
}

// PostSend posts requests; all must be accepted.
func (x *Instrument) PostSend(wrs ...ibverbx.SendWR) {
	x.tb.Helper()
	if n, err := x.QP.PostSend(wrs); n != len(wrs) || err != nil {
		x.tb.Fatalf("PostSend = %d, %v; want %d", n, err, len(wrs))
	}
}

// PostRecv posts receives; all must be accepted.
func (x *Instrument) PostRecv(wrs ...ibverbx.RecvWR) {
	x.tb.Helper()
	if n, err := x.QP.PostRecv(wrs); n != len(wrs) || err != nil {
		x.tb.Fatalf("PostRecv = %d, %v; want %d", n, err, len(wrs))
	}
}

// Settle completes all sends held by the first NIC, polls until no completions are left, and
// returns all of them.
func (x *Instrument) Settle() []ibverbx.WC {
	x.tb.Helper()
	return x.SettleWith(func() {
		for _, q := range x.NIC.QPs() {
			q.Complete(len(q.Posted()))
		}
	})
}

// SettleWith polls until no completions are left, calling before ahead of every poll, and returns
// all completions.
func (x *Instrument) SettleWith(before func()) (all []ibverbx.WC) {
	x.tb.Helper()
	for idle := 0; idle < 20; idle++ {
		before()
		var wcs [16]ibverbx.WC
		n, err := x.CQ.Poll(wcs[:])
		Must(x.tb, err)
		if all = append(all, wcs[:n]...); n > 0 {
			idle = 0
		}
	}
	return all
}
