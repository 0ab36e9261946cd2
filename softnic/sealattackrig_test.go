//go:build linux

package softnic

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// sealAttack is two NICs with sealed QPs, and an attacker who knows everything but the secret: addresses,
// ports, indices, counters, QP numbers, PSNs, remote keys and every packet sent. The attacker also has
// a legitimate session with the second NIC.
type sealAttack struct {
	t    testing.TB
	nics [2]*NIC
	pds  [2]verbs.PD
	cqs  [2]verbs.CQ
	// qps holds the RC, UC and UD QPs of a session, on both NICs.
	qps [2][3]*qp
	// others holds the QPs of the attacker's session.
	others [2][3]*qp
	// eps holds the endpoints of the first NIC's qps.
	eps [3]verbs.Endpoint
	mem [2]*verbs.Memory
	mr  [2]verbs.MR
	rng *rand.Rand

	mu sync.Mutex
	// sent holds the last packets from the first NIC, and seen the ones that have arrived. A packet delivered
	// twice before it arrives is not a replay.
	sent, seen [][]byte
}

const fortressBytes = 1 << 20

// Packet implements Capture.
func (f *sealAttack) Packet(_ int64, src, _ netip.AddrPort, _ uint16, _, _ uint8, parts ...[]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if src.Addr() == f.addr(0) {
		if len(f.sent) == 64 {
			f.sent = f.sent[1:]
		}
		f.sent = append(f.sent, bytes.Join(parts, nil))
	}
}

// addr returns NIC i's address.
func (f *sealAttack) addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(41 + i)}) }

func newSealAttack(t testing.TB) *sealAttack {
	t.Helper()
	f := &sealAttack{t: t, rng: rand.New(rand.NewPCG(3, 4))}
	for i := range f.nics {
		cfg := UDPConfig{}
		if i == 0 {
			cfg.Capture = f
		}
		link, err := NewUDPLink(&cfg)
		check(t, err)
		n, err := New(link, Config{Addr: f.addr(i)})
		check(t, err)
		t.Cleanup(func() { check(t, n.Close()) })
		ctx, err := n.Open()
		check(t, err)
		f.nics[i] = n
		f.pds[i], err = ctx.AllocPD()
		check(t, err)
		f.cqs[i], err = ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
		check(t, err)
		f.mem[i], err = verbs.AllocMemory(2*fortressBytes, nil)
		check(t, err)
		t.Cleanup(func() { check(t, f.mem[i].Free()) })
		f.mr[i], err = f.pds[i].RegisterMemory(f.mem[i], verbs.AccessAll)
		check(t, err)
		t.Cleanup(func() { check(t, f.mr[i].Close()) })
	}
	f.connect(&f.qps, 7)
	f.connect(&f.others, 8)
	return f
}

// connect creates and connects a session's QPs.
func (f *sealAttack) connect(qps *[2][3]*qp, secret byte) {
	f.t.Helper()
	var eps [2][3]verbs.Endpoint
	for i := range qps {
		s, err := NewSeal(bytes.Repeat([]byte{secret}, 32), i == 0)
		check(f.t, err)
		for k, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
			q, err := f.pds[i].CreateQP(verbs.QPConfig{
				Type: typ, SendCQ: f.cqs[i], RecvCQ: f.cqs[i], MaxSendWR: 64, MaxRecvWR: 64,
				Path: verbs.PathConfig{Seal: s, AckTimeout: 17},
			})
			check(f.t, err)
			qps[i][k] = q.(*qp)
			eps[i][k], err = q.Endpoint()
			check(f.t, err)
		}
	}
	for i := range qps {
		for k := range qps[i] {
			check(f.t, qps[i][k].Connect(eps[1-i][k]))
		}
	}
	if qps == &f.qps {
		f.eps = eps[0]
	}
}

// serve passes a datagram to a port of the second NIC, as if the first had sent it.
func (f *sealAttack) serve(u *udpPort, b []byte) {
	u.reading.Lock()
	defer u.reading.Unlock()
	c := u.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	from := f.nics[0].udp.conn
	if u.sealed {
		from = f.nics[0].sealed.conn
	}
	u.serve(&udp.Datagram{Data: b, Segment: len(b), From: verbs.GIDFromAddr(from.Addr().Addr()), Port: from.SourcePort(0)})
	c.settle()
}

