package failover_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestSharedReceivesOfAbandonedLane: a peer loses a lane and closes its VirtualQP, and this side learns of both before it polls the
// messages that the lane had delivered. Their receives return to the SRQ: the next VirtualQP gets as many messages as ever.
func TestSharedReceivesOfAbandonedLane(t *testing.T) {
	cfg := ibverbx.Config{Lanes: 1, Deadline: time.Second}
	d, _ := newTappedDuo(t, 1, cfg, ibverbx.CQConfig{SharedReceives: 4})
	local, remote := d.hosts[0].Region(64), d.hosts[1].Region(64)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 8))
	d.hosts[0].PostSend(wr, wr, wr)
	for range 6 { // host 1 does not poll
		d.now += int64(20 * time.Microsecond)
		d.links[0].Step()
	}
	d.kill(0, 0)
	for d.hosts[0].QP.Stats().Lanes[0].State != "gone" {
		d.hosts[0].Poll()
	}
	enginetest.Must(t, d.hosts[0].QP.Close())
	_, err := d.hosts[1].CQ.Poll(nil) // reads the control messages and no CQ
	enginetest.Must(t, err)
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
