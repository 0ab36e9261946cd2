package failover_test

import (
	"encoding/binary"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

func ctlKindOf(b []byte) byte    { return b[5] }
func ctlFlagsOf(b []byte) uint16 { return binary.LittleEndian.Uint16(b[10:]) }

// TestFailoverFullLaneMoves: the other rail takes over a full lane whose rail is lost permanently.
func TestFailoverFullLaneMoves(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for _, depth := range []int{1, 4} {
			d := newDuo(t, 2, ibverbx.Config{Lanes: 2, Scheme: scheme, FragmentSize: 4096, LaneDepth: depth})
			const messages, size = 2, 65536
			local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
			enginetest.Fill(local.Bytes(), 2)
			a, b := d.hosts[0].NICs[1], d.hosts[1].NICs[1]
			d.links[1].Cut(a, b)
			d.links[1].Cut(b, a)
			d.post(0, messages, size, local, remote)
			d.until("all complete on the other rail", func() bool {
				return (len(d.got[0]) == messages && len(d.got[1]) == messages) || d.hosts[0].QP.Err() != nil
			})
			if err := d.hosts[0].QP.Err(); err != nil {
				t.Fatalf("depth %d: Err = %v, want nil", depth, err)
			}
			d.check(messages, local, remote)
		}
	})
}

// TestFailoverLostHave: losing one control message (the offer that means "connected") does not keep a lane
// out of service.
func TestFailoverLostHave(t *testing.T) {
	for host := range 2 {
		d, taps := newTappedDuo(t, 1, ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{})
		lost := 0
		taps[host].pass = func(b []byte) bool {
			if ctlKindOf(b) == 2 && ctlFlagsOf(b)&1 != 0 && lost == 0 {
				lost++
				return false
			}
			return true
		}
		local, remote := d.hosts[0].Region(4*4096), d.hosts[1].Region(4*4096)
		d.kill(0, 0)
		d.post(0, 4, 4096, local, remote)
		d.until("all complete", func() bool { return len(d.got[0]) == 4 && len(d.got[1]) == 4 })
		for end := d.now + int64(20*time.Second); !d.allUp() || lost != 1; d.step() {
			if d.now > end {
				t.Fatalf("host %d lost one offer: after 20 s %s and %s, want up", host,
					d.hosts[0].QP.Stats().Lanes[0].State, d.hosts[1].QP.Stats().Lanes[0].State)
			}
		}
	}
}

// TestFailoverDataReceiveFlushed: a data receive is flushed when the VirtualQP fails while its message lane
// is out of service.
func TestFailoverDataReceiveFlushed(t *testing.T) {
	d, taps := newTappedDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: time.Second}, ibverbx.CQConfig{})
	local, remote := d.hosts[0].Region(4096), d.hosts[1].Region(4096)
	recv := ibverbx.RecvWR{WRID: 7}
	recv.SetSGE(local.SGE(0, 4096))
	d.hosts[0].PostRecv(recv)
	for _, c := range taps {
		c.pass = func([]byte) bool { return false }
	}
	d.kill(0, 2)
	for range 20 {
		d.step()
	}
	d.links[0].Cut(d.hosts[0].NICs[0], d.hosts[1].NICs[0])
	d.post(0, 1, 4096, local, remote)
	d.until("it failed", func() bool { return d.hosts[0].QP.Err() != nil })
	for range 10_000 {
		d.step()
	}
	d.hosts[0].PostRecv(recv)
	for range 10_000 {
		d.step()
	}
	n := 0
	for _, wc := range d.got[0] {
		if wc.WRID == 7 {
			n++
		}
	}
	if n != 2 {
		t.Fatalf("%d data receives ended, want 2: %+v", n, d.got[0])
	}
}

// TestFailoverSlowReceiver: a receiver that polls one completion at a time, slowly, does not
// make either side fail.
func TestFailoverSlowReceiver(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2, NotifyDepth: 256})
	const messages, size = 200, 4096
	local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
	enginetest.Fill(local.Bytes(), 2)
	var wcs [16]ibverbx.WC
	sender := func() {
		n, err := d.hosts[0].CQ.Poll(wcs[:])
		enginetest.Must(t, err)
		d.got[0] = append(d.got[0], wcs[:n]...)
	}
	d.post(0, messages, size, local, remote)
	for range 200 {
		sender()
		d.now += 20_000
		for _, l := range d.links {
			l.Step()
		}
	}
	if len(d.got[0]) != messages {
		t.Fatalf("sender: %d", len(d.got[0]))
	}
	d.kill(0, 1)
	for len(d.got[1]) < messages {
		for range 20 { // the receiver needs 5 ms for each
			sender()
			d.now += 250_000
			for _, l := range d.links {
				l.Step()
			}
		}
		wc, ok, err := d.hosts[1].CQ.PollOne()
		enginetest.Must(t, err)
		if ok {
			d.got[1] = append(d.got[1], wc)
		}
		for i, h := range d.hosts {
			if err := h.QP.Err(); err != nil {
				t.Fatalf("host %d after %d of %d: Err = %v, want nil", i, len(d.got[1]), messages, err)
			}
		}
	}
	d.check(messages, local, remote)
}

