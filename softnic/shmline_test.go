//go:build linux

package softnic_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/testslice"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// shmSlot is the size of a message in the line tests. A region has shmSlots slots for messages sent or
// written, as many for receives, and two for other requests.
const (
	shmSlot  = 8 << 10
	shmSlots = 128
)

// message returns the slot of message k, and receive the slot of receive k.
func message(k int) int { return k % shmSlots }
func receive(k int) int { return shmSlots + k%shmSlots }

// sge returns the first n bytes of a slot.
func (s *shmSide) sge(slot, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(slot*shmSlot), Length: uint32(n), LKey: s.mr.LKey()}
}

// bytesOf returns the first n bytes of a slot.
func (s *shmSide) bytesOf(slot, n int) []byte { return s.mem.Bytes()[slot*shmSlot:][:n] }

// to aims a request at a slot of the peer.
func (s *shmSide) to(wr *verbs.SendWR, slot int) {
	wr.RemoteAddr, wr.RKey = s.peer.Addr+uint64(slot*shmSlot), s.peer.RKey
}

// makePair returns two sides with regions of size bytes. x can access y's region directly.
type makePair func(tb testing.TB, size int) (x, y *shmSide)

// lineSize is the size of a region of slots.
const lineSize = (2*shmSlots + 2) * shmSlot

// overRings runs a test over a ShmLink and between neighbors that never sleep.
func overRings(t *testing.T, test func(t *testing.T, pair makePair)) {
	t.Helper()
	noRaces(t)
	for name, pair := range map[string]makePair{"shm": shmPair, "neighbors": func(tb testing.TB, size int) (x, y *shmSide) {
		tb.Helper()
		cfg := softnic.UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, SharedMemory: true, Spin: time.Hour}
		return nearPairWith(tb, size, cfg, cfg)
	}} {
		t.Run(name, func(t *testing.T) {
			test(t, func(tb testing.TB, size int) (x, y *shmSide) {
				tb.Helper()
				x, y = pair(tb, size)
				x.awaitPublished()
				return x, y
			})
		})
	}
}

// closeBoth closes two NICs whose goroutines may be polling for packets.
func closeBoth(t *testing.T, x, y *shmSide) {
	t.Helper()
	must(t, x.nic.Close())
	must(t, y.nic.Close())
}

// postSlots posts receives k up to end, each with its own slot.
func (s *shmSide) postSlots(k, end int) {
	recvs := make([]verbs.RecvWR, end-k)
	for i := range recvs {
		recvs[i].WRID = uint64(k + i)
		recvs[i].SetSGE(s.sge(receive(k+i), shmSlot))
	}
	s.receive(recvs)
}

// collect returns n completions of receives.
func (s *shmSide) collect(n int) (got []verbs.WC) {
	s.tb.Helper()
	for deadline := time.Now().Add(time.Minute); len(got) < n; {
		for _, wc := range s.poll() {
			if wc.Opcode == verbs.WCRecv || wc.Opcode == verbs.WCRecvRDMAWithImm {
				got = append(got, wc)
			}
		}
		if runtime.Gosched(); time.Now().After(deadline) {
			s.tb.Fatalf("%d of %d messages have arrived", len(got), n)
		}
	}
	return got
}

// sendLines makes x complete 100 short messages that y has receives for, without an ACK from y. Every
// second one is a SEND.
func sendLines(t *testing.T, x, y *shmSide) (n int) {
	t.Helper()
	n = 100
	y.postSlots(0, n)
	wrs := make([]verbs.SendWR, n)
	for k := range wrs {
		copy(x.bytesOf(message(k), 8), []byte{byte(k), 1, 2, 3, 4, 5, 6, 7})
		wrs[k] = verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(k)}
		if k%2 == 1 {
			wrs[k].Opcode = verbs.OpRDMAWriteWithImm
			x.to(&wrs[k], receive(k))
		}
		wrs[k].SetSGE(x.sge(message(k), 8))
	}
	was := x.nic.Stats()
	x.send(wrs)
	x.await(n)
	if now := x.nic.Stats(); now.PacketsReceived != was.PacketsReceived || now.PacketsSent != was.PacketsSent+uint64(n) {
		t.Errorf("%d messages with %d responses, want %d and none", now.PacketsSent-was.PacketsSent, now.PacketsReceived-was.PacketsReceived, n)
	}
	return n
}

