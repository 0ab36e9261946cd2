package ibverbx_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// The notify lane is on a rail that has no data lane, and dies with the data lane.
func TestFailoverNotifyAlone(t *testing.T) {
	d := newDuo(t, 3, ibverbx.Config{Lanes: 1, Scheme: ibverbx.Spray})
	local, remote := d.hosts[0].region(4*4096), d.hosts[1].region(4*4096)
	fillRandom(local, 1)
	d.kill(0, 0)
	d.kill(0, 2)
	d.post(0, 4, 4096, local, remote)
	for end := d.now + int64(20*time.Second); len(d.got[0]) < 4 || !d.up(); d.step() {
		if d.now > end {
			t.Fatalf("after 20 s: %d of 4 complete, notify lane %s and %s, want up", len(d.got[0]),
				d.hosts[0].qp.Stats().Lanes[2].State, d.hosts[1].qp.Stats().Lanes[2].State)
		}
	}
	d.check(4, local, remote)
}

// A device that fails while records of it are in the CQ takes its lanes along, and
// nothing else. With and without shared receives.
func TestFailoverDeviceFailsAtReceiver(t *testing.T) {
	for _, shared := range []int{0, 2} {
		d, _ := newDuoTapped(t, 2, ibverbx.Config{Lanes: 2, NotifyDepth: 1}, ibverbx.CQConfig{SharedReceives: shared})
		const messages, size = 4, 65536
		local, remote := d.hosts[0].region(messages*size), d.hosts[1].region(messages*size)
		fillRandom(local, 1)
		d.post(0, messages, size, local, remote)
		for range 6 { // host 1 does not poll
			d.now += int64(20 * time.Microsecond)
			d.links[0].Step()
			d.links[1].Step()
		}
		d.hosts[1].nics[1].Fail()
		recv := ibverbx.RecvWR{WRID: 99}
		recv.SetSGE(remote.SGE(0, 8))
		post1(t, d.hosts[1], &recv)
		d.until("all complete", func() bool {
			return (len(d.got[0]) == messages && len(d.got[1]) == messages) || d.hosts[1].qp.Err() != nil
		})
		if err := d.hosts[1].qp.Err(); err != nil {
			t.Fatalf("shared %d: Err = %v, want nil", shared, err)
		}
		d.check(messages, local, remote)
		d.hosts[1].nics[1].Recover()
		d.until("all lanes are back", d.up)
	}
}

// A data receive is taken while the device of the message lane is lost.
func TestFailoverPostRecvOnDeadDevice(t *testing.T) {
	d := newDuo(t, 2, ibverbx.Config{Lanes: 2})
	remote := d.hosts[1].region(64)
	d.hosts[1].nics[0].Fail()
	recv := ibverbx.RecvWR{WRID: 99}
	recv.SetSGE(remote.SGE(0, 8))
	if n, err := d.hosts[1].qp.PostRecv([]ibverbx.RecvWR{recv}); n != 1 || err != nil {
		t.Fatalf("PostRecv = %d, %v, want it taken: it is posted with the next generation", n, err)
	}
}

// The port of one side flaps while its offer is on its way: the peer is connected to a
// QP that is gone. The lane comes back without waiting for the retries of a probe.
func TestFailoverWithdrawnOffer(t *testing.T) {
	d, taps := newDuoTapped(t, 1, ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{})
	local, remote := d.hosts[0].region(4*4096), d.hosts[1].region(4*4096)
	block := true
	taps[1].pass = func(b []byte) bool { return !block || ctlKindOf(b) != 2 }
	d.kill(0, 0)
	d.post(0, 4, 4096, local, remote)
	lane := func(h int) ibverbx.LaneStats { return d.hosts[h].qp.Stats().Lanes[0] }
	d.until("offered", func() bool { return lane(0).State == "offered" && lane(1).State == "offered" })
	for range 10 {
		d.step()
	}
	d.hosts[0].nics[0].SetPort(false)
	d.hosts[0].nics[0].SetPort(true)
	d.until("withdrawn", func() bool { return lane(0).State != "offered" })
	block = false
	start := d.now
	d.until("all lanes are back", d.up)
	if took := time.Duration(d.now - start); took > 100*time.Millisecond {
		t.Fatalf("the lanes were back after %v, want less than 100 ms", took)
	}
}

