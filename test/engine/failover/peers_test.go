package failover_test

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestFailoverNotifyAlone: the notify lane is on a rail without data lanes, and fails together
// with the data lane.
func TestFailoverNotifyAlone(t *testing.T) {
	d := newDuo(t, 3, ibverbx.Config{Lanes: 1, Scheme: ibverbx.Spray})
	local, remote := d.hosts[0].Region(4*4096), d.hosts[1].Region(4*4096)
	enginetest.Fill(local.Bytes(), 1)
	d.kill(0, 0)
	d.kill(0, 2)
	d.post(0, 4, 4096, local, remote)
	for end := d.now + int64(20*time.Second); len(d.got[0]) < 4 || !d.allUp(); d.step() {
		if d.now > end {
			t.Fatalf("after 20 s: %d of 4 complete, notify lane %s and %s, want up", len(d.got[0]),
				d.hosts[0].QP.Stats().Lanes[2].State, d.hosts[1].QP.Stats().Lanes[2].State)
		}
	}
	d.check(4, local, remote)
}

// TestFailoverNotifyLeavesSilentRail: the notify lane's rail is dead, and its data lanes have not noticed,
// because they are idle. The notify lane moves to the other rail before the request's deadline. So does the
// message lane.
func TestFailoverNotifyLeavesSilentRail(t *testing.T) {
	for rail, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} { // by the home of the lane
		d := newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: ibverbx.Spray, Policy: ibverbx.RoundRobin})
		local, remote := d.hosts[0].Region(400), d.hosts[1].Region(400)
		enginetest.Fill(local.Bytes(), 6)
		d.links[rail].Cut(d.hosts[0].NICs[rail], d.hosts[1].NICs[rail])
		d.links[rail].Cut(d.hosts[1].NICs[rail], d.hosts[0].NICs[rail])
		recv := ibverbx.RecvWR{}
		if op == verbs.OpSend {
			recv.SetSGE(remote.SGE(0, 400))
		}
		d.hosts[1].PostRecv(recv)
		wr := ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled, Remote: remote.Remote()} // on lane 0, of rail 0
		wr.SetSGE(local.SGE(0, 400))
		d.hosts[0].PostSend(wr)
		d.until("the request has ended", func() bool { return len(d.got[0]) == 1 && len(d.got[1]) == 1 })
		d.check(1, local, remote)
	}
}

// TestFailoverOneRefusal: a NAK that rejects a request costs its lane. Another lane retries the request,
// because the NAK may have been forged. Here the key is wrong on one rail. If a second lane rejects it too,
// it is the program's error.
func TestFailoverOneRefusal(t *testing.T) {
	for wrong := range 3 { // the rails with a wrong key
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			d := newDuo(t, 2, ibverbx.Config{Lanes: 2, Policy: ibverbx.RoundRobin})
			local, remote := d.hosts[0].Region(4096), d.hosts[1].Region(4096)
			enginetest.Fill(local.Bytes(), 6)
			if op == verbs.OpRDMARead {
				enginetest.Fill(remote.Bytes(), 6)
				clear(local.Bytes())
			}
			target := *remote.Remote()
			target.RKeys = slices.Clone(target.RKeys)
			for rail := range wrong {
				target.RKeys[rail] ^= 0x5a5a5a5a
			}
			if op == verbs.OpRDMAWriteWithImm {
				d.hosts[1].PostRecv(ibverbx.RecvWR{})
			}
			wr := ibverbx.SendWR{WRID: 1, Opcode: op, Flags: verbs.SendSignaled, Remote: &target} // on lane 0, of rail 0
			wr.SetSGE(local.SGE(0, 4096))
			d.hosts[0].PostSend(wr)
			d.until("the request has ended", func() bool { return len(d.got[0]) == 1 })
			if wrong == 2 {
				if s := d.got[0][0].Status; s != verbs.StatusRemAccessErr || d.hosts[0].QP.Err() == nil {
					t.Errorf("%v with a wrong key: ended in %v, VirtualQP in %v, want %v", op, s, d.hosts[0].QP.Err(), verbs.StatusRemAccessErr)
				}
				continue
			}
			if s := d.got[0][0].Status; s != verbs.StatusSuccess || d.hosts[0].QP.Err() != nil || !bytes.Equal(local.Bytes(), remote.Bytes()) {
				t.Errorf("%v that %d rails refuse: ended in %v, VirtualQP in %v, want success and right bytes", op, wrong, s, d.hosts[0].QP.Err())
			}
			d.until("all lanes are in service", d.allUp)
		}
	}
}

