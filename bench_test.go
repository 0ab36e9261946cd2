package ibverbx_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// messageBatch is how many requests a benchmark posts before it polls them all.
const messageBatch = 64

// BenchmarkMessage measures what the engine adds to a request, over a NIC that does
// nothing: 64 posted, then all polled.
func BenchmarkMessage(b *testing.B) {
	for _, lanes := range []int{1, 4, 16, 128} {
		for _, frags := range []int{1, 4, 16} {
			if lanes == 1 && frags > 1 {
				continue // it passes through
			}
			b.Run(fmt.Sprintf("op=write/lanes=%d/frags=%d/side=send", lanes, frags), func(b *testing.B) {
				benchMessage(b, lanes, frags)
			})
		}
	}
}

func benchMessage(b *testing.B, lanes, frags int) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	must(b, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	must(b, err)
	const fragment = 4096
	q, err := cq.NewQP(ibverbx.Config{Lanes: lanes, FragmentSize: fragment, LaneDepth: 256})
	must(b, err)
	card, err := q.Card()
	must(b, err)
	must(b, q.Connect(card))
	mem, err := verbs.AllocMemory(frags*fragment, nil)
	must(b, err)
	region, err := rails.Register(mem, verbs.AccessAll)
	must(b, err)
	wrs := make([]ibverbx.SendWR, messageBatch)
	for i := range wrs {
		wrs[i] = ibverbx.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: region.Remote()}
		wrs[i].SetSGE(region.SGE(0, uint32(frags*fragment)))
	}
	wcs := make([]ibverbx.WC, messageBatch)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += messageBatch {
		for left := wrs; len(left) > 0; {
			n, err := q.PostSend(left)
			if err != nil && n == 0 {
				b.Fatal(err)
			}
			left = left[n:]
		}
		for left := messageBatch; left > 0; {
			n, err := cq.Poll(wcs)
			if err != nil {
				b.Fatal(err)
			}
			left -= n
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/msg")
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
