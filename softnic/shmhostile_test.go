//go:build linux

package softnic

import (
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// TestShmPeerStopped: requests to a peer that no longer reads its ring, such as a stopped process, fail
// with RETRY_EXC_ERR. Lines complete without the peer until the ring is full.
func TestShmPeerStopped(t *testing.T) {
	for name, credits := range map[string]uint32{"packets": 0, "lines": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s, p := newShmBesieged(t)
			q := s.qps[0]
			q.core.mu.Lock()
			q.attr.Timeout, q.attr.RetryCount, q.retryLeft = 8, 2, 2 // 1 ms
			q.core.mu.Unlock()
			p.grant(q, credits)
			wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			wr.SetSGE(verbs.SGE{Addr: s.mem.Addr() + guardBytes, Length: 8, LKey: s.key})
			done := 0
			for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
				_, _ = q.PostSend([]verbs.SendWR{wr}) // the queue may be full
				var wcs [16]verbs.WC
				n, err := q.sendCQ.Poll(wcs[:])
				check(t, err)
				for _, wc := range wcs[:n] {
					if wc.Status == verbs.StatusSuccess {
						done++
						continue
					}
					if wc.Status != verbs.StatusRetryExcErr {
						t.Errorf("the first failed request ends with %v, want %v", wc.Status, verbs.StatusRetryExcErr)
					}
					if lines := shm.Slots - shmReserve; credits > 0 && done != lines || credits == 0 && done != 0 {
						t.Errorf("%d requests have completed before, want %d lines or no packets", done, lines)
					}
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("no request has failed, and %d have completed", done)
				}
			}
		})
	}
}

// TestShmPeerPauses: a peer that pauses and resumes may do so any number of times. Lines are not acknowledged, but they
// restore the retries all the same.
func TestShmPeerPauses(t *testing.T) {
	s, p := newShmBesieged(t)
	q := s.qps[0]
	c := q.core
	c.mu.Lock()
	q.attr.Timeout, q.attr.RetryCount, q.retryLeft = 31, 1, 1 // 2.4 hours: the test fires the timer
	c.mu.Unlock()
	fire := func() verbs.QPState {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.timers.drop(q)
		q.timeout(q.timerAt)
		c.settle()
		return q.state
	}
	waits := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return q.sqHead != q.sqTail
	}
	p.grant(q, 1<<20)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	wr.SetSGE(verbs.SGE{Addr: s.mem.Addr() + guardBytes, Length: 8, LKey: s.key})
	for pause := range 4 {
		for sent := 0; !waits(); sent++ { // until one needs a free slot
			if n, err := q.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil || sent > shm.Slots {
				t.Fatalf("pause %d, request %d: PostSend = %d, %v", pause, sent, n, err)
			}
			completions(q)
		}
		if got := fire(); got != verbs.StateRTS {
			t.Fatalf("after a timeout in pause %d, the QP is in %v, want %v", pause, got, verbs.StateRTS)
		}
		c.mu.Lock()
		p.segment.Taken().Store(c.traits.shm.ring.writer.Written()) // the peer resumes
		c.mu.Unlock()
		if completions(q); waits() {
			t.Fatalf("after pause %d, a request still waits for a free slot", pause)
		}
		fire() // without effect: nothing waits
	}
	wr.SGE[0].Length = 1024 // too long for a line
	_, err := q.PostSend([]verbs.SendWR{wr})
	check(t, err)
	if got := fire(); got != verbs.StateRTS {
		t.Errorf("after the timeout of a packet, the QP is in %v, want %v", got, verbs.StateRTS)
	}
}

// grant lets q access the besieger's memory, with credits for receives of any length.
func (p *shmBesieger) grant(q *qp, credits uint32) {
	p.segment.Credit(q.attr.DestQPN).Store(shm.CreditWord(credits, shm.MaxPayload))
	p.segment.Grant(q.attr.DestQPN).Store(shm.GrantWord(shm.Grant{Domain: 1, Read: true, Write: true}, q.attr.SQPSN+q.num, q.attr.DestQPN))
}

// TestShmLineRefused: a line that the responder would refuse as a packet has the same effect. A valid
// line completes a receive.
func TestShmLineRefused(t *testing.T) {
	t.Run("shm", func(t *testing.T) { lineRefused(t, newShmBesieged) })
	t.Run("neighbor", func(t *testing.T) { lineRefused(t, newNeighborBesieged) })
}

