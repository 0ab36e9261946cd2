//go:build linux

package softnic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// tap is a Capture that looks for secrets.
type tap struct {
	mu sync.Mutex
	// secrets are all runs of eight bytes that must not be seen.
	secrets map[uint64]bool
	seen    int
	// inRuns counts packets after the first of a run.
	inRuns int
	dests  map[netip.AddrPort]bool
}

func newTap() *tap { return &tap{secrets: make(map[uint64]bool), dests: make(map[netip.AddrPort]bool)} }

func (c *tap) Packet(_ int64, _, dst netip.AddrPort, id uint16, _, _ uint8, parts ...[]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := bytes.Join(parts, nil)
	for i := 0; i+8 <= len(b); i++ {
		if c.secrets[binary.BigEndian.Uint64(b[i:])] {
			c.seen++
		}
	}
	if id > 0 {
		c.inRuns++
	}
	c.dests[dst] = true
}

// hide adds the runs of eight bytes in b.
func (c *tap) hide(b []byte) {
	for i := 0; i+8 <= len(b); i++ {
		c.secrets[binary.BigEndian.Uint64(b[i:])] = true
	}
}

// exchange moves size bytes by WRITE, READ and SEND, and returns when they have arrived.
func exchange(t *testing.T, u *udpRig, c *tap, size int) {
	t.Helper()
	src, srcMR := memory(t, u.pa, size)
	dst, dstMR := memory(t, u.pb, 2*size)
	back, backMR := memory(t, u.pa, size)
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(rng.Uint32())
	}
	c.hide(src.Bytes())
	c.hide(binary.BigEndian.AppendUint64(nil, dstMR.Addr()))
	c.hide(binary.BigEndian.AppendUint64(nil, backMR.Addr()))
	cqA, cqB := newCQ(t, u.ca, 16), newCQ(t, u.cb, 16)
	qa, qb := u.pair(verbs.RC, cqA, cqB, 16)
	var recv verbs.RecvWR
	recv.SetSGE(verbs.SGE{Addr: dst.Addr() + uint64(size), Length: uint32(size), LKey: dstMR.LKey()})
	if _, err := qb.PostRecv([]verbs.RecvWR{recv}); err != nil {
		t.Fatalf("PostRecv: %v", err)
	}
	local := verbs.SGE{Addr: src.Addr(), Length: uint32(size), LKey: srcMR.LKey()}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpSend, verbs.OpRDMARead} {
		wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled | verbs.SendFence, RemoteAddr: dstMR.Addr(), RKey: dstMR.RKey()}
		if op == verbs.OpRDMARead {
			local.Addr, local.LKey = back.Addr(), backMR.LKey()
		}
		wr.SetSGE(local)
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatalf("PostSend: %v", err)
		}
		succeeded(t, await(t, cqA, 1))
	}
	succeeded(t, await(t, cqB, 1))
	for i, got := range [][]byte{dst.Bytes()[:size], dst.Bytes()[size:], back.Bytes()} {
		if !bytes.Equal(got, src.Bytes()) {
			t.Errorf("copy %d is not what was sent", i)
		}
	}
}

// TestSealedCapture: an observer of all packets sees neither payload nor addresses. Packets are still
// sent in runs, and never to the RoCE port. The same packets without a seal expose both.
func TestSealedCapture(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		c := newTap()
		u := newUDPRig(t, softnic.UDPConfig{Capture: c})
		if sealed {
			u.sa, u.sb = newSeals(t)
		}
		for _, size := range []int{9, 1000, 300_000} { // 75 packets three times
			exchange(t, u, c, size)
		}
		c.mu.Lock()
		if (c.seen == 0) != sealed {
			t.Errorf("sealed %v: %d secrets seen", sealed, c.seen)
		}
		if c.inRuns < 100 {
			t.Errorf("sealed %v: %d packets behind others in runs, want most of 220", sealed, c.inRuns)
		}
		for dst := range c.dests {
			if sealed == (dst.Port() < 14791) {
				t.Errorf("sealed %v: packets went to %v", sealed, dst)
			}
		}
		c.mu.Unlock()
	}
}

// plainRecorder records packets readable by any tool: to the RoCE port, without fill.
type plainRecorder struct{ recorder }

func (r *plainRecorder) Packet(at int64, src, dst netip.AddrPort, id uint16, class, hops uint8, parts ...[]byte) {
	if b := parts[0]; dst.Port() != roce.Port || b[4]&0x3f != 0 || len(roce.Trim(b)) != len(b) {
		r.tb.Errorf("captured to %v, byte 4 of the BTH %#x, want port %d and no fill", dst, b[4], roce.Port)
	}
	r.recorder.Packet(at, src, dst, id, class, hops, parts...)
}

// TestPlainCapture: CapturePlain shows sealed and plain packets alike, as RoCE with a valid ICRC, both sent
// and received.
func TestPlainCapture(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		rec := &plainRecorder{recorder{tb: t}}
		u := newUDPRig(t, softnic.UDPConfig{CapturePlain: rec})
		if sealed {
			u.sa, u.sb = newSeals(t)
		}
		exchange(t, u, newTap(), 300_000)
		rec.mu.Lock()
		counts := map[uint8]int{}
		for _, op := range rec.opcodes {
			counts[op]++
		}
		// Both links capture, so every packet appears twice: 74 packets of 4096 bytes, each with an ACK.
		for op, least := range map[uint8]int{roce.OpWriteFirst: 2, roce.OpWriteMiddle: 2 * 72, roce.OpWriteLast: 2, roce.OpReadResponseMiddle: 2 * 50, roce.OpAck: 2} {
			if counts[op] < least {
				t.Errorf("sealed %v: %d packets of opcode %#x, want at least %d", sealed, counts[op], op, least)
			}
		}
		rec.mu.Unlock()
	}
}

