//go:build linux

package softnic

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/roce"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// runSize is the payload of a packet in the middle of a message.
const runSize = 256

// aWrite returns the packets of a WRITE to a besieged NIC, as equally long datagrams, and their headers.
func (s *besieged) aWrite(packets, tail, missing int, headerICRC bool) (all [][]byte) {
	size := max((packets-1)*runSize+tail-missing, 1) // the RETH may cover less than the payload
	psn := roce.PSN(0)                               // the endpoint's
	for i := range packets {
		h := roce.Header{
			Opcode: roce.OpWriteMiddle, DestQPN: s.qps[0].num, PKey: roce.PKeyDefault, PSN: psn.Add(uint32(i)), HeaderICRC: headerICRC,
			VA: s.mem.Addr() + guardBytes, RKey: s.key, DMALen: uint32(size), AckReq: i%3 == 2,
		}
		n := runSize
		switch i {
		case 0:
			h.Opcode = roce.OpWriteFirst
		case packets - 1:
			h.Opcode, n = roce.OpWriteLast, tail
		}
		all = append(all, s.packet(h, n, byte(i), uint16(i)))
	}
	return all
}

// packet returns a datagram of the length of the longest packet of a WRITE.
func (s *besieged) packet(h roce.Header, n int, pattern byte, id uint16) []byte {
	length := roce.DatagramLen(h.Opcode, n)
	h.Fill = uint8((datagramLen - length) / 4)
	b := make([]byte, datagramLen)
	k := h.Encode(b, n)
	for i := range n {
		b[k+i] = pattern + byte(i)
	}
	if h.HeaderICRC {
		s.flow.Begin(b[:k], length, id).FinishHeaders(b[k+n:], roce.Pad(n))
	} else {
		s.flow.Seal(b[:length], id)
	}
	return b
}

// seen returns all state that packets can change.
func (s *besieged) seen() string {
	q := s.qps[0]
	text := fmt.Sprintf("%+v psn %d msn %d state %v ack %v nak %d %v", s.nic.Stats(), q.epsn, q.msn, q.state, q.ackDue, q.nakSyndrome, q.nakSent)
	if q.msgKind != 0 {
		text += fmt.Sprintf(" at %d left %d placed %d", q.va-s.mem.Addr(), q.left, q.placed)
	}
	return text
}

// rearm gives the besieged NIC a new RC QP and empty memory.
func (s *besieged) rearm(t *testing.T) {
	t.Helper()
	old := s.qps[0]
	v, err := old.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: old.sendCQ, RecvCQ: old.recvCQ, MaxSendWR: 16, MaxRecvWR: 16})
	check(t, err)
	check(t, v.Connect(verbs.Endpoint{QPN: 0x99, GID: s.from.From, MTU: verbs.MTU256, MaxRdAtomic: 2, MaxDestRdAtomic: 2}))
	check(t, old.Close())
	s.qps[0] = v.(*qp)
	clear(s.mem.Bytes())
}

// attackOnce serves datagrams in one turn, each as a run of datagrams of a size.
func (s *besieged) attackOnce(all [][]byte, size int) {
	u := s.nic.udp
	u.reading.Lock()
	defer u.reading.Unlock()
	u.nic.core.mu.Lock()
	defer u.nic.core.mu.Unlock()
	for _, b := range all {
		d := s.from
		d.Data, d.Segment = b, size
		u.serve(&d)
	}
	u.nic.core.settle()
}

// runChange changes one datagram of a run.
type runChange struct{ kind, at, to, bit int }

func (c *runChange) apply(s *besieged, all [][]byte) {
	b := bytes.Clone(all[c.at])
	packet := roce.Trim(b)
	switch c.kind {
	case 0: // some lost and others duplicated
		copy(all[c.at:], slices.Clone(all[c.to:min(c.to+4, len(all))]))
		return
	case 1: // swapped
		b, all[c.to] = all[c.to], b
	case 2, 3: // corrupted
		b[c.bit/8] ^= 1 << (c.bit % 8)
	case 4: // another identification, and a full ICRC
		if len(packet) >= roce.MinDatagram && len(packet)%4 == 0 {
			s.flow.Restore(packet, uint16(c.bit))
		}
	case 5: // a packet to another QP between two
		b = s.packet(roce.Header{Opcode: roce.UC | roce.OpSendOnly, DestQPN: s.qps[1].num, PKey: roce.PKeyDefault}, 20, 0, 0)
	}
	all[c.at] = b
}