func lineRefused(t *testing.T, begin func(t *testing.T) (*besieged, *shmBesieger)) {
	t.Helper()
	for name, c := range map[string]struct {
		m     shm.Line
		state verbs.QPState
		got   int // completions
	}{
		"a SEND":               {shm.Line{Flags: shm.LineSend, Length: 8}, verbs.StateRTS, 1},
		"a WRITE":              {shm.Line{Flags: shm.LineImm, Key: 1, Length: guardBytes}, verbs.StateRTS, 1},
		"a WRITE of no bytes":  {shm.Line{Flags: shm.LineImm, Key: 7}, verbs.StateRTS, 1},
		"another PSN":          {shm.Line{Flags: shm.LineSend, PSN: 1}, verbs.StateRTS, 0},
		"an earlier PSN":       {shm.Line{Flags: shm.LineSend, PSN: 1<<24 - 1}, verbs.StateRTS, 0},
		"a UC QP":              {shm.Line{Flags: shm.LineSend, QPN: 1}, verbs.StateRTS, 0},
		"no QP":                {shm.Line{Flags: shm.LineSend, QPN: 99}, verbs.StateRTS, 0},
		"past the region":      {shm.Line{Flags: shm.LineImm, Key: 1, Addr: 1, Length: guardBytes}, verbs.StateErr, 2},
		"an unknown key":       {shm.Line{Flags: shm.LineImm, Key: 7, Length: 1}, verbs.StateErr, 2},
		"longer than the MTU":  {shm.Line{Flags: shm.LineSend, Length: 257}, verbs.StateErr, 2},
		"too long to be real":  {shm.Line{Flags: shm.LineImm, Key: 1, Length: 1<<32 - 1}, verbs.StateErr, 2},
		"an overflowing range": {shm.Line{Flags: shm.LineImm, Key: 1, Addr: 1<<64 - 8, Length: 16}, verbs.StateErr, 2},
	} {
		s, p := begin(t)
		p.enter(0, shmLineEntry(c.m), s)
		got := 0
		var wcs [16]verbs.WC
		for range 4 {
			n, err := s.qps[0].sendCQ.Poll(wcs[:])
			check(t, err)
			got += n
			for _, wc := range wcs[:n] {
				if (wc.Status == verbs.StatusSuccess) != (c.state == verbs.StateRTS) {
					t.Errorf("%s: the receive ends with %v", name, wc.Status)
				}
			}
		}
		if state := s.qps[0].State(); state != c.state || got != c.got {
			t.Errorf("%s: the QP is in %v with %d completions, want %v with %d", name, state, got, c.state, c.got)
		}
	}
}

// completions polls q's send completions, without waiting.
func completions(q *qp) []verbs.WC {
	var wcs [4]verbs.WC
	n, _ := q.sendCQ.Poll(wcs[:]) // after an error n is 0
	return wcs[:n]
}

// TestShmPollClosed: polling a CQ of a closed NIC is an error.
func TestShmPollClosed(t *testing.T) {
	s, _ := newShmBesieged(t)
	cq := s.qps[0].sendCQ
	check(t, s.nic.Close())
	var wcs [4]verbs.WC
	if n, err := cq.Poll(wcs[:]); n != 0 || err == nil {
		t.Errorf("Poll = %d, %v, want an error", n, err)
	}
}

// TestShmLinesNeedCredits: a peer without credits, such as one with an SRQ, never receives lines.
func TestShmLinesNeedCredits(t *testing.T) {
	s, p := newShmBesieged(t)
	q := s.qps[0]
	p.grant(q, 0)
	p.segment.Credit(q.attr.DestQPN).Store(0)
	q.core.mu.Lock()
	q.spent = 1<<31 + 1
	q.core.mu.Unlock()
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled}})
	check(t, err)
	if wcs := completions(q); len(wcs) > 0 {
		t.Errorf("completed without a credit: %+v", wcs)
	}
}

// TestShmLinesNeedGrant: credits of a QP that the peer has connected to another QP are not used.
func TestShmLinesNeedGrant(t *testing.T) {
	s, p := newShmBesieged(t)
	q := s.qps[0]
	p.grant(q, 100)
	other := shm.Grant{Domain: 1, Read: true, Write: true}
	p.segment.Grant(q.attr.DestQPN).Store(shm.GrantWord(other, q.attr.SQPSN+q.num+1, q.attr.DestQPN))
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
	check(t, err)
	if wcs := completions(q); len(wcs) > 0 {
		t.Errorf("completed without a grant: %+v", wcs)
	}
}