// TestSealDisagreement: QPs with mismatched Seals fail to connect or cannot communicate. They never
// fall back to plain packets.
func TestSealDisagreement(t *testing.T) {
	dialer, listener := newSeals(t)
	other, err := softnic.NewSeal(bytes.Repeat([]byte{1}, 32), false)
	must(t, err)
	second, _ := newSeals(t)
	for name, v := range map[string]struct {
		a, b    verbs.Seal
		refused bool
	}{
		"peer is plain":      {dialer, nil, true},
		"this side is plain": {nil, listener, true},
		"other secret":       {dialer, other, false},
		"both are dialers":   {dialer, second, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUDPRig(t, softnic.UDPConfig{})
			cqA := newCQ(t, u.ca, 16)
			if v.refused { // the NICs have met, so that only the QPs disagree
				connect(t, newSealedQP(t, u.pa, cqA, verbs.UD, dialer), newSealedQP(t, u.pb, newCQ(t, u.cb, 16), verbs.UD, listener))
			}
			qa := newSealedQP(t, u.pa, cqA, verbs.RC, v.a)
			qb := newSealedQP(t, u.pb, newCQ(t, u.cb, 16), verbs.RC, v.b)
			ea, err := qa.Endpoint()
			must(t, err)
			eb, err := qb.Endpoint()
			must(t, err)
			if v.b == nil {
				eb.LID = 0 // the usual port
			}
			if err := qa.Connect(eb); errors.Is(err, verbs.ErrInvalid) != v.refused {
				t.Fatalf("Connect = %v, want an error: %v", err, v.refused)
			}
			if v.refused {
				return
			}
			must(t, qb.Connect(ea))
			_, src := memory(t, u.pa, 64)
			mem, dst := memory(t, u.pb, 64)
			clear(mem.Bytes())
			if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 64)}); err != nil {
				t.Fatalf("PostSend: %v", err)
			}
			if wc := await(t, cqA, 1)[0]; wc.Status != verbs.StatusRetryExcErr {
				t.Errorf("write = %v, want %v", wc.Status, verbs.StatusRetryExcErr)
			}
			if s := u.b.Stats(); s.Seals.Bad == 0 || s.PacketsReceived > 0 {
				t.Errorf("%d bad seals, %d packets received, want some, and 0", s.Seals.Bad, s.PacketsReceived)
			}
		})
	}
}

func newSealedQP(t *testing.T, pd verbs.PD, cq verbs.CQ, typ verbs.QPType, s verbs.Seal) verbs.QP {
	t.Helper()
	q, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4, Path: verbs.PathConfig{Seal: s, AckTimeout: 10}})
	must(t, err)
	return q
}

// foreignSeal is a Seal of another provider.
type foreignSeal struct{}

func (foreignSeal) Sealed() {}

// TestSealRefusals: unusable Seals are refused, with the reason.
func TestSealRefusals(t *testing.T) {
	dialer, listener := newSeals(t)
	if _, err := softnic.NewSeal(make([]byte, 15), true); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewSeal with 15 bytes = %v, want ErrInvalid", err)
	}
	inMemory := newRig(t, softnic.NewMemoryLink(nil))
	cq := newCQ(t, inMemory.ca, 4)
	if _, err := inMemory.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Path: verbs.PathConfig{Seal: dialer}}); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("CreateQP with a Seal on a memory link = %v, want ErrNotSupported", err)
	}
	u := newUDPRig(t, softnic.UDPConfig{})
	cq = newCQ(t, u.ca, 16)
	for _, s := range []verbs.Seal{foreignSeal{}, (*softnic.Seal)(nil), &softnic.Seal{}} {
		if _, err := u.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Path: verbs.PathConfig{Seal: s}}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("CreateQP with a Seal that is %T = %v, want ErrInvalid", s, err)
		}
	}
	qa := newSealedQP(t, u.pa, cq, verbs.UD, dialer)
	qb := newSealedQP(t, u.pb, newCQ(t, u.cb, 16), verbs.UD, listener)
	eb, err := qb.Endpoint()
	must(t, err)
	av := verbs.AHAttr{DGID: eb.GID, DLID: eb.LID, Seal: dialer}
	if _, err := u.pa.CreateAH(av); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("CreateAH for a peer that was not met = %v, want ErrInvalid", err)
	}
	connect(t, qa, qb)
	good, err := u.pa.CreateAH(av)
	must(t, err)
	av.Seal = nil
	plain, err := u.pa.CreateAH(av)
	must(t, err)
	_, mr := memory(t, u.pa, 64)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, AH: plain.Handle(), RemoteQPN: eb.QPN, RemoteQKey: eb.QKey}
	wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()})
	if _, err := qa.PostSend([]verbs.SendWR{wr}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend on a sealed QP to a plain address = %v, want ErrInvalid", err)
	}
	wr.AH = good.Handle()
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Errorf("PostSend to the sealed address: %v", err)
	}
	succeeded(t, await(t, cq, 1))
}

// TestSealedCorruption: the fault layer corrupts packets after sealing.
func TestSealedCorruption(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{Seed: 1, Impairment: softnic.Impairment{Corrupt: 0.1, Loss: 0.02}})
	u.sa, u.sb = newSeals(t)
	exchange(t, u, newTap(), 200_000)
	if s := u.b.Stats(); s.Seals.Bad == 0 || s.BadICRC > 0 || s.NAKsSent == 0 {
		t.Errorf("%d bad seals, %d bad ICRCs, %d NAKs, want some, 0, and some: a damaged packet is a loss", s.Seals.Bad, s.BadICRC, s.NAKsSent)
	}
}
