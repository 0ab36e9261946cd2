//go:build linux

package softnic

import (
	"bytes"
	"errors"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// anySeal returns a UD QP of the second NIC with verbs.AnySeal and n receives, ready to send.
func (f *sealAttack) anySeal(n int) *qp {
	f.t.Helper()
	made, err := f.pds[1].CreateQP(verbs.QPConfig{
		Type: verbs.UD, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], MaxSendWR: 8, MaxRecvWR: max(n, 1), Path: verbs.PathConfig{Seal: verbs.AnySeal{}},
	})
	check(f.t, err)
	check(f.t, made.Connect(verbs.Endpoint{}))
	for k := range n {
		wr := verbs.RecvWR{WRID: uint64(k)}
		wr.SetSGE(verbs.SGE{Addr: f.mr[1].Addr() + uint64(k)*128, Length: 128, LKey: f.mr[1].LKey()})
		_, err = made.PostRecv([]verbs.RecvWR{wr})
		check(f.t, err)
	}
	return made.(*qp)
}

// poll returns a completion of NIC i, or nil.
func (f *sealAttack) poll(i int) *verbs.WC {
	f.t.Helper()
	var wcs [1]verbs.WC
	n, err := f.cqs[i].Poll(wcs[:])
	check(f.t, err)
	if n == 0 {
		return nil
	}
	return &wcs[0]
}

// TestAnySealReceives: a QP with AnySeal accepts datagrams of every session, and reports the session
// whose keys sealed them, regardless of the sender named in the datagram. It rejects plain, forged,
// replayed and reflected ones.
func TestAnySealReceives(t *testing.T) {
	f := newSealAttack(t)
	f.write(f.qps[0][0], f.qps[1][0], 5000) // for old
	q := f.anySeal(3)
	sealed := f.nics[1].sealed
	for _, from := range [][2][3]*qp{f.qps, f.others} {
		b := sealedBy(from[0][0].assoc, plain(f.header(q))) // both claim to be QP 17 of the first NIC's address
		f.serve(sealed, bytes.Clone(b))
		wc := f.poll(1)
		if wc == nil || wc.Err() != nil || wc.SrcQPN != 17 || wc.Flags&verbs.WCSealed == 0 || wc.Seal != from[1][0].sealing.greeting.Number() {
			t.Fatalf("completion %+v, want a datagram of QP 17 with Seal %d", wc, from[1][0].sealing.greeting.Number())
		}
		before := f.nics[1].Stats().Seals.Replayed
		if f.serve(sealed, b); f.nics[1].Stats().Seals.Replayed != before+1 || f.poll(1) != nil {
			t.Error("a replayed datagram was not dropped")
		}
	}
	if a, b := f.qps[1][0].sealing.greeting.Number(), f.others[1][0].sealing.greeting.Number(); a == b || a == 0 || b == 0 {
		t.Errorf("the Seals have the numbers %d and %d, want two", a, b)
	}
	before := f.nics[1].Stats().Seals
	f.serve(f.nics[1].udp, f.unsealed(f.header(q)))
	f.serve(sealed, f.forged(f.qps[1][0], f.header(q)))
	if s := f.nics[1].Stats().Seals; s.Plain != before.Plain+1 || s.Bad != before.Bad+1 || f.poll(1) != nil {
		t.Errorf("drops %+v, before %+v, want one plain and one forged datagram, and nothing received", s, before)
	}
	f.serve(sealed, sealedBy(f.others[0][0].assoc, plain(f.header(f.qps[1][2])))) // a QP with its own Seal
	if s := f.nics[1].Stats().Seals; s.Wrong != before.Wrong+1 {
		t.Errorf("%d datagrams of another session were dropped by a QP with a Seal, want 1", s.Wrong-before.Wrong)
	}
}

