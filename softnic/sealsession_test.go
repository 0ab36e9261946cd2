//go:build linux

package softnic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// TestSealClose: closing a Seal discards the session's keys, and is refused while QPs or AHs use it. A
// PD can outlive more sessions than a NIC can hold concurrently.
func TestSealClose(t *testing.T) {
	f := newSealAttack(t)
	n := f.nics[1]
	n.sealings.limit = n.sealings.used + 1 // a lower limit is reached sooner
	before := n.sealings.used
	for range 3 {
		s, err := NewSeal(bytes.Repeat([]byte{9}, 32), false)
		check(t, err)
		q, err := f.pds[1].CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], MaxSendWR: 1, Path: verbs.PathConfig{Seal: s}})
		check(t, err)
		if err := s.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close of a Seal with a QP = %v, want %v", err, verbs.ErrBusy)
		}
		far := seal.NewGreeting(77, 3, [seal.NonceLen]byte{1})
		check(t, q.Connect(verbs.Endpoint{QPN: 99, GID: verbs.GIDFromAddr(f.addr(0)), LID: 5000, QKey: verbs.DefaultQKey, Extra: sealedExtra(far)}))
		a, err := f.pds[1].CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(f.addr(0)), DLID: 5000, Seal: s})
		check(t, err)
		check(t, q.Close())
		if err := s.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("Close of a Seal with an AH = %v, want %v", err, verbs.ErrBusy)
		}
		check(t, a.Close())
		g := q.(*qp).sealing
		check(t, s.Close())
		check(t, s.Close())
		if n.sealings.used != before || s.session != nil || g.peers != [seal.Seats]*association{} {
			t.Errorf("the NIC has %d sessions, the Seal its secret: %v, want %d and no keys", n.sealings.used, s.session != nil, before)
		}
		if _, err := f.pds[1].CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], Path: verbs.PathConfig{Seal: s}}); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("CreateQP with a closed Seal = %v, want %v", err, verbs.ErrClosed)
		}
	}
}

// sealedExtra is Endpoint.Extra of a sealed QP with a socket buffer of 1 MiB.
func sealedExtra(g seal.Greeting) []byte {
	return append([]byte{'s', 'n', extraVersion, extraRuns | extraFill | extraSealed, 0, 0, 4, 0}, g[:]...)
}

// TestSealedPeers: a sealed peer's announcements are validated and apply only to its own session, even if
// another session's peer has the same address.
func TestSealedPeers(t *testing.T) {
	f := newSealAttack(t)
	addr := verbs.GIDFromAddr(f.addr(0))
	victim, greedy := f.qps[1][0], f.others[1][2]
	window, budget := victim.path.route.window, victim.to.limit
	good := seal.NewGreeting(77, 3, [seal.NonceLen]byte{1})
	far := seal.NewGreeting(77, seal.Seats, [seal.NonceLen]byte{1})
	for _, v := range []struct {
		name  string
		lid   uint16
		extra []byte
		good  bool
	}{
		{"short greeting", 5000, sealedExtra(good)[:27], false},
		{"long greeting", 5000, append(sealedExtra(good), 0), false},
		{"no greeting", 5000, sealedExtra(good)[:extraLen], false},
		{"ports and a greeting", 5000, func() []byte { b := sealedExtra(good); b[3] |= extraPorts; return b }(), false},
		{"seat out of range", 5000, sealedExtra(far), false},
		{"no port", 0, sealedExtra(good), false},
		{"port of RoCE", roce.Port, sealedExtra(good), false},
		{"good", f.nics[0].sealed.lid(), sealedExtra(good), true},
	} {
		binary.BigEndian.PutUint32(v.extra[4:], 1) // a buffer of 1 KiB
		for _, q := range []*qp{greedy, f.qps[1][2]} {
			if q != greedy && v.good {
				continue
			}
			check(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
			err := q.Connect(verbs.Endpoint{QPN: 99, GID: addr, LID: v.lid, QKey: verbs.DefaultQKey, Extra: v.extra})
			if (err == nil) != v.good || (!v.good && !errors.Is(err, verbs.ErrInvalid)) {
				t.Errorf("%s: Connect = %v, want success: %v", v.name, err, v.good)
			}
		}
		plain, err := f.pds[1].CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], MaxSendWR: 1})
		check(t, err)
		if err := plain.Connect(verbs.Endpoint{QPN: 99, GID: addr, LID: v.lid, QKey: verbs.DefaultQKey, Extra: v.extra}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: Connect of a plain QP = %v, want %v", v.name, err, verbs.ErrInvalid)
		}
		check(t, plain.Close())
	}
	check(t, victim.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	way, err := f.nics[1].newPath(verbs.AHAttr{DGID: addr, DLID: f.nics[0].sealed.lid()}, false, victim.sealing, nil)
	check(t, err)
	if way.route.window != window || way.route.budget.limit != budget {
		t.Errorf("windows %d and %d after another peer named a small buffer, want %d and %d", way.route.window, way.route.budget.limit, window, budget)
	}
}

