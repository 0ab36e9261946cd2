package failover_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// pump posts messages of 8 KiB, at most eight in flight, until done of them have completed at both ends.
func (d *duo) pump(posted *int, done int, local, remote *ibverbx.Region) {
	d.t.Helper()
	d.until("messages are done", func() bool {
		for *posted < done && *posted-min(len(d.got[0]), len(d.got[1])) < 8 {
			d.post(*posted, 1, 8<<10, local, remote)
			*posted++
		}
		return len(d.got[0]) == done && len(d.got[1]) == done
	})
}

// TestWindowAfterTakeover repeatedly loses lanes with messages in flight, with more than a window of messages
// in between. If a lost lane leaked a slot of the receiver's window, or one of its receives, the traffic
// would stop.
func TestWindowAfterTakeover(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		const rounds, each, size = 24, 40, 8 << 10
		d := newDuo(t, 2, ibverbx.Config{
			Scheme: scheme, Lanes: 4, FragmentSize: 2048, LaneDepth: 8, NotifyDepth: 8, SendDepth: 16, RecvDepth: 16,
		})
		const messages = rounds * each
		local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
		enginetest.Fill(local.Bytes(), uint64(scheme)+1)
		posted := 0
		for round := range rounds {
			half := round*each + each/2
			d.until("messages are in flight", func() bool {
				for posted < half+8 && posted-min(len(d.got[0]), len(d.got[1])) < 8 {
					d.post(posted, 1, size, local, remote)
					posted++
				}
				return len(d.got[1]) >= half
			})
			d.kill(round&1, round%4)
			d.pump(&posted, (round+1)*each, local, remote)
			d.until("the lane is back", d.allUp)
		}
		d.check(messages, local, remote)
		if deaths := d.hosts[0].QP.Stats().Lanes[0].Deaths; deaths < rounds/4 {
			t.Errorf("lane 0 died %d times, want at least %d: nothing was tried", deaths, rounds/4)
		}
	})
}

// TestReplacedCQ breaks a rail's CQ with messages in flight. The CQ is replaced, its lanes are rebuilt on the
// new one, all messages arrive, and the old CQ is closed.
func TestReplacedCQ(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for side := range 2 {
			const messages, size = 120, 8 << 10
			d := newDuo(t, 2, ibverbx.Config{Scheme: scheme, Lanes: 4, FragmentSize: 2048})
			local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
			enginetest.Fill(local.Bytes(), 3)
			posted := 0
			d.pump(&posted, 20, local, remote)
			d.post(posted, 6, size, local, remote)
			posted += 6
			d.step()
			h := d.hosts[side]
			old, err := h.CQ.CQ(1)
			enginetest.Must(t, err)
			enginetest.Must(t, h.NICs[1].FailCQ(old))
			d.pump(&posted, 60, local, remote)
			d.until("the rail is back", d.allUp)
			if now, err := h.CQ.CQ(1); now == old || err != nil {
				t.Fatal("the CQ that failed is still in use")
			}
			wantClosed(t, old)
			before := h.QP.Stats().Rails[1].Bytes
			d.pump(&posted, messages, local, remote)
			d.check(messages, local, remote)
			if side == 0 && h.QP.Stats().Rails[1].Bytes == before {
				t.Error("rail 1 has carried nothing since its CQ was replaced")
			}
			enginetest.Must(t, h.QP.Close())
			enginetest.Must(t, h.CQ.Close())
		}
	})
}

// wantClosed checks that a replaced CQ is closed.
func wantClosed(t *testing.T, replaced verbs.CQ) {
	t.Helper()
	var wcs [1]verbs.WC
	if _, err := replaced.Poll(wcs[:]); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the CQ that was replaced: Poll without QPs on it = %v, want %v", err, verbs.ErrClosed)
	}
}

// TestReplacedCQOfFailedQP: a rail's CQ breaks with a request on it whose VirtualQP has failed, and is replaced for another VirtualQP.
// The request is flushed, although its completion was lost.
func TestReplacedCQOfFailedQP(t *testing.T) {
	t.Run("alone", func(t *testing.T) { replacedCQOfFailedQP(t, true) })
	t.Run("beside another", func(t *testing.T) { replacedCQOfFailedQP(t, false) })
}

func replacedCQOfFailedQP(t *testing.T, alone bool) {
	cfg := ibverbx.Config{Lanes: 2, FragmentSize: 4096}
	d := newDuo(t, 2, cfg)
	var ends [2]ibverbx.Control
	var others [2]*ibverbx.VirtualQP
	if !alone {
		ends[0], ends[1] = ibverbx.ControlPair()
		for i, h := range d.hosts {
			cfg.Control, cfg.Now, cfg.Incarnation = ends[i], func() int64 { return d.now }, uint64(200+i)
			others[i] = h.NewQP(cfg)
		}
		enginetest.Connect(t, others[0], others[1])
	}
	d.step()
	h := d.hosts[0]
	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: d.hosts[1].Region(8192).Remote()}
	wr.SetSGE(h.Region(8192).SGE(0, 8192))
	h.PostSend(wr)
	poll := func() { // runs failover without reading a CQ
		_, err := h.CQ.Poll(nil)
		enginetest.Must(t, err)
	}
	enginetest.Must(t, d.hosts[1].QP.Close())
	poll() // learns that the peer is gone, and waits for its last acknowledgments
	broken, err := h.CQ.CQ(1)
	enginetest.Must(t, err)
	enginetest.Must(t, h.NICs[1].FailCQ(broken))
	d.now += int64(2 * time.Second)
	poll()
	if h.QP.Err() == nil {
		t.Fatal("the VirtualQP has not failed")
	}
	var lost [16]verbs.WC // softnic keeps them in a CQ that overruns, unlike other NICs
	if n, err := broken.Poll(lost[:]); n == 0 {
		t.Fatalf("Poll = %d, %v; want the flushed request", n, err)
	}
	d.until("the request has ended", func() bool { return len(d.got[0]) == 1 })
	if err := d.got[0][0].Err(); !errors.Is(err, ibverbx.ErrPeerGone) {
		t.Errorf("Err = %v, want %v", err, ibverbx.ErrPeerGone)
	}
	d.until("the other VirtualQP is back", func() bool { return alone || others[0].Stats().Out == 0 && others[1].Stats().Out == 0 })
	enginetest.Must(t, h.QP.Close())
	wantClosed(t, broken)
}
