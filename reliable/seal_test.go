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
func newSealedPair(t *testing.T, imp softnic.Impairment, size int, carrier verbs.QPType) (a, b *side) {
	t.Helper()
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.73"), netip.MustParseAddr("127.0.0.74")}
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: addrs, Sockets: 16, Seed: 1, Impairment: imp, Capture: onlySealed{t}})
	must(t, err)
	types := reliable.NICConfig()
	if carrier == verbs.UC {
		types.QPTypes = nil // has UC in any case
	}
	var sides [2]*side
	for i := range sides {
		seal := newSeal(t, 7, i == 0)
		nic, err := softnic.New(link, types)
		must(t, err)
		t.Cleanup(func() { must(t, errors.Join(nic.Close(), seal.Close())) })
		inner, err := nic.Open()
		must(t, err)
		cfg := reliable.Config{GiveUp: int64(patience), Carrier: carrier}
		sealed := &interposer{Context: inner, ah: func(attr *verbs.AHAttr) error {
			if attr.Seal == nil { // a sealed UD QP sends only to sealed peers
				t.Error("an address handle for control packets has no Seal")
			}
			return nil
		}}
		clocked := struct {
			verbs.Context
			verbs.ClockReader
		}{sealed, inner.(verbs.ClockReader)}
		sides[i] = newSealedSide(t, nic, clocked, cfg, size, seal)
	}
	return sides[0], sides[1]
}

// newSeal returns one side of a session with a secret.
func newSeal(t *testing.T, secret byte, dialer bool) *softnic.Seal {
	t.Helper()
	seal, err := softnic.NewSeal(bytes.Repeat([]byte{secret}, 32), dialer)
	must(t, err)
	return seal
}

// carriers are the types of QPs that carry paths.
var carriers = []verbs.QPType{verbs.UC, verbs.UD}

// TestTransferSealed moves messages over sealed paths: data on UC or UD, control on UD, cards on RC or UD. No packet is plain.
func TestTransferSealed(t *testing.T) {
	const size = 1 << 20
	for name, imp := range map[string]softnic.Impairment{"intact": {}, "corrupt": {Corrupt: 0.01, Loss: 0.01}} {
		for _, carrier := range carriers {
			t.Run(name+"/"+carrier.String(), func(t *testing.T) {
				a, b := newSealedPair(t, imp, size, carrier)
				connect(t, a, b)
				for _, n := range []int{1, 4096, 200_000, size} {
					for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
						transfer(t, a, b, op, n)
					}
				}
				if s := b.nic.Stats(); (s.Seals.Bad > 0) != (imp.Corrupt > 0) || s.BadICRC > 0 {
					t.Errorf("%d bad seals and %d bad ICRCs with %+v", s.Seals.Bad, s.BadICRC, imp)
				}
			})
		}
	}
}

// TestSealedPeers: QPs of one PD have the Seals of different peers, and plain QPs are beside them. The keys of a
// peer that leaves are discarded, and it returns with a new Seal. The others are unaffected.
func TestSealedPeers(t *testing.T) {
	for _, carrier := range carriers {
		t.Run(carrier.String(), func(t *testing.T) {
			hub, first := newSealedPair(t, softnic.Impairment{}, 1<<16, carrier)
			connect(t, hub, first)
			transfer(t, hub, first, verbs.OpRDMAWrite, 5000)
			qp := hub.qp
			visit := func(secret byte) (seals [2]*softnic.Seal, qps [2]verbs.QP) {
				t.Helper()
				seals = [2]*softnic.Seal{newSeal(t, secret, true), newSeal(t, secret, false)}
				for i, s := range []*side{hub, first} {
					var err error
					qps[i], err = s.pd.CreateQP(verbs.QPConfig{
						Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2,
						MaxInline: 64, Path: verbs.PathConfig{Seal: seals[i]},
					})
					must(t, err)
				}
				join(t, qps[0], qps[1])
				if reliable.EngineOf(qps[0]) != reliable.EngineOf(qp) {
					t.Error("QPs with different Seals do not share control QPs")
				}
				second := *first
				hub.qp, second.qp = qps[0], qps[1]
				transfer(t, hub, &second, verbs.OpRDMAWrite, 5000)
				transfer(t, hub, &second, verbs.OpRDMARead, 5000)
				return seals, qps
			}
			for round := range byte(3) {
				seals, qps := visit(8 + round)
				for i := range qps {
					must(t, qps[i].Close())
					must(t, seals[i].Close()) // nothing refers to its keys
				}
				hub.qp = qp
				transfer(t, hub, first, verbs.OpRDMAWrite, 5000)
			}
			plain := hub.another(t)
			if reliable.EngineOf(plain) == reliable.EngineOf(qp) {
				t.Error("a plain QP shares control QPs with a sealed one")
			}
			_, others := visit(20)
			for _, q := range []verbs.QP{qp, first.qp} { // the first ones, for which the control QPs were created
				seal := reliable.SealOf(q).(*softnic.Seal)
				must(t, q.Close())
				must(t, seal.Close())
			}
			for _, q := range others {
				must(t, q.Close())
			}
		})
	}
}

// TestSealedWrongKeys: keys that this package checks itself count against the 16 of a session, though each wrong one ends a QP and the
// peer connects another.
func TestSealedWrongKeys(t *testing.T) {
	for _, carrier := range carriers {
		t.Run(carrier.String(), func(t *testing.T) {
			a, b := newSealedPair(t, softnic.Impairment{}, 1<<16, carrier)
			qp := func(s *side) (verbs.QP, error) {
				return s.pd.CreateQP(verbs.QPConfig{
					Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, Path: verbs.PathConfig{Seal: reliable.SealOf(s.qp)},
				})
			}
			for tries := 0; ; tries++ {
				from, err := qp(a)
				must(t, err)
				to, err := qp(b)
				if tries == 16 {
					if !errors.Is(err, verbs.ErrLimit) {
						t.Fatalf("after %d wrong keys: %v, want %v", tries, err, verbs.ErrLimit)
					}
					must(t, from.Close())
					return
				}
				must(t, err)
				join(t, from, to)
				wr := verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ uint32(tries+1)}
				wr.SetSGE(a.sge(0, 8))
				_, err = from.PostSend([]verbs.SendWR{wr})
				must(t, err)
				if wc := a.wait(t, 1)[0]; wc.Status != verbs.StatusRemAccessErr {
					t.Fatalf("READ %d with a wrong key: %v, want %v", tries, wc.Status, verbs.StatusRemAccessErr)
				}
				must(t, errors.Join(from.Close(), to.Close()))
			}
		})
	}
}

// TestSealedByModify: QPs connected by Modify, with address vectors without a Seal, still send sealed control
// packets. The NICs have exchanged greetings before.
func TestSealedByModify(t *testing.T) {
	a, b := newSealedPair(t, softnic.Impairment{}, 1<<20, verbs.UC)
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
