package engine_test

import (
	"fmt"
	"os"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestSharedData: two VirtualQPs share four data receives, far fewer than the messages, which wait
// for them. Each VirtualQP receives its own messages in order. A third VirtualQP is closed
// meanwhile.
func TestSharedData(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	const receives, messages, size = 4, 40, 256
	for _, rails := range []int{1, 2} {
		for _, lanes := range []int{1, 2} {
			t.Run(fmt.Sprintf("rails=%d/lanes=%d", rails, lanes), func(t *testing.T) {
				a, b := open(t, []string{"rxe0", "rxe2"}[:rails]), open(t, []string{"rxe1", "rxe3"}[:rails])
				a.NewCQ(ibverbx.CQConfig{Depth: 4096})
				b.NewCQ(ibverbx.CQConfig{Depth: 4096, SharedData: receives})
				local, remote := a.Region(size), b.Region(receives*size)
				repost := func(id uint64) {
					wr := ibverbx.RecvWR{WRID: id}
					wr.SetSGE(remote.SGE(id*size, size))
					if n, err := b.CQ.PostRecv([]ibverbx.RecvWR{wr}); n != 1 {
						t.Fatal(err)
					}
				}
				for id := range uint64(receives) {
					repost(id)
				}
				cfg := ibverbx.Config{Lanes: lanes, LaneDepth: 64, NotifyDepth: 16}
				send := func(q *ibverbx.VirtualQP, k int) {
					wr := ibverbx.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(k)}
					wr.SetSGE(local.SGE(0, size))
					if n, err := q.PostSend([]ibverbx.SendWR{wr}); n != 1 {
						t.Fatal(err)
					}
				}
				next := map[*ibverbx.VirtualQP]int{}
				for range 2 {
					qa, qb := a.NewQP(cfg), b.NewQP(cfg)
					enginetest.Connect(t, qa, qb)
					next[qb] = 0
					for k := range messages {
						send(qa, k)
					}
				}
				closing, err := b.CQ.NewQP(cfg)
				enginetest.Must(t, err)
				enginetest.Connect(t, a.NewQP(cfg), closing)
				enginetest.Must(t, closing.Close())
				got, sent := 0, 0
				wcs := make([]ibverbx.WC, 16)
				poll(t, "all messages", func() bool {
					n, err := a.CQ.Poll(wcs)
					enginetest.Must(t, err)
					sent += n
					n, err = b.CQ.Poll(wcs)
					enginetest.Must(t, err)
					for _, wc := range wcs[:n] {
						if wc.Err() != nil || int(wc.Imm) != next[wc.QP] || wc.ByteLen != size {
							t.Fatalf("completion %+v, %v; want message %d", wc, wc.Err(), next[wc.QP])
						}
						next[wc.QP]++
						got++
						repost(wc.WRID)
					}
					return got == 2*messages && sent == 2*messages
				})
			})
		}
	}
}