// TestShmLinesSurvive: requests completed at the sender complete at the receiver, whatever either side
// does next.
func TestShmLinesSurvive(t *testing.T) { overRings(t, linesSurvive) }

func linesSurvive(t *testing.T, pair makePair) {
	for name, end := range map[string]func(x, y *shmSide){
		"ERR":          func(_, y *shmSide) { must(t, y.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)) },
		"less access":  func(_, y *shmSide) { must(t, y.qp.Modify(verbs.QPAttr{}, verbs.AttrAccess)) },
		"MR.Close":     func(_, y *shmSide) { must(t, y.mr.Close()) },
		"port down":    func(_, y *shmSide) { y.nic.SetPort(false) },
		"observer":     func(_, y *shmSide) { y.nic.Observe(func(softnic.MemoryAccess) {}) },
		"device error": func(_, y *shmSide) { y.nic.Fail() },
		"failed QP":    func(_, y *shmSide) { must(t, y.nic.FailQP(y.qp.Num())) },
		"failed request": func(_, y *shmSide) {
			y.send([]verbs.SendWR{{Opcode: verbs.OpSend, NumSGE: 1, SGE: [4]verbs.SGE{{Length: 8}}}})
		},
		"sender's Close":  func(x, _ *shmSide) { must(t, x.qp.Close()) },
		"end of the link": func(x, _ *shmSide) { must(t, x.nic.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			for range testslice.Of(t).AtMost(2).Count(5) { // the reading goroutine of y may be faster
				x, y := pair(t, lineSize)
				n := sendLines(t, x, y)
				end(x, y)
				for k, wc := range y.collect(n) {
					if wc.Status != verbs.StatusSuccess || wc.Imm != uint32(k) || wc.WRID != uint64(k) || y.bytesOf(receive(k), 1)[0] != byte(k) {
						t.Fatalf("message %d: %+v with %d, want a success with the same numbers", k, wc, y.bytesOf(receive(k), 1)[0])
					}
				}
				closeBoth(t, x, y)
			}
		})
	}
	for name, end := range map[string]func(x, y *shmSide){
		"Close": func(_, y *shmSide) { must(t, y.qp.Close()) },
		"RESET": func(_, y *shmSide) { must(t, y.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)) },
	} {
		t.Run(name, func(t *testing.T) { // no completion is left
			for range testslice.Of(t).AtMost(2).Count(5) {
				x, y := pair(t, lineSize)
				n := sendLines(t, x, y)
				end(x, y)
				for k := range n {
					if got := y.bytesOf(receive(k), 8); got[0] != byte(k) || got[7] != 7 {
						t.Fatalf("the bytes of message %d are %v", k, got)
					}
				}
				closeBoth(t, x, y)
			}
		})
	}
}

// TestShmLinesRegion: MR.Close takes effect after the completed lines, whether they write to the region
// or are received in it. Later ones are refused.
func TestShmLinesRegion(t *testing.T) { overRings(t, linesRegion) }

