//go:build linux

package softnic

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/verbs"
)

// datagram returns a packet without payload from the peer's port to the besieged NIC.
func (s *besieged) datagram(t *testing.T, port uint16, h roce.Header) []byte {
	t.Helper()
	s.from.Port = port
	flow, err := roce.NewFlow(netip.AddrPortFrom(verbs.GID(s.from.From).Addr(), port), s.nic.udp.conn.Addr())
	check(t, err)
	h.PKey = roce.PKeyDefault
	b := make([]byte, roce.DatagramLen(h.Opcode, 0))
	h.Encode(b, 0)
	flow.Seal(b, 0)
	return b
}

// TestRNRNakTwice: a SEND and its probe, or a duplicated packet, are both refused for lack of a receive. That
// counts as one retry.
func TestRNRNakTwice(t *testing.T) {
	s := newBesieged(t)
	q := s.ask(t)
	b := s.datagram(t, 50000, roce.Header{Opcode: roce.OpAck, DestQPN: q.num, PSN: q.una, Syndrome: roce.SyndromeRNR})
	u := s.nic.udp
	u.reading.Lock()
	defer u.reading.Unlock()
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	q.attr.RNRRetry, q.rnrLeft = 1, 1
	for range 2 {
		d := s.from
		d.Data, d.Segment = b, len(b)
		u.serve(&d)
	}
	if q.state != verbs.StateRTS || q.rnrLeft != 0 || !q.rnrWait {
		t.Errorf("in %s with %d tries left, waiting %v, want %s, 0 and true", q.state, q.rnrLeft, q.rnrWait, verbs.StateRTS)
	}
}

// TestUDPPaceOfStrangers: only its peer may open or delay the window of a UC QP.
func TestUDPPaceOfStrangers(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[1]
	q.core.mu.Lock()
	q.paced = true
	first := q.una
	q.snd = first.Add(5)
	q.core.mu.Unlock()
	ack := roce.Header{Opcode: roce.OpAck, DestQPN: q.num, PSN: first, Syndrome: roce.SyndromeAck}
	peer := s.from.From
	s.from.From = verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.23"))
	s.strike(s.datagram(t, 50000, ack))
	if got := s.nic.Stats().WrongSource; q.una != first || got != 1 {
		t.Errorf("a stranger acknowledges %d packets, and %d packets are of a wrong source, want 0 and 1", q.una.Sub(first), got)
	}
	s.from.From = peer
	s.strike(s.datagram(t, 50000, ack))
	if q.una != first.Add(1) {
		t.Errorf("the peer acknowledges %d packets, want 1", q.una.Sub(first))
	}
}

// TestUDPHearsWhomItExpects: only a datagram accepted by a QP updates the response address.
func TestUDPHearsWhomItExpects(t *testing.T) {
	s := newBesieged(t)
	ud := s.qps[2]
	const port = 5000
	for _, v := range []struct {
		name string
		qpn  uint32
		qkey uint32
		want int
	}{
		{"no such QP", 0xabcdef, ud.attr.QKey, 0},
		{"QP of another type", s.qps[0].num, ud.attr.QKey, 0},
		{"wrong Q_Key", ud.num, ud.attr.QKey ^ 1, 0},
		{"right", ud.num, ud.attr.QKey, 1},
	} {
		b := s.datagram(t, port, roce.Header{Opcode: roce.UD | roce.OpSendOnly, DestQPN: v.qpn, QKey: v.qkey, SrcQPN: 7})
		s.attack(b, len(b))
		if got := len(s.nic.udp.replyRoutes); got != v.want {
			t.Errorf("%s: %d speakers remembered, want %d", v.name, got, v.want)
		}
	}
}

// TestUDPWindowOfNewPath: after its address vector was changed in SQD, a QP has the window of its new path.
func TestUDPWindowOfNewPath(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[0]
	const kib = 16 // the socket buffer of the second peer
	small := verbs.Endpoint{
		GID: verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.23")), Extra: []byte{'s', 'n', extraVersion, 0, 0, 0, 0, kib},
	}
	_, err := s.nic.udp.learn(&small)
	check(t, err)
	check(t, q.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.AttrState))
	for _, v := range []struct {
		gid  verbs.GID
		want uint32
	}{{small.GID, minUDPWindow}, {s.from.From, unknownPeerWindow}} {
		check(t, q.Modify(verbs.QPAttr{AH: verbs.AHAttr{DGID: v.gid}}, verbs.AttrAV))
		if q.window != v.want || q.longWindow != v.want || uint32(q.ackMask) >= v.want {
			t.Errorf("to %v, windows of %d and %d packets, and one of %d requests an ACK, want windows of %d",
				v.gid, q.window, q.longWindow, q.ackMask+1, v.want)
		}
	}
}

