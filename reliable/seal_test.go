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

// TestTransferSealed moves messages over sealed paths: data on UC, control on UD, cards on RC. No packet is plain. QPs of
// one PD must have one Seal, because their control packets share QPs.
func TestTransferSealed(t *testing.T) {
	const size = 1 << 20
	for name, imp := range map[string]softnic.Impairment{"intact": {}, "corrupt": {Corrupt: 0.01, Loss: 0.01}} {
		t.Run(name, func(t *testing.T) {
			addrs := []netip.Addr{netip.MustParseAddr("127.0.0.73"), netip.MustParseAddr("127.0.0.74")}
			link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: addrs, Sockets: 16, Seed: 1, Impairment: imp, Capture: onlySealed{t}})
			must(t, err)
			var sides [2]*side
			for i := range sides {
				seal, err := softnic.NewSeal(bytes.Repeat([]byte{7}, 32), i == 0)
				must(t, err)
				nic, err := softnic.New(link, softnic.Config{})
				must(t, err)
				t.Cleanup(func() { must(t, nic.Close()) })
				inner, err := nic.Open()
				must(t, err)
				sides[i] = newSealedSide(t, nic, inner, reliable.Config{GiveUp: int64(patience)}, size, seal)
			}
			a, b := sides[0], sides[1]
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

// onlySealed is a Capture that wants no plain packet.
type onlySealed struct{ t *testing.T }

func (o onlySealed) Packet(_ int64, src, dst netip.AddrPort, _ uint16, _, _ uint8, _ ...[]byte) {
	if dst.Port() < 14791 {
		o.t.Errorf("a packet from %v went to %v, which is not for sealed packets", src, dst)
	}
}