func linesRegion(t *testing.T, pair makePair) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpSend} {
		for range testslice.Of(t).AtMost(2).Count(10) {
			x, y := pair(t, lineSize)
			mem, err := verbs.AllocMemory(shmSlot, &verbs.MemoryConfig{Shared: true})
			must(t, err)
			defer func() { must(t, mem.Free()) }()
			access := verbs.AccessAll
			if op == verbs.OpSend {
				access = verbs.AccessLocalWrite
			}
			mr, err := y.pd.RegisterMemory(mem, access)
			must(t, err)
			if op == verbs.OpRDMAWriteWithImm {
				x.peer.Addr, x.peer.RKey = mr.Addr(), mr.RKey()
				x.awaitPublished()
			}
			const n = 50
			recvs, wrs := make([]verbs.RecvWR, n+1), make([]verbs.SendWR, n)
			for k := range wrs {
				wrs[k] = verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr() + uint64(8*k), RKey: mr.RKey()}
				wrs[k].SetSGE(x.sge(message(k), 8))
				x.bytesOf(message(k), 1)[0] = byte(k + 1)
				if op == verbs.OpSend {
					recvs[k].SetSGE(verbs.SGE{Addr: mr.Addr() + uint64(8*k), Length: 8, LKey: mr.LKey()})
				}
			}
			recvs[n].SetSGE(verbs.SGE{Addr: mr.Addr(), Length: 8, LKey: mr.LKey()})
			y.receive(recvs)
			x.send(wrs)
			x.await(n)
			must(t, mr.Close())
			for k, wc := range y.collect(n) {
				if got := mem.Bytes()[8*k]; wc.Status != verbs.StatusSuccess || got != byte(k+1) {
					t.Fatalf("%v %d: %+v with %d", op, k, wc, got)
				}
			}
			x.send(wrs[:1])
			x.fails(map[verbs.Opcode]verbs.Status{verbs.OpRDMAWriteWithImm: verbs.StatusRemAccessErr, verbs.OpSend: verbs.StatusRemOpErr}[op])
			closeBoth(t, x, y)
		}
	}
}

// TestShmLinesScarce: 200 messages to 3 receives. 3 complete, the others once more receives are posted,
// in order.
func TestShmLinesScarce(t *testing.T) { overRings(t, linesScarce) }

func linesScarce(t *testing.T, pair makePair) {
	x, y := pair(t, lineSize)
	y.postSlots(0, 3)
	const n = 200
	wrs := make([]verbs.SendWR, n)
	for k := range wrs {
		wrs[k] = verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(k), WRID: uint64(k)}
		x.to(&wrs[k], 0)
		wrs[k].SetSGE(x.sge(0, 8))
	}
	x.send(wrs)
	x.await(3)
	got := y.collect(3)
	if wcs := x.poll(); len(wcs) != 0 {
		t.Errorf("request %d of 3 receives has completed: %+v", 3+len(wcs), wcs)
	}
	for posted := 3; posted < n; {
		more := min(7, n-posted)
		y.postSlots(posted, posted+more)
		posted += more
		x.await(more)
		got = append(got, y.collect(more)...)
	}
	for k, wc := range got {
		if wc.Imm != uint32(k) || wc.WRID != uint64(k) || wc.Status != verbs.StatusSuccess {
			t.Fatalf("message %d is %+v", k, wc)
		}
	}
}

// TestShmLinesRandom: requests of all kinds and lengths in random order, with scarce receives, complete
// in order and with intact data on both sides.
func TestShmLinesRandom(t *testing.T) { overRings(t, linesRandom) }

func linesRandom(t *testing.T, pair makePair) {
	part := testslice.Of(t).AtMost(2)
	for i := range part.Count(20) {
		seed := uint64(part.First(20) + i)
		rng := rand.New(rand.NewPCG(seed, 9))
		x, y := pair(t, lineSize)
		const n, most = 1000, shmSlots / 4
		var wants []lineMessage
		posted, done, taken, room := 0, 0, 0, 0
		for deadline := time.Now().Add(time.Minute); done < n || taken < len(wants); {
			if time.Now().After(deadline) {
				t.Fatalf("seed %d: %d of %d requests and %d of %d messages are complete", seed, done, posted, taken, len(wants))
			}
			for k := rng.IntN(4); k > 0 && posted < n && posted-done < most && len(wants)-taken < most; k-- {
				wants = x.randomRequest(rng, posted, wants)
				posted++
			}
			if more := rng.IntN(8); room-taken < 16 && (more < 3 || done < posted) {
				y.postSlots(room, room+more)
				room += more
			}
			for _, wc := range x.poll() {
				if wc.Status != verbs.StatusSuccess || wc.WRID != uint64(done) {
					t.Fatalf("seed %d: request %d ends with %+v", seed, done, wc)
				}
				done++
			}
			for _, wc := range y.poll() {
				wants[taken].check(t, y, taken, &wc)
				taken++
			}
		}
		closeBoth(t, x, y)
	}
}