// TestPeersAreEvicted: a port with the maximum number of known peers evicts one for the next.
func TestPeersAreEvicted(t *testing.T) {
	u := &udpPort{peers: make(map[udpAddr]*udpPeer)}
	e := verbs.Endpoint{Extra: []byte{'s', 'n', extraVersion, extraPorts, 0, 0, 1, 0, 0x12, 0x34}}
	for i := range maxUDPPeers + 10 {
		binary.BigEndian.PutUint32(e.GID[12:], uint32(i))
		_, err := u.learn(&e)
		check(t, err)
		if p := u.peers[udpAddr{e.GID, roce.Port}]; p == nil || len(p.ports) != 1 {
			t.Fatalf("peer %d is not known, want it with its port", i)
		}
	}
	if len(u.peers) > maxUDPPeers {
		t.Errorf("%d peers known, want at most %d", len(u.peers), maxUDPPeers)
	}
}

// TestSealedSourceOfDatagrams: the source of a sealed datagram is the NIC of its association,
// regardless of the source address chosen by an attacker on the path. Dropped packets leave no state.
func TestSealedSourceOfDatagrams(t *testing.T) {
	f := newSealAttack(t)
	q, u := f.qps[1][2], f.nics[1].sealed
	var recv verbs.RecvWR
	recv.SetSGE(verbs.SGE{Addr: f.mr[1].Addr(), Length: 4096, LKey: f.mr[1].LKey()})
	_, err := q.PostRecv([]verbs.RecvWR{recv})
	check(t, err)
	b := sealedBy(f.qps[0][0].assoc, plain(f.header(q)))
	u.reading.Lock()
	u.nic.core.mu.Lock()
	elsewhere := udp.Datagram{Data: []byte("no packet"), Segment: 9, From: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 9}}
	for port := range uint16(100) {
		elsewhere.Port = port
		u.serve(&elsewhere)
	}
	elsewhere.Data, elsewhere.Segment = b, len(b)
	u.serve(&elsewhere)
	u.nic.core.settle()
	u.nic.core.mu.Unlock()
	u.reading.Unlock()
	var wcs [1]verbs.WC
	if n, err := f.cqs[1].Poll(wcs[:]); n != 1 || err != nil || wcs[0].Err() != nil {
		t.Fatalf("Poll = %d, %v, %v, want a datagram", n, err, wcs[0].Err())
	}
	if grh, err := verbs.ParseGRH(f.mem[1].Bytes()); err != nil || grh.SGID.Addr() != f.addr(0) {
		t.Errorf("a datagram has source %v, %v, want %v", grh.SGID.Addr(), err, f.addr(0))
	}
	if len(u.sources) > 0 {
		t.Errorf("%d sources of sealed packets remembered, want none", len(u.sources))
	}
}

