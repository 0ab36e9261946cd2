//go:build linux

package reliable_test

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// newSealedPair returns two unconnected sides with Seals. The test fails on any plain packet.
func newSealedPair(t *testing.T, imp softnic.Impairment, size int) (a, b *side) {
	t.Helper()
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.73"), netip.MustParseAddr("127.0.0.74")}
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: addrs, Sockets: 16, Seed: 1, Impairment: imp, Capture: onlySealed{t}})
	must(t, err)
	var sides [2]*side
	for i := range sides {
		seal, err := softnic.NewSeal(bytes.Repeat([]byte{7}, 32), i == 0)
		must(t, err)
		nic, err := softnic.New(link, reliable.NICConfig())
		must(t, err)
		t.Cleanup(func() { must(t, errors.Join(nic.Close(), seal.Close())) })
		inner, err := nic.Open()
		must(t, err)
		sides[i] = newSealedSide(t, nic, sealedAHs{inner, inner.(verbs.ClockReader), t}, reliable.Config{GiveUp: int64(patience)}, size, seal)
	}
	return sides[0], sides[1]
}

// TestTransferSealed moves messages over sealed paths: data on UC, control on UD, cards on RC. No packet is plain. QPs of
// one PD must have one Seal, because their control packets share QPs.
func TestTransferSealed(t *testing.T) {
	const size = 1 << 20
	for name, imp := range map[string]softnic.Impairment{"intact": {}, "corrupt": {Corrupt: 0.01, Loss: 0.01}} {
		t.Run(name, func(t *testing.T) {
			a, b := newSealedPair(t, imp, size)
			connect(t, a, b)
			for _, n := range []int{1, 4096, 200_000, size} {
				for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
					transfer(t, a, b, op, n)
				}
			}
			if s := b.nic.Stats(); (s.Seals.Bad > 0) != (imp.Corrupt > 0) || s.BadICRC > 0 {
				t.Errorf("%d bad seals and %d bad ICRCs with %+v", s.Seals.Bad, s.BadICRC, imp)
			}
			cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 1, MaxRecvWR: 1}
			if _, err := a.pd.CreateQP(cfg); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("CreateQP without the Seal of the PD = %v, want ErrInvalid", err)
			}
		})
	}
}

// sealedAHs requires a Seal in every address handle, because a sealed UD QP sends only to sealed peers.
type sealedAHs struct {
	verbs.Context
	verbs.ClockReader
	t *testing.T
}

func (c sealedAHs) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return sealedAHsPD{pd, c.t}, err
}

type sealedAHsPD struct {
	verbs.PD
	t *testing.T
}

func (p sealedAHsPD) CreateAH(attr verbs.AHAttr) (verbs.AH, error) {
	if attr.Seal == nil {
		p.t.Error("an address handle for control packets has no Seal")
	}
	return p.PD.CreateAH(attr)
}

// TestSealedByModify: QPs connected by Modify, with address vectors without a Seal, still send sealed control
// packets. The NICs have exchanged greetings before.
func TestSealedByModify(t *testing.T) {
	a, b := newSealedPair(t, softnic.Impairment{}, 1<<20)
	connect(t, a, b)
	transfer(t, a, b, verbs.OpRDMAWrite, 4096)
	for _, s := range []*side{a, b} {
		must(t, s.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	}
	ea, err := a.qp.Endpoint()
	must(t, err)
	eb, err := b.qp.Endpoint()
	must(t, err)
	must(t, verbs.ConnectWith(a.qp, verbs.ConnectAttr(ea, eb, 1, 0)))
	must(t, verbs.ConnectWith(b.qp, verbs.ConnectAttr(eb, ea, 1, 0)))
	transfer(t, a, b, verbs.OpRDMAWrite, 1<<20)
}

// onlySealed is a Capture that fails the test on a plain packet.
type onlySealed struct{ t *testing.T }

func (o onlySealed) Packet(_ int64, src, dst netip.AddrPort, _ uint16, _, _ uint8, _ ...[]byte) {
	if dst.Port() < 14791 {
		o.t.Errorf("a packet from %v went to %v, which is not for sealed packets", src, dst)
	}
}