// lineMessage is a message expected by y.
type lineMessage struct {
	send bool
	imm  uint32
	want []byte
}

// check checks message k of y.
func (m *lineMessage) check(t *testing.T, y *shmSide, k int, wc *verbs.WC) {
	t.Helper()
	slot := message(k)
	if m.send {
		slot = receive(k)
	}
	got := y.bytesOf(slot, len(m.want))
	if wc.Status != verbs.StatusSuccess || wc.Imm != m.imm || int(wc.ByteLen) != len(m.want) || (wc.Opcode == verbs.WCRecv) != m.send || !bytes.Equal(got, m.want) {
		t.Fatalf("message %d is %+v with wrong or right bytes (%v), want %d bytes with immediate %d", k, wc, bytes.Equal(got, m.want), len(m.want), m.imm)
	}
}

// randomRequest posts request k, and appends its message, if any, to the messages expected by y.
func (s *shmSide) randomRequest(rng *rand.Rand, k int, wants []lineMessage) []lineMessage {
	lengths := [...]int{0, 1, 8, 38, 39, 40, 300, 4096, 4097, shmSlot}
	op, size := verbs.Opcode(rng.IntN(int(verbs.OpAtomicFetchAndAdd)+1)), lengths[rng.IntN(len(lengths))]
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, WRID: uint64(k), Imm: rng.Uint32()}
	slot := message(k)
	from := s.bytesOf(slot, size)
	if op <= verbs.OpSendWithImm {
		for i := range from {
			from[i] = byte(k*7 + i*3 + i>>8)
		}
	}
	switch {
	case op > verbs.OpRDMARead:
		s.to(&wr, 2*shmSlots)
		wr.SetSGE(s.sge(slot, 8))
	case op == verbs.OpRDMARead || op == verbs.OpRDMAWrite:
		s.to(&wr, 2*shmSlots+1)
		wr.SetSGE(s.sge(slot, size))
	default:
		m := lineMessage{send: op >= verbs.OpSend, imm: wr.Imm, want: bytes.Clone(from)}
		if op == verbs.OpSend {
			m.imm = 0
		}
		s.to(&wr, message(len(wants)))
		wr.SetSGE(s.sge(slot, size))
		if size > 1 && rng.IntN(3) == 0 {
			half := s.sge(slot, size)
			half.Length = uint32(size / 2)
			rest := verbs.SGE{Addr: half.Addr + uint64(half.Length), Length: uint32(size) - half.Length, LKey: half.LKey}
			wr.SetSGE(half, verbs.SGE{LKey: half.LKey}, rest)
		}
		wants = append(wants, m)
	}
	s.send([]verbs.SendWR{wr})
	return wants
}

// TestShmReadBehindSend: a READ posted after a SEND finds the SEND's bytes in the peer's memory.
func TestShmReadBehindSend(t *testing.T) { overRings(t, readBehindSend) }

func readBehindSend(t *testing.T, pair makePair) {
	const slot, rounds = 64, 300
	x, y := pair(t, (rounds+2)*slot)
	for k := range rounds {
		at := uint64((k + 2) * slot)
		recv := make([]verbs.RecvWR, 1)
		recv[0].SetSGE(verbs.SGE{Addr: y.mr.Addr() + at, Length: 8, LKey: y.mr.LKey()})
		y.receive(recv)
		x.mem.Bytes()[0], x.mem.Bytes()[slot] = byte(k+1), 0
		send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		send.SetSGE(verbs.SGE{Addr: x.mr.Addr(), Length: 8, LKey: x.mr.LKey()})
		read := verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: x.peer.Addr + at, RKey: x.peer.RKey}
		read.SetSGE(verbs.SGE{Addr: x.mr.Addr() + slot, Length: 8, LKey: x.mr.LKey()})
		x.send([]verbs.SendWR{send, read})
		x.await(2)
		if got := x.mem.Bytes()[slot]; got != byte(k+1) {
			t.Fatalf("round %d: the READ returned %d, want %d", k, got, byte(k+1))
		}
		y.await(1)
	}
}