// TestFailoverDeviceFailsAtReceiver: a device that fails while its records are in the CQ loses only its
// lanes, with and without shared receives.
func TestFailoverDeviceFailsAtReceiver(t *testing.T) {
	for _, shared := range []int{0, 2} {
		d, _ := newTappedDuo(t, 2, ibverbx.Config{Lanes: 2, NotifyDepth: 1}, ibverbx.CQConfig{SharedReceives: shared})
		const messages, size = 4, 65536
		local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
		enginetest.Fill(local.Bytes(), 1)
		d.post(0, messages, size, local, remote)
		for range 6 { // host 1 does not poll
			d.now += int64(20 * time.Microsecond)
			d.links[0].Step()
			d.links[1].Step()
		}
		d.hosts[1].NICs[1].Fail()
		recv := ibverbx.RecvWR{WRID: 99}
		recv.SetSGE(remote.SGE(0, 8))
		d.hosts[1].PostRecv(recv)
		d.until("all complete", func() bool {
			return (len(d.got[0]) == messages && len(d.got[1]) == messages) || d.hosts[1].QP.Err() != nil
		})
		if err := d.hosts[1].QP.Err(); err != nil {
			t.Fatalf("shared %d: Err = %v, want nil", shared, err)
		}
		d.check(messages, local, remote)
		d.hosts[1].NICs[1].Recover()
		d.until("all lanes are back", d.allUp)
		d.exchangeRound(2, local, remote) // the rail has receives again
	}
}

// TestFailoverPostRecvOnDeadDevice: PostRecv accepts a data receive while the message lane's device is lost.
func TestFailoverPostRecvOnDeadDevice(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2})
	remote := d.hosts[1].Region(64)
	d.hosts[1].NICs[0].Fail()
	recv := ibverbx.RecvWR{WRID: 99}
	recv.SetSGE(remote.SGE(0, 8))
	d.hosts[1].PostRecv(recv)
}

// TestFailoverWithdrawnOffer: one side's port flaps while its offer is in flight, so the peer connects to a
// closed QP. The lane recovers without waiting for a probe's retries.
func TestFailoverWithdrawnOffer(t *testing.T) {
	d, taps := newTappedDuo(t, 1, ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{})
	local, remote := d.hosts[0].Region(4*4096), d.hosts[1].Region(4*4096)
	block := true
	taps[1].pass = func(b []byte) bool { return !block || ctlKindOf(b) != 2 }
	d.kill(0, 0)
	d.post(0, 4, 4096, local, remote)
	lane := func(h int) ibverbx.LaneStats { return d.hosts[h].QP.Stats().Lanes[0] }
	d.until("offered", func() bool { return lane(0).State == "offered" && lane(1).State == "offered" })
	for range 10 {
		d.step()
	}
	d.hosts[0].NICs[0].SetPort(false)
	d.hosts[0].NICs[0].SetPort(true)
	d.until("withdrawn", func() bool { return lane(0).State != "offered" })
	block = false
	start := d.now
	d.until("all lanes are back", d.allUp)
	if took := time.Duration(d.now - start); took > 100*time.Millisecond {
		t.Fatalf("the lanes were back after %v, want less than 100 ms", took)
	}
}

// TestFailoverDeadlineRNR: a SEND without a receive fails at its deadline, and so do later requests, in
// order.
func TestFailoverDeadlineRNR(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: time.Second})
	local, remote := d.hosts[0].Region(8*4096), d.hosts[1].Region(8*4096)
	for i := range 4 {
		send := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		send.SetSGE(local.SGE(0, 8))
		d.hosts[0].PostSend(send)
	}
	d.post(4, 2, 4096, local, remote)
	start := d.now
	d.until("all ended", func() bool { return len(d.got[0]) == 6 })
	if took := time.Duration(d.now - start); took < time.Second || took > 1100*time.Millisecond {
		t.Errorf("they ended after %v, want 1 s", took)
	}
	for i, wc := range d.got[0] {
		if wc.WRID != uint64(i) || wc.Status == verbs.StatusSuccess {
			t.Errorf("completion %d is of %d: %v", i, wc.WRID, wc.Err())
		}
	}
	if err := d.hosts[0].QP.Err(); !errors.Is(err, ibverbx.ErrDeadline) {
		t.Errorf("Err = %v, want %v", err, ibverbx.ErrDeadline)
	}
}

// TestFailoverSharedRails: two goroutines poll two VirtualCQs on the same Rails while ports
// flap.
func TestFailoverSharedRails(t *testing.T) {
	links := enginetest.MemoryLinks(2)
	a, b := enginetest.NewRails(t, links), enginetest.NewRails(t, links)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for k := range 2 {
		x, y := ibverbx.ControlPair()
		left, right := *a, *b // the same Rails, with separate VirtualCQs
		hosts := [2]*enginetest.Host{&left, &right}
		for i, c := range []ibverbx.Control{x, y} {
			hosts[i].NewCQ(ibverbx.CQConfig{})
			hosts[i].NewQP(ibverbx.Config{Lanes: 2, Control: c, Incarnation: uint64(1 + 2*k + i)})
		}
		enginetest.Connect(t, hosts[0].QP, hosts[1].QP)
		local, remote := hosts[0].Region(4096), hosts[1].Region(4096)
		wg.Go(func() {
			var wcs [16]ibverbx.WC
			for {
				select {
				case <-stop:
					return
				default:
				}
				wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Remote: remote.Remote()}
				wr.SetSGE(local.SGE(0, 4096))
				_, _ = hosts[0].QP.PostSend([]ibverbx.SendWR{wr})
				for _, h := range hosts {
					_, _ = h.CQ.Poll(wcs[:])
				}
			}
		})
	}
	for i := range 200 {
		a.NICs[i%2].SetPort(false)
		a.NICs[i%2].SetPort(true)
	}
	close(stop)
	wg.Wait()
}