// A SEND that nobody receives ends at its deadline, and what is behind it, in order.
func TestFailoverDeadlineRNR(t *testing.T) {
	d := newDuo(t, 1, ibverbx.Config{Lanes: 2, Deadline: time.Second})
	local, remote := d.hosts[0].region(8*4096), d.hosts[1].region(8*4096)
	for i := range 4 {
		send := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		send.SetSGE(local.SGE(0, 8))
		if k, err := d.hosts[0].qp.PostSend([]ibverbx.SendWR{send}); k != 1 {
			t.Fatal(err)
		}
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
	if err := d.hosts[0].qp.Err(); !errors.Is(err, ibverbx.ErrDeadline) {
		t.Errorf("Err = %v, want %v", err, ibverbx.ErrDeadline)
	}
}

// A VirtualQP that is made anew on the same Control does not believe the old one's
// messages, and the old one ends.
func TestFailoverPeerRestart(t *testing.T) {
	d, taps := newDuoTapped(t, 2, ibverbx.Config{Lanes: 2, Deadline: 5 * time.Second}, ibverbx.CQConfig{})
	local, remote := d.hosts[0].region(4*4096), d.hosts[1].region(4*4096)
	taps[1].pass = func([]byte) bool { return false } // a crash says nothing
	must(t, d.hosts[1].qp.Close())
	taps[1].pass = nil
	var err error
	d.hosts[1].qp, err = d.hosts[1].cq.NewQP(ibverbx.Config{Lanes: 2, Control: taps[1], Now: func() int64 { return d.now }, Incarnation: 555})
	must(t, err)
	fresh := d.hosts[1].qp
	t.Cleanup(func() { must(t, fresh.Close()) })
	card, err := d.hosts[0].qp.Card()
	must(t, err)
	card.Incarnation = 777 // the peer of the new one is not up yet
	must(t, fresh.Connect(card))
	d.post(0, 4, 4096, local, remote)
	d.until("the old one ends", func() bool { return len(d.got[0]) == 4 })
	if err := d.hosts[0].qp.Err(); !errors.Is(err, ibverbx.ErrPeerGone) {
		t.Errorf("Err = %v, want %v", err, ibverbx.ErrPeerGone)
	}
	if err := fresh.Err(); err != nil {
		t.Errorf("Err of the new one = %v, want nil", err)
	}
}

// Two VirtualCQs that share Rails are polled by two goroutines while ports flap.
func TestFailoverSharedRails(t *testing.T) {
	links := memoryLinks(2)
	a, b := newRails(t, links), newRails(t, links)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for k := range 2 {
		x, y := ibverbx.ControlPair(nil, nil)
		hosts := [2]*host{{tb: t, rails: a.rails}, {tb: t, rails: b.rails}}
		var err error
		for i, c := range []ibverbx.Control{x, y} {
			h := hosts[i]
			h.cq, err = h.rails.NewCQ(ibverbx.CQConfig{})
			must(t, err)
			t.Cleanup(func() { must(t, h.cq.Close()) })
			h.qp, err = h.cq.NewQP(ibverbx.Config{Lanes: 2, Control: c, Incarnation: uint64(1 + 2*k + i)})
			must(t, err)
			t.Cleanup(func() { must(t, h.qp.Close()) })
		}
		connectQPs(t, hosts[0].qp, hosts[1].qp)
		local, remote := hosts[0].region(4096), hosts[1].region(4096)
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
				_, _ = hosts[0].qp.PostSend([]ibverbx.SendWR{wr})
				for _, h := range hosts {
					_, _ = h.cq.Poll(wcs[:])
				}
			}
		})
	}
	for i := range 200 {
		a.nics[i%2].SetPort(false)
		a.nics[i%2].SetPort(true)
	}
	close(stop)
	wg.Wait()
}

// Flags that nobody knows are not read over.
func TestFailoverUnknownFlags(t *testing.T) {
	for kind := byte(1); kind <= 3; kind++ {
		b := goodControl(kind, 0)
		b[11] = 0x80
		if _, err := ibverbx.ControlRoundTrip(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("kind %d with unknown flags: %v, want %v", kind, err, verbs.ErrInvalid)
		}
	}
}
