package failover_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// observe reads all state of hosts that any goroutine may read, until stop is called. Counters must not
// decrease, and completions must not exceed posts.
func observe(t *testing.T, hosts ...*enginetest.Host) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last := make([]ibverbx.Stats, len(hosts))
		for {
			select {
			case <-end:
				return
			default:
			}
			for i, h := range hosts {
				s := h.QP.Stats()
				_, _ = h.CQ.Stats(), h.QP.Err()
				if s.Posted < last[i].Posted || s.Completed < last[i].Completed || s.Completed > s.Posted || s.RecvCompleted > s.RecvPosted {
					t.Errorf("Stats = %+v after %+v", s, last[i])
				}
				last[i] = s
			}
		}
	}()
	return func() { close(end); <-ended }
}

// TestStatsFromAnotherGoroutine: a metrics goroutine reads Stats and Err while requests run, lanes are lost
// and rebuilt, and the VirtualQP fails and is closed. The race detector checks the accesses.
func TestStatsFromAnotherGoroutine(t *testing.T) {
	for name, c := range map[string]struct {
		lanes int
		wraps []*reliable.Config
	}{
		"one lane":               {1, make([]*reliable.Config, 1)},
		"four lanes":             {4, make([]*reliable.Config, 2)},
		"four lanes on reliable": {4, []*reliable.Config{{Paths: 4}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDuoOver(t, c.wraps, ibverbx.Config{Lanes: c.lanes, FragmentSize: 1000}, ibverbx.CQConfig{Waker: verbs.NewWaker()})
			stop := observe(t, d.hosts[:]...)
			defer stop()
			local, remote := d.hosts[0].Region(64<<10), d.hosts[1].Region(64<<10)
			const count = 8
			for round := range 4 {
				d.post(round*count, count, 2000, local, remote)
				enginetest.Must(t, d.hosts[round%2].QP.KillLane(round%c.lanes))
				d.until("all ended and all lanes are up", func() bool { return d.allUp() && len(d.got[0]) == (round+1)*count })
			}
			d.hosts[0].NICs[len(c.wraps)-1].SetPort(false)
			d.until("a rail is lost", func() bool { return d.hosts[0].QP.Stats().Out > 0 })
			enginetest.Must(t, d.hosts[0].QP.Close())
			d.until("the peer has failed", func() bool { return d.hosts[1].QP.Err() != nil })
		})
	}
	t.Run("straight through", func(t *testing.T) {
		a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 1})
		stop := observe(t, a, b)
		defer stop()
		local, remote := a.Region(64), b.Region(64)
		for id := range uint64(200) {
			b.PostRecv(ibverbx.RecvWR{WRID: id})
			wr := ibverbx.SendWR{WRID: id, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 64))
			a.PostSend(wr)
			a.Wait(1)
			b.Wait(1)
		}
		b.PostRecv(ibverbx.RecvWR{WRID: 1})
		enginetest.Must(t, b.QP.KillLane(0))
		b.Wait(1)
		enginetest.Must(t, b.QP.Close())
	})
}