// runCase is a WRITE in equally long datagrams, with changes.
type runCase struct {
	packets, tail int
	missing       int // the RETH covers fewer bytes
	headerICRC    bool
	changes       []runChange
}

// datagramLen is the length of the datagrams of a runCase.
const datagramLen = 12 + 16 + runSize + icrcLen

// check serves the datagrams one by one to the first side and as a run to the second one. It returns an error if the effects
// differ, and whether a run has begun.
func (c *runCase) check(t *testing.T, sides *[2]*besieged) (run bool, err error) {
	var seen [2]string
	for i, s := range sides {
		s.rearm(t)
		all := s.aWrite(c.packets, c.tail, c.missing, c.headerICRC)
		for _, change := range c.changes {
			change.apply(s, all)
		}
		if i == 1 {
			all = [][]byte{bytes.Join(all, nil)}
			s.nic.udp.run.last = roce.BTH{}
		}
		s.attackOnce(all, datagramLen)
		seen[i] = s.seen()
	}
	run = sides[1].nic.udp.run.last != (roce.BTH{})
	switch {
	case seen[0] != seen[1]:
		return run, fmt.Errorf("one by one: %s\nas a run:   %s", seen[0], seen[1])
	case !bytes.Equal(sides[0].mem.Bytes(), sides[1].mem.Bytes()):
		return run, errors.New("the memory differs")
	}
	return run, nil
}

