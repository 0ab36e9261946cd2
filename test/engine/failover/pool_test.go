package failover_test

import (
	"slices"
	"testing"

	"ibverbx"
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
			d.until("the requests have ended and all lanes are up", func() bool { return len(d.got[0]) == sent && d.up() })
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
