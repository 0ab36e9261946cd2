//go:build linux

package softnic

import (
	"net/netip"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// datagram returns a packet without payload from a port of the peer to the besieged NIC.
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

// TestRNRNakTwice: a SEND and its probe, or a packet that the network repeats, are both refused
// for want of a receive. That is one try.
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

// TestUDPHearsWhomItExpects: only a datagram that a QP takes says where answers go.
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
		if got := len(s.nic.udp.heard); got != v.want {
			t.Errorf("%s: %d speakers remembered, want %d", v.name, got, v.want)
		}
	}
}

// TestUDPCountsEmpty: a datagram without a byte, and one that was too long to be read, is
// counted like others that are no packets.
func TestUDPCountsEmpty(t *testing.T) {
	s := newBesieged(t)
	s.attack(nil, 0)
	if got := s.nic.Stats().Malformed; got != 1 {
		t.Errorf("%d malformed, want 1", got)
	}
}

// TestUDPLIDOfStrangers: some drivers for Ethernet say that their LID is 1. That is the port of a
// softnic only.
func TestUDPLIDOfStrangers(t *testing.T) {
	s := newBesieged(t)
	old := s.qps[0]
	for _, v := range []struct {
		extra []byte
		want  uint16
	}{{nil, roce.Port}, {s.nic.udp.extra(), 5001}} {
		q, err := old.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: old.sendCQ, RecvCQ: old.recvCQ})
		check(t, err)
		check(t, q.Connect(verbs.Endpoint{
			QPN: 0x99, GID: s.from.From, LID: 5001, MTU: verbs.MTU256, MaxRdAtomic: 2, MaxDestRdAtomic: 2, Extra: v.extra,
		}))
		if got := q.(*qp).path.way.dest.Addr().Port(); got != v.want {
			t.Errorf("a peer with LID 5001 and extra %q is sent to port %d, want %d", v.extra, got, v.want)
		}
	}
}