// TestFailoverLatePoll: a request that completed before its deadline is reported as a success,
// however late it is polled.
func TestFailoverLatePoll(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: time.Second})
	const messages, size = 8, 4096
	local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
	var one [1]ibverbx.WC
	for range 60 {
		_, err := d.hosts[0].CQ.Poll(one[:])
		enginetest.Must(t, err)
	}
	d.post(0, messages, size, local, remote)
	for range 100 {
		d.now += 20_000
		for _, l := range d.links {
			l.Step()
		}
	}
	d.now += int64(2 * time.Second)
	for len(d.got[0]) < messages {
		n, err := d.hosts[0].CQ.Poll(one[:])
		enginetest.Must(t, err)
		d.got[0] = append(d.got[0], one[:n]...)
	}
	for i, wc := range d.got[0] {
		if wc.Err() != nil {
			t.Fatalf("request %d: %v, want success: it had ended", i, wc.Err())
		}
	}
	if err := d.hosts[0].QP.Err(); err != nil {
		t.Fatalf("Err = %v, want nil", err)
	}
}

// TestFailoverProcessCompletionsDrives: a caller of ProcessCompletions gets failover too.
func TestFailoverProcessCompletionsDrives(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2})
	local, remote := d.hosts[0].Region(4*65536), d.hosts[1].Region(4*65536)
	enginetest.Fill(local.Bytes(), 2)
	d.kill(0, 1)
	d.post(0, 4, 65536, local, remote)
	var raw [16]verbs.WC
	var wcs [16]ibverbx.WC
	for range 100_000 {
		for rail := range 2 {
			cq, err := d.hosts[0].CQ.CQ(rail)
			enginetest.Must(t, err)
			n, err := cq.Poll(raw[:])
			enginetest.Must(t, err)
			k, err := d.hosts[0].CQ.ProcessCompletions(rail, raw[:n], wcs[:])
			enginetest.Must(t, err)
			d.got[0] = append(d.got[0], wcs[:k]...)
		}
		n, err := d.hosts[1].CQ.Poll(wcs[:])
		enginetest.Must(t, err)
		d.got[1] = append(d.got[1], wcs[:n]...)
		d.now += 20_000
		for _, l := range d.links {
			l.Step()
		}
		if len(d.got[0]) == 4 {
			break
		}
	}
	d.check(4, local, remote)
}

// TestFailoverAtomicsGoHome: atomics continue when the rail of the message lane is back.
func TestFailoverAtomicsGoHome(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2})
	local, remote := d.hosts[0].Region(64), d.hosts[1].Region(64)
	a, b := d.hosts[0].NICs[0], d.hosts[1].NICs[0]
	d.links[0].Cut(a, b)
	d.links[0].Cut(b, a)
	d.kill(0, 0)
	d.kill(0, 2)
	send := ibverbx.SendWR{WRID: 0, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	send.SetSGE(local.SGE(0, 8))
	recv := ibverbx.RecvWR{WRID: 0}
	recv.SetSGE(remote.SGE(0, 8))
	d.hosts[1].PostRecv(recv)
	d.hosts[0].PostSend(send)
	d.until("the message arrives over the other rail", func() bool { return len(d.got[0]) == 1 })
	t.Logf("message lane on rail %d", d.hosts[0].QP.Stats().Lanes[2].Rail)
	d.links[0].Restore(a, b)
	d.links[0].Restore(b, a)
	w := ibverbx.SendWR{WRID: 9, Opcode: verbs.OpRDMAWrite, Remote: remote.Remote()}
	w.SetSGE(local.SGE(0, 8))
	for range 4 { // use the lanes, so that their deaths are noticed
		d.hosts[0].PostSend(w)
	}
	for range 10_000 {
		d.step()
	}
	d.until("all lanes are back", d.allUp)
	add := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, Remote: remote.Remote(), CompareAdd: 1}
	add.SetSGE(local.SGE(0, 8))
	d.hosts[0].PostSend(add)
	start := d.now
	d.until("the atomic has ended", func() bool { return len(d.got[0]) == 2 || d.now-start > int64(30*time.Second) })
	if len(d.got[0]) != 2 || d.got[0][1].Err() != nil {
		t.Fatalf("30 s after all lanes are up the atomic has not succeeded: %+v, message lane on rail %d", d.got[0], d.hosts[0].QP.Stats().Lanes[2].Rail)
	}
}

