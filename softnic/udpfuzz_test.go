//go:build linux

package softnic

import (
	"bytes"
	"net/netip"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// besieged is a NIC on UDP, or on a ShmLink, with one QP of each type connected to a nonexistent peer, and
// guarded memory.
type besieged struct {
	nic  *NIC
	mem  *verbs.Memory
	key  uint32
	qps  []*qp
	from udp.Datagram
	flow roce.Flow
}

func newBesieged(t *testing.T) *besieged {
	t.Helper()
	link, err := NewUDPLink(nil)
	check(t, err)
	s := &besieged{}
	s.nic, err = New(link, Config{Addr: netip.MustParseAddr("127.0.0.21"), MTU: verbs.MTU256})
	check(t, err)
	peer := netip.MustParseAddrPort("127.0.0.22:50000")
	s.furnish(t, verbs.GIDFromAddr(peer.Addr()))
	s.from = udp.Datagram{From: verbs.GIDFromAddr(peer.Addr()), Port: peer.Port()}
	s.flow, err = roce.NewFlow(peer, s.nic.udp.conn.Addr())
	check(t, err)
	return s
}

// furnish creates the NIC's memory and QPs.
func (s *besieged) furnish(t *testing.T, peer verbs.GID) {
	t.Helper()
	t.Cleanup(func() { check(t, s.nic.Close()) })
	ctx, err := s.nic.Open()
	check(t, err)
	pd, err := ctx.AllocPD()
	check(t, err)
	s.mem, err = verbs.AllocMemory(3*guardBytes, nil)
	check(t, err)
	t.Cleanup(func() { check(t, s.mem.Free()) })
	part, err := s.mem.Slice(guardBytes, guardBytes)
	check(t, err)
	mr, err := pd.RegisterMemory(part, verbs.AccessAll)
	check(t, err)
	t.Cleanup(func() { check(t, mr.Close()) })
	s.key = mr.RKey()
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
	check(t, err)
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		q, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: 16, MaxRecvWR: 16})
		check(t, err)
		check(t, q.Connect(verbs.Endpoint{
			QPN: 0x99, PSN: 0, GID: peer, MTU: verbs.MTU256, MaxRdAtomic: 2, MaxDestRdAtomic: 2,
		}))
		var recv verbs.RecvWR
		recv.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: 1024, LKey: mr.LKey()})
		_, err = q.PostRecv([]verbs.RecvWR{recv, recv})
		check(t, err)
		s.qps = append(s.qps, q.(*qp))
	}
}

// attack serves a datagram, or a run of datagrams, as if the peer had sent it.
func (s *besieged) attack(b []byte, segment int) {
	u := s.nic.udp
	u.reading.Lock()
	defer u.reading.Unlock()
	u.nic.core.mu.Lock()
	defer u.nic.core.mu.Unlock()
	d := s.from
	d.Data, d.Segment = b, segment
	u.serve(&d)
	u.nic.core.settle()
}

// TestUDPFill: a packet in a padded datagram is accepted. A sender without support for fill may set its
// bits, which the specification reserves. A wrong ICRC is counted once.
func TestUDPFill(t *testing.T) {
	ack := func(s *besieged, fill, bits int) []byte {
		b := make([]byte, 20+fill)
		h := roce.Header{Opcode: roce.OpAck, Syndrome: roce.SyndromeAck, DestQPN: s.qps[0].num, PKey: roce.PKeyDefault, Fill: uint8(bits)}
		h.Encode(b, 0)
		s.flow.Seal(b[:20], 0)
		return b
	}
	for _, tt := range []struct {
		name       string
		fill, bits int
		want       Stats
	}{
		{"none", 0, 0, Stats{PacketsReceived: 1}},
		{"filled", 28, 7, Stats{PacketsReceived: 1}},
		{"most", roce.MaxFill, roce.MaxFill / 4, Stats{PacketsReceived: 1}},
		{"foreign bits", 0, 63, Stats{PacketsReceived: 1}},
		{"too much", 28, 8, Stats{Malformed: 1}},
		{"too little", 28, 6, Stats{Malformed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newBesieged(t)
			b := ack(s, tt.fill, tt.bits)
			s.attack(b, len(b))
			if got := s.nic.Stats(); got != tt.want {
				t.Errorf("stats %+v, want %+v", got, tt.want)
			}
			b[16] ^= 1
			s.attack(b, len(b))
			if got, want := s.nic.Stats().BadICRC, tt.want.PacketsReceived; got != want {
				t.Errorf("%d packets with a wrong ICRC, want %d", got, want)
			}
		})
	}
}