// TestShmCreditsOfClosedRegion: if the region of a receive is closed while the peer is out of credits,
// later credits exclude its bytes.
func TestShmCreditsOfClosedRegion(t *testing.T) {
	s, _ := newShmBesieged(t)
	q := s.qps[0]
	s.nic.SetPort(false)
	for m := range s.nic.mrs.all() {
		check(t, m.Close())
		break
	}
	s.nic.SetPort(true)
	if posted, shortest := shm.CreditOf(q.core.traits.shm.peer.own.Credit(q.num).Load()); shortest != 0 {
		t.Errorf("%d receives of %d bytes are shown, want 0 bytes", posted, shortest)
	}
}

// TestNeighborLook: a line published while the receiver falls asleep is announced on the socket, and served on the announcement.
func TestNeighborLook(t *testing.T) {
	s, p := newNeighborBesieged(t)
	q := s.qps[0]
	w := q.core.udpNIC
	p.grant(q, 100)
	shm.Word32(p.segment, shm.CacheLine).Store(1) // asleep
	w.mu.Lock()
	q.ring().publishLine(q, verbs.OpSend, 0, 0, 0, 0, 0, nil, nil)
	w.mu.Unlock()
	for {
		m, fd, err := p.conn.Receive()
		check(t, err)
		shm.Close(fd)
		if m.Kind == shm.ReadRing {
			break
		}
	}
	s.enterAsleep(t, p)
	p.conn.Send(shm.Message{Kind: shm.ReadRing}, -1)
	s.awaitLine(t)
}

// enterAsleep enters a line while no goroutine of the NIC reads the ring.
func (s *besieged) enterAsleep(t *testing.T, p *shmBesieger) {
	t.Helper()
	w := s.nic.core.udpNIC
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		w.mu.Lock()
		asleep := w.discovery.asleep
		w.mu.Unlock()
		if asleep {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the NIC does not sleep")
		}
	}
	p.enter(0, shmLineEntry(shm.Line{Flags: shm.LineSend, Length: 8}), s)
}

// awaitLine waits until the NIC has served a line.
func (s *besieged) awaitLine(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); s.nic.Stats().PacketsReceived == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the line is not served")
		}
	}
}

// TestNeighborOrder: a packet behind a line does not count as a gap.
func TestNeighborOrder(t *testing.T) {
	s, p := newNeighborBesieged(t)
	s.enterAsleep(t, p)
	h := roce.Header{Opcode: roce.RC | roce.OpSendOnly, DestQPN: s.qps[0].num, PSN: 1, PKey: roce.PKeyDefault}
	b := make([]byte, roce.DatagramLen(h.Opcode, 0))
	h.Encode(b, 0)
	s.flow.Seal(b, 0)
	s.attack(b, len(b))
	if now := s.nic.Stats(); now.PacketsReceived != 2 || now.OutOfOrder != 0 {
		t.Errorf("%d requests received, %d out of order, want 2 and none", now.PacketsReceived, now.OutOfOrder)
	}
}

// TestNeighborLeavesLines: the lines of an exited neighbor are served.
func TestNeighborLeavesLines(t *testing.T) {
	s, p := newNeighborBesieged(t)
	s.enterAsleep(t, p)
	check(t, p.conn.Close())
	s.awaitLine(t)
}

// TestShmPeerLostStillWrites: a peer that has closed its connection and keeps writing to its ring does not keep the NIC from
// reporting the loss.
func TestShmPeerLostStillWrites(t *testing.T) {
	s, p := newShmBesieged(t)
	l, q := s.nic.core.traits.shm, s.qps[0]
	served := 0
	write := func() {
		h := roce.Header{Opcode: roce.RC | roce.OpWriteOnly, DestQPN: q.num, PSN: roce.PSN(served), VA: s.mem.Addr() + guardBytes, RKey: s.key, DMALen: 8}
		p.enter(served, shmEntry(h, 8, 0), s)
	}
	s.nic.Observe(func(MemoryAccess) {
		if served++; served < 8*shm.Slots {
			write()
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	write()
	l.peerLost()
	if served == 0 || served > shm.Slots || s.nic.portUp {
		t.Errorf("%d entries were served before the port went down (up: %v), want 1 to %d", served, s.nic.portUp, shm.Slots)
	}
}
