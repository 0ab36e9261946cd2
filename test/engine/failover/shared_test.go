package failover_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// newUnpolledDuo returns a duo with four shared receives on one rail. Host 0 has sent three messages, which host 1 has not polled.
func newUnpolledDuo(t *testing.T, cfg ibverbx.Config) (d *duo, local, remote *ibverbx.Region) {
	d, _ = newTappedDuo(t, 1, cfg, ibverbx.CQConfig{SharedReceives: 4})
	local, remote = d.hosts[0].Region(64), d.hosts[1].Region(64)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 8))
	d.hosts[0].PostSend(wr, wr, wr)
	for range 6 {
		d.now += int64(20 * time.Microsecond)
		d.links[0].Step()
	}
	return d, local, remote
}

// TestSharedReceivesOfAbandonedLane: a peer loses a lane and closes its VirtualQP, and this side learns of both before it polls the
// messages that the lane had delivered. Their receives return to the SRQ: the next VirtualQP gets as many messages as ever.
func TestSharedReceivesOfAbandonedLane(t *testing.T) {
	cfg := ibverbx.Config{Lanes: 1, Deadline: time.Second}
	d, local, remote := newUnpolledDuo(t, cfg)
	d.kill(0, 0)
	for d.hosts[0].QP.Stats().Lanes[0].State != "gone" {
		d.hosts[0].Poll()
	}
	enginetest.Must(t, d.hosts[0].QP.Close())
	for range 2 {
		_, err := d.hosts[1].CQ.Poll(nil) // reads the control messages and no CQ
		enginetest.Must(t, err)
		d.now += int64(2 * time.Second)
	}
	if d.hosts[1].QP.Err() == nil {
		t.Fatal("the VirtualQP does not know that its peer is gone")
	}
	d.replace(cfg)
	d.exchangeRound(1, local, remote)
}

// replace closes the VirtualQPs and connects new ones on the same VirtualCQs.
func (d *duo) replace(cfg ibverbx.Config) {
	d.t.Helper()
	var ends [2]ibverbx.Control
	ends[0], ends[1] = ibverbx.ControlPair()
	for i, h := range d.hosts {
		enginetest.Must(d.t, h.QP.Close())
		h.QP = nil
		cfg.Control, cfg.Now, cfg.Incarnation = ends[i], func() int64 { return d.now }, uint64(200+i)
		h.NewQP(cfg)
	}
	enginetest.Connect(d.t, d.hosts[0].QP, d.hosts[1].QP)
}

// TestSharedReceivesOfReplacedCQ: a CQ overruns and loses the completions of shared receives. After its replacement, the rail has as
// many receives as before.
func TestSharedReceivesOfReplacedCQ(t *testing.T) {
	cfg := ibverbx.Config{Lanes: 1, Deadline: time.Second}
	d, local, remote := newUnpolledDuo(t, cfg)
	h := d.hosts[1]
	broken, err := h.CQ.CQ(0)
	enginetest.Must(t, err)
	var lost [8]verbs.WC // softnic keeps them in a CQ that overruns, unlike other NICs
	if n, err := broken.Poll(lost[:]); n != 3 {
		t.Fatalf("Poll = %d, %v; want the receives of three messages", n, err)
	}
	enginetest.Must(t, h.NICs[0].FailCQ(broken))
	d.until("the CQ is replaced", func() bool {
		now, err := h.CQ.CQ(0)
		enginetest.Must(t, err)
		return now != broken
	})
	d.replace(cfg) // the lost messages had been acknowledged
	wantClosed(t, broken)
	d.exchangeRound(1, local, remote)
}