// FuzzUDPReceive feeds datagrams to a NIC, both as they are and with a corrected ICRC and an existing QP, so
// that they get further. Only registered memory may change, and the NIC must not panic.
func FuzzUDPReceive(f *testing.F) {
	f.Add([]byte{}, uint16(0), false)
	f.Add([]byte{roce.OpSendOnly, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0}, uint16(0), true)
	f.Add(append([]byte{roce.OpWriteOnly, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 0}, make([]byte, 24)...), uint16(36), true)
	f.Add(append([]byte{roce.OpReadRequest, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0, 0}, make([]byte, 20)...), uint16(0), true)
	f.Add(append([]byte{roce.OpAck, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0, 0x1f}, make([]byte, 7)...), uint16(20), true)
	f.Add(append([]byte{roce.UD | roce.OpSendOnly, 0, 0xff, 0xff, 0, 0, 0, 0x13, 0, 0, 0, 0, 0x11, 0x11, 0x11, 0x11}, make([]byte, 12)...), uint16(0), true)
	f.Add(append([]byte{roce.OpAck, 0, 0xff, 0xff, 2, 0, 0, 0x11, 0, 0, 0, 0, 0x1f}, make([]byte, 15)...), uint16(28), true)
	f.Fuzz(func(t *testing.T, b []byte, segment uint16, sealed bool) {
		s := newBesieged(t)
		size := int(segment)
		if size == 0 {
			size = len(b)
		}
		if sealed {
			for k := 0; k < len(b); k += size {
				if one := b[k:min(k+size, len(b))]; len(one) > 7 { // 0x11 to 0x13 are the QPs
					num := s.qps[(one[7]-0x11)%3].num
					one[5], one[6], one[7] = byte(num>>16), byte(num>>8), byte(num)
				}
				if one := roce.Trim(b[k:min(k+size, len(b))]); len(one) >= roce.MinDatagram && len(one) <= roce.MaxDatagram && len(one)&3 == 0 {
					s.flow.Seal(one, uint16(k/size))
				}
			}
		}
		s.attack(b, size)
		guard := make([]byte, guardBytes)
		if m := s.mem.Bytes(); !bytes.Equal(m[:guardBytes], guard) || !bytes.Equal(m[2*guardBytes:], guard) {
			t.Error("bytes outside of the region have changed")
		}
	})
}

// A peer's Extra is accepted only if it is complete and has a known version.
func TestUDPExtra(t *testing.T) {
	s := newBesieged(t)
	u := s.nic.udp
	good := u.extra(nil)
	for name, extra := range map[string][]byte{
		"empty": nil, "short": good[:7], "other": []byte("mlx5data"), "version": append([]byte{'s', 'n', 2}, good[3:]...),
	} {
		_, err := u.learn(&verbs.Endpoint{GID: verbs.GID{15: 1}, Extra: extra})
		check(t, err)
		if len(u.peers) != 0 {
			t.Errorf("%s: learned %v, want nothing", name, u.peers)
			clear(u.peers)
		}
	}
	_, err := u.learn(&verbs.Endpoint{GID: verbs.GID{15: 1}, LID: 4792, Extra: good})
	check(t, err)
	got, ok := u.peers[udpAddr{verbs.GID{15: 1}, 4792}]
	if want := uint32(u.conn.Buffer()) &^ 1023; !ok || !got.runs || got.buffer != want {
		t.Errorf("learned %+v, %v, want runs and a buffer of %d", got, ok, want)
	}
}

// The state kept on behalf of other hosts is bounded.
func TestUDPMemoryOfOthers(t *testing.T) {
	s := newBesieged(t)
	u := s.nic.udp
	for k := range 3 * maxUDPSources {
		from := u.source(udpAddr{s.from.From, uint16(1000 + k)})
		u.learnReplyRoute(from, uint32(k))
	}
	if len(u.sources) > maxUDPSources || len(u.replyRoutes) > maxUDPSources {
		t.Errorf("%d sources and %d speakers remembered, want at most %d", len(u.sources), len(u.replyRoutes), maxUDPSources)
	}
}

// The NIC's count of unacknowledged packets is the sum over its QPs and returns to zero when they are done: a
// leaking window would close permanently.
func TestUDPWindowCount(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[0]
	var wrs []verbs.SendWR
	for range 10 {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
		wr.SetSGE(verbs.SGE{Addr: s.mem.Addr() + guardBytes, Length: 1000, LKey: s.key})
		wrs = append(wrs, wr)
	}
	_, err := q.PostSend(wrs)
	check(t, err)
	s.nic.core.mu.Lock()
	defer s.nic.core.mu.Unlock()
	if s.nic.budget.inFlight != 40 {
		t.Errorf("%d packets in flight, want 40", s.nic.budget.inFlight)
	}
	q.enterError()
	if s.nic.budget.inFlight != 0 {
		t.Errorf("%d packets in flight after an error, want 0", s.nic.budget.inFlight)
	}
}

// A QP blocked by the NIC's window still gets its share, and resumes when the others are done.
func TestUDPWindowShare(t *testing.T) {
	s := newBesieged(t)
	n, q := s.nic, s.qps[0]
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	n.budget.inFlight = n.budget.limit // of others
	if !q.mayAdd(fairShare-1, false) || q.mayAdd(fairShare, false) || q.lists&onStarved == 0 {
		t.Errorf("may add at %d: %v, at %d: %v, want true and false", fairShare-1, q.mayAdd(fairShare-1, false), fairShare, q.mayAdd(fairShare, false))
	}
	n.budget.inFlight = 0
	q.charge()
	if q.lists&onStarved != 0 || q.lists&onTx == 0 {
		t.Errorf("starved %v, scheduled %v when the window has opened, want false and true", q.lists&onStarved != 0, q.lists&onTx != 0)
	}
}