// TestAnySealSends: a QP with AnySeal seals each datagram with the Seal of its AH, and refuses to send
// plain ones. It does not keep a Seal open.
func TestAnySealSends(t *testing.T) {
	f := newSealAttack(t)
	q := f.anySeal(0)
	send := func(ah verbs.AH, to *qp) error {
		wr := verbs.SendWR{Opcode: verbs.OpSend, AH: ah.Handle(), RemoteQPN: to.num, RemoteQKey: verbs.DefaultQKey, Flags: verbs.SendSignaled}
		wr.SetSGE(verbs.SGE{Addr: f.mr[1].Addr(), Length: 8, LKey: f.mr[1].LKey()})
		_, err := q.PostSend([]verbs.SendWR{wr})
		return err
	}
	attr := verbs.AHAttr{DGID: verbs.GIDFromAddr(f.addr(0)), DLID: f.nics[0].sealed.lid()}
	for _, session := range [][2][3]*qp{f.qps, f.others} {
		attr.Seal = session[1][2].pathConfig.Seal
		ah, err := f.pds[1].CreateAH(attr)
		check(t, err)
		if got := ah.(verbs.SealedAH).SealNumber(); got != session[1][0].sealing.greeting.Number() {
			t.Errorf("SealNumber is %d, want that of the sealing, %d", got, session[1][0].sealing.greeting.Number())
		}
		for k, to := range []*qp{f.qps[0][2], f.others[0][2]} {
			wr := verbs.RecvWR{WRID: uint64(k)}
			wr.SetSGE(verbs.SGE{Addr: f.mr[0].Addr(), Length: 128, LKey: f.mr[0].LKey()})
			_, err = to.PostRecv([]verbs.RecvWR{wr})
			check(t, err)
			wrong := f.nics[0].Stats().Seals.Wrong
			check(t, send(ah, to))
			var wc *verbs.WC
			until(t, "no completion and no drop", func() bool {
				wc = f.poll(0)
				return wc != nil || f.nics[0].Stats().Seals.Wrong > wrong
			})
			if right := to == session[0][2]; right != (wc != nil) || right && (wc.SrcQPN != q.num || wc.QPN != to.num) {
				t.Errorf("completion %+v of a datagram that has the Seal of the receiver: %v", wc, right)
			}
		}
		check(t, ah.Close())
	}
	attr.Seal, attr.DLID = nil, 0
	ah, err := f.pds[1].CreateAH(attr)
	check(t, err)
	if err := send(ah, f.qps[0][2]); !errors.Is(err, verbs.ErrInvalid) || ah.(verbs.SealedAH).SealNumber() != 0 {
		t.Errorf("PostSend to an AH without a Seal: got %v, want %v", err, verbs.ErrInvalid)
	}
	check(t, ah.Close())
	s := f.others[1][0].pathConfig.Seal.(*Seal)
	for _, other := range f.others[1] {
		check(t, other.Close())
	}
	check(t, s.Close())
	f.serve(f.nics[1].sealed, sealedBy(f.others[0][0].assoc, plain(roce.Header{Opcode: roce.UD | roce.OpSendOnly, DestQPN: q.num, PKey: roce.PKeyDefault, QKey: verbs.DefaultQKey})))
	if n := f.nics[1].Stats().Seals.Unknown; n != 1 {
		t.Errorf("%d datagrams of a closed session were dropped, want 1", n)
	}
}

// TestAnySealRefused: AnySeal is refused on RC QPs and AHs, and for connections to and from endpoints.
func TestAnySealRefused(t *testing.T) {
	f := newSealAttack(t)
	q := f.anySeal(0)
	own, err := q.Endpoint()
	check(t, err)
	path := verbs.PathConfig{Seal: verbs.AnySeal{}}
	for what, do := range map[string]func() error{
		"CreateQP of RC": func() error {
			_, err := f.pds[1].CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], Path: path})
			return err
		},
		"CreateAH": func() error {
			_, err := f.pds[1].CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(f.addr(0)), Seal: path.Seal})
			return err
		},
		"Connect to an endpoint": func() error { return q.Connect(f.eps[2]) },
		"Connect to its endpoint": func() error {
			q, err := f.pds[0].CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: f.cqs[0], RecvCQ: f.cqs[0], Path: verbs.PathConfig{Seal: f.qps[0][2].pathConfig.Seal}})
			check(t, err)
			return errors.Join(q.Connect(own), q.Close())
		},
	} {
		if err := do(); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: got %v, want %v", what, err, verbs.ErrInvalid)
		}
	}
}