// TestUDPCountsEmpty: an empty datagram, or one too long to be read, is counted as malformed.
func TestUDPCountsEmpty(t *testing.T) {
	s := newBesieged(t)
	s.attack(nil, 0)
	if got := s.nic.Stats().Malformed; got != 1 {
		t.Errorf("%d malformed, want 1", got)
	}
}

// TestUDPUnreported: an ACK waiting in the socket is served before a QP reports no completion, even if
// the reader is slow.
func TestUDPUnreported(t *testing.T) {
	s := newBesieged(t)
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(verbs.GID(s.from.From).Addr(), 0)), net.UDPAddrFromAddrPort(s.nic.udp.conn.Addr()))
	check(t, err)
	defer conn.Close()
	q := s.ask(t)
	if q.Unreported() {
		t.Error("a request without an acknowledgement has completed")
	}
	ack := roce.Header{Opcode: roce.OpAck, DestQPN: q.num, PSN: q.una, Syndrome: roce.SyndromeAck}
	s.nic.udp.reading.Lock()
	_, err = conn.Write(s.datagram(t, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port(), ack))
	check(t, err)
	found := make(chan bool, 1)
	go func() { found <- q.Unreported() }()
	select {
	case got := <-found:
		t.Error("it does not wait for the reader")
		found <- got
	case <-time.After(50 * time.Millisecond):
	}
	s.nic.udp.reading.Unlock()
	if !<-found {
		t.Error("an acknowledged request has not completed")
	}
	var wc [1]verbs.WC
	if n, err := q.sendCQ.Poll(wc[:]); n != 1 || err != nil || wc[0].Status != verbs.StatusSuccess || q.Unreported() {
		t.Errorf("%d completions, %v, %+v, and more, want one success", n, err, wc[0])
	}
}

// TestUDPLIDOfStrangers: some Ethernet drivers report LID 1. Only a softnic's LID is a port.
func TestUDPLIDOfStrangers(t *testing.T) {
	s := newBesieged(t)
	old := s.qps[0]
	for _, v := range []struct {
		extra []byte
		want  uint16
	}{{nil, roce.Port}, {s.nic.udp.extra(nil), 5001}} {
		q, err := old.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: old.sendCQ, RecvCQ: old.recvCQ})
		check(t, err)
		check(t, q.Connect(verbs.Endpoint{
			QPN: 0x99, GID: s.from.From, LID: 5001, MTU: verbs.MTU256, MaxRdAtomic: 2, MaxDestRdAtomic: 2, Extra: v.extra,
		}))
		if got := q.(*qp).path.route.dest.Addr().Port(); got != v.want {
			t.Errorf("a peer with LID 5001 and extra %q is sent to port %d, want %d", v.extra, got, v.want)
		}
	}
}

// FuzzUDPExtra: a peer describes itself with arbitrary bytes. Other providers' Extra clears the LID and is
// otherwise ignored, and softnic's is bounded.
func FuzzUDPExtra(f *testing.F) {
	f.Add([]byte(nil), uint16(1))
	f.Add([]byte{'s', 'n', extraVersion, extraRuns, 0, 0, 1, 0}, uint16(4000))
	f.Add([]byte{'s', 'n', extraVersion, 0, 0xff, 0xff, 0xff, 0xff, 9}, uint16(0))
	f.Add([]byte{'s', 'n', extraVersion + 1, 1, 0, 0, 1, 0}, uint16(7))
	f.Add(append([]byte{'s', 'n', extraVersion, extraSealed, 0, 0, 1, 0}, make([]byte, seal.GreetingLen)...), uint16(14791))
	f.Fuzz(func(t *testing.T, b []byte, lid uint16) {
		u := &udpPort{peers: make(map[udpAddr]*udpPeer)}
		e := verbs.Endpoint{LID: lid, Extra: b}
		sealed, err := u.learn(&e)
		ours := len(b) >= 2 && b[0] == 's' && b[1] == 'n'
		known := ours && len(b) >= extraLen && b[2] == extraVersion
		if known && b[3]&extraSealed != 0 {
			if good := len(b) == extraLen+seal.GreetingLen && b[3]&extraPorts == 0; (sealed != nil) != good || (err == nil) != good {
				t.Fatalf("a sealed peer with %d bytes: %v, %v, want it accepted: %v", len(b), sealed, err, good)
			}
			known = false
		} else if sealed != nil || err != nil {
			t.Fatalf("a plain peer: %v, %v, want neither a greeting nor an error", sealed, err)
		}
		if (!ours && e.LID != 0) || (ours && e.LID != lid) || (len(u.peers) == 1) != known {
			t.Fatalf("LID %d becomes %d, and %d peers are known", lid, e.LID, len(u.peers))
		}
		for addr, p := range u.peers {
			if addr.port == 0 || p.buffer > 1<<30 || p.runs != (b[3]&extraRuns != 0) {
				t.Fatalf("peer at %+v: %+v", addr, p)
			}
		}
	})
}
