package failover_test

import (
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestFailoverSharedData: SENDs use a pool of data receives while lanes and a whole rail are lost and recover. Every message arrives
// once and in order, and afterwards the pool still has every receive: with none posted again, as many messages arrive.
func TestFailoverSharedData(t *testing.T) {
	const receives, size = 8, 64
	wrap := &reliable.Config{Paths: 2}
	for name, wraps := range map[string][]*reliable.Config{"plain": {nil, nil}, "uc": {wrap, wrap}} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDuoOver(t, wraps, ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{SharedData: receives})
			local, remote := d.hosts[0].Region(size), d.hosts[1].Region(receives*size)
			repost := func(ids ...uint64) {
				for _, id := range ids {
					wr := ibverbx.RecvWR{WRID: id}
					wr.SetSGE(remote.SGE(id*size, size))
					if n, err := d.hosts[1].CQ.PostRecv([]ibverbx.RecvWR{wr}); n != 1 {
						t.Fatal(err)
					}
				}
			}
			ids := make([]uint64, receives)
			for i := range ids {
				ids[i] = uint64(i)
			}
			repost(ids...)
			sent := 0
			send := func(n int) {
				for range n {
					wr := ibverbx.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(sent)}
					wr.SetSGE(local.SGE(0, size))
					d.hosts[0].PostSend(wr)
					sent++
				}
			}
			next := 0
			arrived := func() (free []uint64) {
				for ; next < len(d.got[1]); next++ {
					wc := d.got[1][next]
					if wc.Err() != nil || wc.Imm != uint32(next) || wc.QP != d.hosts[1].QP {
						t.Fatalf("message %d: %+v, %v", next, wc, wc.Err())
					}
					free = append(free, wc.WRID)
				}
				return free
			}
			message := len(d.hosts[0].QP.Stats().Lanes) - 1
			for round := range 12 {
				send(6)
				switch round % 4 {
				case 0:
					d.kill(round/4%2, message)
				case 1:
					d.failNIC(1, 0, true)
				case 3:
					d.failNIC(1, 0, false)
				}
				d.until("the messages have arrived", func() bool {
					repost(arrived()...)
					return next == sent
				})
			}
			d.until("the requests have ended and all lanes are up", func() bool { return len(d.got[0]) == sent && d.allUp() })
			send(receives)
			var last []uint64
			d.until("every receive has a message", func() bool {
				last = append(last, arrived()...)
				return len(last) == receives
			})
			if slices.Sort(last); !slices.Equal(last, ids) {
				t.Errorf("receives %v were left, want all of %v", last, ids)
			}
		})
	}
}

// TestFailoverSharedDataScarceQPs: while a device has no QP for the message lane, each attempt to rebuild the lane returns the SRQ that
// it made. Afterwards messages arrive again.
func TestFailoverSharedDataScarceQPs(t *testing.T) {
	s := &scarcity{}
	over := func(_ int, nic verbs.Context) verbs.Context { return &scarceContext{nic, s} }
	d, _ := newStrangers(t, over, []*reliable.Config{nil}, ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{SharedData: 2})
	enginetest.Connect(t, d.hosts[0].QP, d.hosts[1].QP)
	local, remote := d.hosts[0].Region(8), d.hosts[1].Region(8)
	recv, send := ibverbx.RecvWR{}, ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	recv.SetSGE(remote.SGE(0, 8))
	send.SetSGE(local.SGE(0, 8))
	if n, err := d.hosts[1].CQ.PostRecv([]ibverbx.RecvWR{recv}); n != 1 {
		t.Fatal(err)
	}
	s.refuse = true
	d.kill(1, len(d.hosts[1].QP.Stats().Lanes)-1)
	d.until("20 attempts have failed", func() bool { return s.refused >= 20 })
	if n := s.open(); n > 4 {
		t.Errorf("%d SRQs are open on two hosts, want at most two on each", n)
	}
	s.refuse = false
	d.until("the lane is up", d.allUp)
	d.hosts[0].PostSend(send)
	d.until("a message has arrived", func() bool { return len(d.got[1]) == 1 })
}

// scarcity limits the QPs with an SRQ that devices can create.
type scarcity struct {
	refuse  bool
	refused int
	srqs    []verbs.SRQ // all SRQs ever created
}

// open counts the SRQs that exist.
func (s *scarcity) open() (n int) {
	for _, srq := range s.srqs {
		if srq.SetLimit(0) == nil {
			n++
		}
	}
	return n
}

type scarceContext struct {
	verbs.Context
	s *scarcity
}

func (x *scarceContext) AllocPD() (verbs.PD, error) {
	pd, err := x.Context.AllocPD()
	return &scarcePD{pd, x.s}, err
}

type scarcePD struct {
	verbs.PD
	s *scarcity
}

func (d *scarcePD) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	srq, err := d.PD.CreateSRQ(cfg)
	if err == nil {
		d.s.srqs = append(d.s.srqs, srq)
	}
	return srq, err
}

func (d *scarcePD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	if cfg.SRQ != nil && d.s.refuse {
		d.s.refused++
		return nil, verbs.ErrLimit
	}
	return d.PD.CreateQP(cfg)
}