// TestSealedConnectBinds: a QP accepts packets from the association in its peer's endpoint, even if
// another NIC of that peer later used the same address.
func TestSealedConnectBinds(t *testing.T) {
	f := newSealAttack(t)
	q := f.qps[1][0]
	want := q.assoc
	second := f.eps[2]
	g := seal.NewGreeting(77, 3, [seal.NonceLen]byte{1})
	second.Extra = sealedExtra(g)
	check(t, f.qps[1][2].Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	check(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	first := f.eps[0]
	q.core.mu.Lock()
	check(t, q.learn(q.port(), &first))
	q.core.mu.Unlock()
	check(t, f.qps[1][2].Connect(second)) // in the middle of the QP's Connect
	attr := verbs.ConnectAttr(q.endpoint(), first, 1, q.sgidIndex)
	check(t, verbs.ConnectWith(q, attr))
	if q.assoc != want {
		t.Error("the QP has the association of another NIC of the peer")
	}
}

// TestSealedWrongKeys: an admitted peer has 16 wrong keys per session, counted over all its RC and UC QPs,
// even across reconnects. After that all its QPs fail, even a right key is ignored, and new QPs are refused.
// Other sessions continue.
func TestSealedWrongKeys(t *testing.T) {
	f := newSealAttack(t)
	rc, uc, a := f.qps[1][0], f.qps[1][1], f.qps[0][1].assoc
	try := func(q *qp, right bool) {
		h := f.header(q)
		h.Opcode, h.PSN = q.transport|roce.OpWriteOnly, q.epsn
		if !right {
			h.RKey ^= 1 + f.rng.Uint32N(1000)
		}
		f.serve(f.nics[1].sealed, sealedBy(a, plain(h)))
	}
	for i := range maxWrongKeys {
		if rc.state != verbs.StateRTS { // a wrong key fails it, and a program may reconnect it
			check(t, rc.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
			check(t, rc.Connect(f.eps[0]))
		}
		if uc.state != verbs.StateRTS || rc.state != verbs.StateRTS {
			t.Fatalf("QPs in %v and %v after %d wrong keys, want %v until the %dth", uc.state, rc.state, i, verbs.StateRTS, maxWrongKeys)
		}
		try([]*qp{uc, rc}[i%3/2], false)
	}
	try(uc, true)
	try(rc, true)
	if s := f.nics[1].Stats(); uc.state != verbs.StateErr || rc.state != verbs.StateErr || s.WrongKeys != maxWrongKeys || s.Seals.Unknown != 2 {
		t.Errorf("QPs in %v and %v after %d wrong keys, %d packets dropped since, want %v, %d and 2",
			uc.state, rc.state, s.WrongKeys, s.Seals.Unknown, verbs.StateErr, maxWrongKeys)
	}
	if bytes.Contains(f.mem[1].Bytes()[fortressBytes:], []byte{0xee, 0xee}) {
		t.Error("a right key after 16 wrong ones was accepted")
	}
	cfg := verbs.QPConfig{Type: verbs.UC, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], Path: verbs.PathConfig{Seal: uc.sealing.seal}}
	if _, err := f.pds[1].CreateQP(cfg); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("CreateQP = %v, want %v", err, verbs.ErrLimit)
	}
	f.write(f.others[0][0], f.others[1][0], 5000)
	t.Logf("%d keys tried in a session: a right one is found in 1 of %d sessions", maxWrongKeys, 1<<32/maxWrongKeys)
}

// TestKeyGuessingSealed: a forger that knows everything but the secret cannot try any key, on RC or UC. Even
// the right one is ignored.
func TestKeyGuessingSealed(t *testing.T) {
	f := newSealAttack(t)
	f.write(f.qps[0][0], f.qps[1][0], 5000)
	const guesses = 10_000
	for i := range guesses {
		q := f.qps[1][i%2]
		h := f.header(q)
		h.Opcode, h.PSN = q.transport|roce.OpWriteOnly, q.epsn
		if i%4 >= 2 {
			h.RKey = f.rng.Uint32()
		}
		f.serve(f.nics[1].sealed, f.forged(q, h))
	}
	s := f.nics[1].Stats()
	if s.WrongKeys != 0 || s.Seals.Bad != guesses || f.qps[1][0].state != verbs.StateRTS || f.qps[1][1].state != verbs.StateRTS {
		t.Errorf("%d keys tried, %d bad seals, QPs in %v and %v, want 0, %d and %v", s.WrongKeys, s.Seals.Bad, f.qps[1][0].state, f.qps[1][1].state, guesses, verbs.StateRTS)
	}
	if bytes.Contains(f.mem[1].Bytes()[fortressBytes:], []byte{0xee, 0xee}) {
		t.Error("a forger's bytes are in memory")
	}
}
