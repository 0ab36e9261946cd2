package softnic

import (
	"bytes"
	"encoding/binary"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// hostile is a NIC under attack: one QP of each type connected to a hostile peer, and a region surrounded by
// guarded memory.
type hostile struct {
	nic  *NIC
	link *FaultLink
	mem  *verbs.Memory
	mr   verbs.MR
	qps  []*qp
	cq   verbs.CQ
}

const (
	guardBytes = 4096
	targetSize = 8192
)

func newHostile(t *testing.T) *hostile {
	var now int64
	link, err := NewFaultLink(&FaultConfig{Now: func() int64 { now += 1000; return now }})
	check(t, err)
	h := &hostile{link: link}
	h.nic, err = New(link, Config{Seed: 1, MTU: verbs.MTU256})
	check(t, err)
	t.Cleanup(func() { check(t, h.nic.Close()) })
	ctx, err := h.nic.Open()
	check(t, err)
	pd, err := ctx.AllocPD()
	check(t, err)
	h.mem, err = verbs.AllocMemory(targetSize+2*guardBytes, nil)
	check(t, err)
	t.Cleanup(func() { check(t, h.mem.Free()) })
	part, err := h.mem.Slice(guardBytes, targetSize)
	check(t, err)
	h.mr, err = pd.RegisterMemory(part, verbs.AccessAll)
	check(t, err)
	t.Cleanup(func() { check(t, h.mr.Close()) })
	h.cq, err = ctx.CreateCQ(verbs.CQConfig{Depth: 256})
	check(t, err)
	peer := verbs.GID{10: 0xff, 11: 0xff, 12: 192, 15: 1}
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		q, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: h.cq, RecvCQ: h.cq, MaxSendWR: 16, MaxRecvWR: 16})
		check(t, err)
		check(t, q.Connect(verbs.Endpoint{
			QPN: 0x99, PSN: 0xfffff0, GID: peer, MTU: verbs.MTU256, MaxRdAtomic: 2, MaxDestRdAtomic: 2,
		}))
		var recv verbs.RecvWR
		recv.SetSGE(verbs.SGE{Addr: h.mr.Addr(), Length: 1024, LKey: h.mr.LKey()})
		for range 16 {
			_, err = q.PostRecv([]verbs.RecvWR{recv})
			check(t, err)
		}
		h.qps = append(h.qps, q.(*qp))
	}
	h.outstanding(t)
	return h
}

// outstanding posts requests on the RC QP for the peer to answer.
func (h *hostile) outstanding(t *testing.T) {
	var wrs []verbs.SendWR
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd, verbs.OpSend} {
		wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: 0x1000, RKey: 1}
		wr.SetSGE(verbs.SGE{Addr: h.mr.Addr(), Length: 8, LKey: h.mr.LKey()})
		if op == verbs.OpRDMARead {
			wr.SGE[0].Length = 700
		}
		wrs = append(wrs, wr)
	}
	_, err := h.qps[0].PostSend(wrs)
	check(t, err)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// packetBytes is the number of fuzzer input bytes per packet.
const packetBytes = 24

// packet builds a packet from b, with dangerous fields close to their limits.
func (h *hostile) packet(b []byte) *packet {
	q := h.qps[int(b[0])%len(h.qps)]
	p := &packet{path: &path{sgid: q.peerGID(), dgid: h.nic.gids[1].GID}}
	p.Opcode = q.transport | b[1]&roce.OperationMask
	if b[0]&0x80 != 0 {
		p.Opcode = b[1]
	}
	p.DestQPN = q.num
	p.PSN = q.epsn.Add(uint32(int8(b[2])))
	if b[0]&0x40 != 0 {
		p.PSN = q.una.Add(uint32(int8(b[2])))
	}
	p.PSN = p.PSN.Add(uint32(b[3]&1) * roce.PSNHalf)
	p.AckReq, p.Solicited = b[3]&2 != 0, b[3]&4 != 0
	p.RKey = h.mr.RKey()
	if b[3]&8 != 0 {
		p.RKey = binary.LittleEndian.Uint32(b[4:])
	}
	p.VA = h.mr.Addr() + uint64(int64(int16(binary.LittleEndian.Uint16(b[8:]))))
	p.DMALen = binary.LittleEndian.Uint32(b[10:]) >> (b[3] >> 4 * 2)
	p.Syndrome, p.Imm = b[14], uint32(b[15])
	p.QKey, p.SrcQPN = verbs.DefaultQKey, uint32(b[16])
	p.Compare, p.SwapAdd, p.Original = uint64(b[17]), uint64(b[18]), uint64(b[19])
	n := int(binary.LittleEndian.Uint16(b[20:])) % 600
	if b[22]&1 != 0 {
		n = int(min(p.DMALen, 600))
	}
	p.setPayload(bytes.Repeat([]byte{b[23] | 1}, n))
	return p
}

func (q *qp) peerGID() verbs.GID {
	if q.path != nil {
		return q.path.dgid
	}
	return verbs.GID{15: 1}
}

// FuzzReceive: whatever packets arrive, the NIC does not panic, writes only to granted memory, limits its
// responses, and keeps its queues bounded.
func FuzzReceive(f *testing.F) {
	for op := range roce.OperationMask + 1 {
		seed := make([]byte, 4*packetBytes)
		for i := range 4 {
			b := seed[i*packetBytes:]
			b[1], b[2], b[10], b[20], b[22] = op, uint8(i), 200, 200, 1
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		h := newHostile(t)
		wcs := make([]verbs.WC, 16)
		for ; len(in) >= packetBytes; in = in[packetBytes:] {
			p := h.packet(in)
			h.link.mu.Lock()
			h.nic.receive(p)
			h.link.settle()
			h.link.mu.Unlock()
			if _, err := h.cq.Poll(wcs); err != nil {
				t.Fatal(err)
			}
			for _, q := range h.qps {
				if n := q.responses.Len(); n > 2*int(q.attr.MaxDestRdAtomic) {
					t.Fatalf("%d answers are queued, want at most %d", n, 2*q.attr.MaxDestRdAtomic)
				}
			}
		}
		guards := append(bytes.Clone(h.mem.Bytes()[:guardBytes]), h.mem.Bytes()[guardBytes+targetSize:]...)
		if !bytes.Equal(guards, make([]byte, 2*guardBytes)) {
			t.Fatal("memory outside of the region was written")
		}
	})
}