// TestUDPRun: a run of datagrams has the same effect as its datagrams one by one, even if some are
// lost, duplicated, swapped or corrupted, if other packets are between them, or if the WRITE or its
// region is too short.
func TestUDPRun(t *testing.T) {
	sides := [2]*besieged{newBesieged(t), newBesieged(t)}
	for _, headerICRC := range []bool{false, true} {
		for name, c := range map[string]runCase{
			"damaged":   {changes: []runChange{{kind: 2, at: 3, bit: 8 * (middleLen + runSize)}}}, // the ICRC of a middle packet
			"too short": {missing: 3 * runSize},
		} {
			c.packets, c.tail, c.headerICRC = 6, runSize, headerICRC
			if run, err := c.check(t, &sides); !run || err != nil {
				t.Errorf("%s, header ICRC %v: a run has begun: %v, and got error %v, want a run without a difference", name, headerICRC, run, err)
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		c := runCase{packets: rapid.IntRange(3, 12).Draw(rt, "packets"), headerICRC: rapid.Bool().Draw(rt, "header ICRC")}
		c.tail = rapid.IntRange(1, runSize).Draw(rt, "tail")
		c.missing = rapid.SampledFrom([]int{0, 0, 0, 1, runSize, 3 * runSize}).Draw(rt, "missing")
		for range rapid.IntRange(0, 3).Draw(rt, "changes") {
			c.changes = append(c.changes, runChange{
				rapid.IntRange(0, 5).Draw(rt, "kind"), rapid.IntRange(0, c.packets-1).Draw(rt, "at"), rapid.IntRange(0, c.packets-1).Draw(rt, "to"),
				rapid.IntRange(0, 8*datagramLen-1).Draw(rt, "bit"),
			})
		}
		if _, err := c.check(t, &sides); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestUDPRunEnds: a packet that would continue a run beyond the end of its WRITE is a duplicate.
func TestUDPRunEnds(t *testing.T) {
	s := newBesieged(t)
	s.rearm(t)
	all := s.aWrite(4, runSize, 0, true)
	all = append(all, s.aWrite(5, runSize, 0, true)[3])
	s.attackOnce([][]byte{bytes.Join(all, nil)}, len(all[0]))
	if got := s.qps[0].epsn; got != 4 {
		t.Errorf("the QP expects PSN %d, want 4", got)
	}
}

// BenchmarkUDPRun serves runs of 14 packets in the middle of a WRITE, without sockets: packets that udpRun recognizes, and
// packets decoded one by one.
func BenchmarkUDPRun(b *testing.B) {
	for _, headerICRC := range []bool{true, false} {
		for _, size := range []int{1024, 4096} {
			for _, recognized := range []bool{false, true} {
				b.Run(fmt.Sprintf("headers=%v/size=%d/recognized=%v", headerICRC, size, recognized), func(b *testing.B) { benchmarkRun(b, size, headerICRC, recognized) })
			}
		}
	}
}

func benchmarkRun(b *testing.B, size int, headerICRC, recognized bool) {
	const packets = 14
	link, err := NewUDPLink(nil)
	check(b, err)
	s := newNICRig(b, link, 64, Config{Addr: netip.MustParseAddr("127.0.0.25"), MTU: verbs.MTU4096})
	q := s.qp(verbs.RC, 16)
	from := netip.MustParseAddrPort("127.0.0.26:50000")
	mtu, err := verbs.MTUOf(size)
	check(b, err)
	check(b, q.Connect(verbs.Endpoint{
		QPN: 0x99, GID: verbs.GIDFromAddr(from.Addr()), MTU: mtu, MaxRdAtomic: 2, MaxDestRdAtomic: 2,
	}))
	flow, err := roce.NewFlow(from, s.nic.udp.conn.Addr())
	check(b, err)
	length := roce.DatagramLen(roce.OpWriteMiddle, size)
	var run []byte
	for i := range packets {
		h := roce.Header{Opcode: roce.OpWriteMiddle, DestQPN: q.num, PKey: roce.PKeyDefault, PSN: roce.PSN(i), HeaderICRC: headerICRC}
		h.Solicited = !recognized && i%2 == 1 // so that it is not its predecessor's header
		d := make([]byte, length)
		if n := h.Encode(d, size); headerICRC {
			flow.Begin(d[:n], length, uint16(i)).FinishHeaders(d[length-icrcLen:], 0)
		} else {
			flow.Seal(d, uint16(i))
		}
		run = append(run, d...)
	}
	u := s.nic.udp
	u.reading.Lock()
	defer u.reading.Unlock()
	u.nic.core.mu.Lock()
	defer u.nic.core.mu.Unlock()
	d := udp.Datagram{From: verbs.GIDFromAddr(from.Addr()), Port: from.Port(), Segment: length}
	for b.Loop() {
		q.epsn, q.msgKind, q.rkey, q.va, q.left, q.placed = 0, opIsWrite, s.mr.RKey(), s.mr.Addr(), packets*uint32(size), 0
		d.Data = run
		u.serve(&d)
	}
	if q.left != 0 {
		b.Fatalf("%d bytes are missing", q.left)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*packets), "ns/packet")
}

// TestUDPRunRefused: after a refused packet, the rest of its run is also refused, although its PSN
// precedes the expected one.
func TestUDPRunRefused(t *testing.T) {
	for _, portDown := range []bool{false, true} {
		s := newBesieged(t)
		s.rearm(t)
		all := s.aWrite(8, 100, 0, true)
		s.attackOnce([][]byte{bytes.Join(all[:2], nil)}, len(all[0]))
		q := s.qps[0]
		before := q.epsn
		if portDown {
			s.nic.SetPort(false)
		} else {
			from := udpAddr{s.from.From, s.from.Port + 1}
			from.gid[15] ^= 0x40
			s.from.From, s.from.Port = from.gid, from.port
			flow, err := roce.NewFlow(from.addrPort(), s.nic.udp.conn.Addr())
			check(t, err)
			s.flow = flow
			all = s.aWrite(8, 100, 0, true)
		}
		s.attackOnce([][]byte{bytes.Join(all[1:6], nil)}, len(all[0]))
		if q.epsn != before {
			t.Errorf("port down: %v: the expected PSN moved from %d to %d, want no change", portDown, before, q.epsn)
		}
	}
}