// TestFailoverAheadOfTheDead: a lane takes over a failed lane's messages that precede its own.
func TestFailoverAheadOfTheDead(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2, SendDepth: 64, RecvDepth: 4, NotifyDepth: 4, LaneDepth: 256, Deadline: 30 * time.Second})
	const messages, size = 64, 64
	local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
	enginetest.Fill(local.Bytes(), 2)
	a, b := d.hosts[0].NICs[1], d.hosts[1].NICs[1]
	d.links[1].Cut(a, b)
	d.links[1].Cut(b, a)
	posted := 0
	for i := range messages {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i), Remote: remote.Remote(), RemoteOffset: uint64(i * size)}
		wr.SetSGE(local.SGE(uint64(i*size), size))
		d.hosts[0].PostSend(wr)
	}
	d.until("all complete", func() bool {
		for posted < messages {
			if k, _ := d.hosts[1].QP.PostRecv([]ibverbx.RecvWR{{WRID: uint64(posted)}}); k != 1 {
				break
			}
			posted++
		}
		return (len(d.got[0]) == messages && len(d.got[1]) == messages) || d.hosts[0].QP.Err() != nil
	})
	if err := d.hosts[0].QP.Err(); err != nil {
		t.Fatalf("after %d messages Err = %v, want nil", len(d.got[1]), err)
	}
	d.check(messages, local, remote)
}

// TestFailoverStarvedFlap: the lanes of a receiver that does not post receives fail repeatedly.
func TestFailoverStarvedFlap(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Scheme: scheme, SendDepth: 4, RecvDepth: 1, NotifyDepth: 4, Deadline: time.Hour})
		const size = 64
		local, remote := d.hosts[0].Region(size), d.hosts[1].Region(size)
		sent := 0
		for round := range 8 {
			for i := range 400 {
				wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Remote: remote.Remote()}
				wr.SetSGE(local.SGE(0, size))
				if i%4 == 0 {
					k, _ := d.hosts[0].QP.PostSend([]ibverbx.SendWR{wr})
					sent += k
				}
				d.step()
			}
			lane := round % 2
			if scheme == ibverbx.Spray {
				lane = 3
			}
			d.kill(0, lane)
			d.step()
			d.step()
			d.until("back", d.allUp)
			for i, h := range d.hosts {
				if err := h.QP.Err(); err != nil {
					t.Fatalf("round %d, %d sent: Err of host %d = %v, want nil", round, sent, i, err)
				}
			}
		}
		t.Logf("%d sent", sent)
	})
}

// TestFailoverEmptyPollAllocs: an empty poll does not allocate.
func TestFailoverEmptyPollAllocs(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2})
	var wcs [16]ibverbx.WC
	if n := testing.AllocsPerRun(1000, func() { _, _ = d.hosts[0].CQ.Poll(wcs[:]) }); n != 0 {
		t.Fatalf("%v allocations per poll, want 0", n)
	}
}

// TestRailStatsOfMovedLane: bytes that the message lane carried over rail 0 stay counted for
// rail 0 when the lane moves to rail 1.
func TestRailStatsOfMovedLane(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2})
	const size = 8192
	local, remote := d.hosts[0].Region(2*size), d.hosts[1].Region(2*size)
	send := func(i int) {
		recv := ibverbx.RecvWR{WRID: uint64(i)}
		recv.SetSGE(remote.SGE(uint64(i*size), size))
		d.hosts[1].PostRecv(recv)
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(local.SGE(uint64(i*size), size))
		d.hosts[0].PostSend(wr)
		d.until("complete", func() bool { return len(d.got[0]) == i+1 && len(d.got[1]) == i+1 })
	}
	send(0)
	for _, h := range d.hosts {
		h.NICs[0].SetPort(false)
	}
	d.until("the message lane is on rail 1", func() bool {
		l := d.hosts[0].QP.Stats().Lanes[2]
		return l.Rail == 1 && l.State == "up"
	})
	send(1)
	rails := d.hosts[0].QP.Stats().Rails
	if rails[0].Bytes != size || rails[1].Bytes != size {
		t.Errorf("the rails carried %d and %d bytes, want %d each", rails[0].Bytes, rails[1].Bytes, size)
	}
}