// header returns the header of a request or response that the victim q, on the second NIC, would accept.
func (f *sealAttack) header(q *qp) roce.Header {
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	h := roce.Header{
		DestQPN: q.num, PSN: q.epsn, PKey: roce.PKeyDefault, Migrated: true,
		VA: f.mr[1].Addr() + fortressBytes, RKey: f.mr[1].RKey(), DMALen: 64, QKey: q.attr.QKey, SrcQPN: 17,
	}
	kind := f.rng.IntN(5)
	switch {
	case q.typ == verbs.UD:
		h.Opcode = roce.UD | roce.OpSendOnly
	case q.typ == verbs.UC:
		h.Opcode = roce.UC | roce.OpWriteOnly
	case kind == 0:
		h.Opcode = roce.RC | roce.OpReadRequest
	case kind == 1:
		h.Opcode, h.PSN, h.Syndrome = roce.RC|roce.OpAck, q.una, roce.NAKRemoteAccess
	case kind == 2:
		h.Opcode, h.PSN, h.Syndrome = roce.RC|roce.OpAck, q.snd, roce.SyndromeAck
	default:
		h.Opcode = roce.RC | roce.OpWriteOnly
	}
	return h
}

// plain returns a packet without its ICRC.
func plain(h roce.Header) []byte {
	n := 64
	if h.Opcode&roce.OperationMask == roce.OpReadRequest || h.Opcode&roce.OperationMask == roce.OpAck {
		n = 0
	}
	b := make([]byte, roce.DatagramLen(h.Opcode, n)-icrcLen)
	for i := range b {
		b[i] = 0xee
	}
	h.Encode(b, n)
	return b
}

// unsealed returns a plain packet with a valid ICRC for the second NIC.
func (f *sealAttack) unsealed(h roce.Header) []byte {
	b := append(plain(h), 0, 0, 0, 0)
	from := f.nics[0].udp.conn
	flow, err := roce.NewFlow(netip.AddrPortFrom(from.Addr().Addr(), from.SourcePort(0)), f.nics[1].udp.conn.Addr())
	check(f.t, err)
	flow.Seal(b, 0)
	return b
}

// sealedBy returns a packet sealed by an association of the first NIC.
func sealedBy(a *association, carried []byte) []byte {
	b := make([]byte, len(carried)+seal.Overhead)
	copy(b[seal.HeaderLen:], carried)
	a.Seal(b, 0)
	return b
}

// forged returns a packet for the victim with the right index, epoch and next counter, but an invented key.
func (f *sealAttack) forged(q *qp, h roce.Header) []byte {
	s, err := seal.NewSession(bytes.Repeat([]byte{99}, 32), true)
	check(f.t, err)
	right := f.qps[0][0].assoc
	made, err := s.Associate(&right.of.greeting, &q.sealing.greeting)
	check(f.t, err)
	b := sealedBy(&association{Association: made}, plain(h))
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.seen); n > 0 {
		copy(b[:seal.HeaderLen], f.seen[n-1])
		binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+1000)
	}
	return b
}

// old returns a packet that has already arrived.
func (f *sealAttack) old(newest bool) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) == 0 {
		return []byte{1}
	}
	if newest {
		return bytes.Clone(f.seen[len(f.seen)-1])
	}
	return bytes.Clone(f.seen[f.rng.IntN(len(f.seen))])
}

// write posts a WRITE_WITH_IMM of n bytes from the first NIC to the second and waits until it has arrived.
func (f *sealAttack) write(q, peer *qp, n int) {
	f.t.Helper()
	_, err := peer.PostRecv([]verbs.RecvWR{{}})
	check(f.t, err)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, RemoteAddr: f.mr[1].Addr(), RKey: f.mr[1].RKey()}
	wr.SetSGE(verbs.SGE{Addr: f.mr[0].Addr(), Length: uint32(n), LKey: f.mr[0].LKey()})
	_, err = q.PostSend([]verbs.SendWR{wr})
	check(f.t, err)
	var wcs [1]verbs.WC
	deadline := time.Now().Add(2 * time.Minute)
	for _, cq := range []verbs.CQ{f.cqs[1], f.cqs[0]} {
		for k := 0; k == 0; {
			if k, err = cq.Poll(wcs[:]); err != nil || time.Now().After(deadline) {
				f.t.Fatalf("no completion: %v", err)
			}
			if q.typ == verbs.RC && k == 0 { // its acknowledgement must be read
				_, _ = f.cqs[0].Poll(nil)
			}
		}
		check(f.t, wcs[0].Err())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append([][]byte(nil), f.sent...)
}
