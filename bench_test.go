package ibverbx_test

import (
	"errors"
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
	for _, scheme := range schemes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			for _, lanes := range []int{1, 4, 16, 128} {
				for _, frags := range []int{1, 4, 16} {
					if lanes == 1 && frags > 1 {
						continue // it passes through
					}
					name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "write", verbs.OpRDMAWriteWithImm: "writeimm"}[op]
					b.Run(fmt.Sprintf("scheme=%s/op=%s/lanes=%d/frags=%d/side=send", scheme, name, lanes, frags), func(b *testing.B) {
						benchMessage(b, scheme, op, lanes, frags)
					})
				}
			}
		}
	}
}

func benchMessage(b *testing.B, scheme ibverbx.Scheme, op verbs.Opcode, lanes, frags int) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	must(b, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	must(b, err)
	const fragment = 4096
	q, err := cq.NewQP(ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: fragment, LaneDepth: 256})
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
		wrs[i] = ibverbx.SendWR{ID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Remote: region.Remote()}
		wrs[i].SetSGE(region.SGE(0, uint32(frags*fragment)))
	}
	wcs := make([]ibverbx.WC, messageBatch)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += messageBatch {
		polled := 0
		for left := wrs; len(left) > 0; {
			n, err := q.PostSend(left)
			if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				b.Fatal(err)
			}
			if left = left[n:]; len(left) > 0 {
				polled += pollAll(b, cq, wcs)
			}
		}
		for polled < messageBatch {
			polled += pollAll(b, cq, wcs)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/msg")
}

func pollAll(b *testing.B, cq *ibverbx.VirtualCQ, wcs []ibverbx.WC) int {
	n, err := cq.Poll(wcs)
	if err != nil || (n > 0 && wcs[0].Status != verbs.StatusSuccess) {
		b.Fatal(err, wcs[0].Err())
	}
	return n
}

// BenchmarkNullNIC is the floor: the same chains posted and polled without the engine.
func BenchmarkNullNIC(b *testing.B) {
	nic := nullnic.New("null0", 0x11)
	cq, err := nic.CreateCQ(verbs.CQConfig{Depth: 4 * messageBatch})
	must(b, err)
	pd, err := nic.AllocPD()
	must(b, err)
	q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
	must(b, err)
	end, err := q.Endpoint()
	must(b, err)
	must(b, q.Connect(end))
	wrs, wcs := make([]verbs.SendWR, messageBatch), make([]verbs.WC, messageBatch)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += messageBatch {
		if n, err := q.PostSend(wrs); n != messageBatch {
			b.Fatal(err)
		}
		if n, err := cq.Poll(wcs); n != messageBatch {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/msg")
}

// BenchmarkPollEmpty polls a VirtualCQ with nothing in it.
func BenchmarkPollEmpty(b *testing.B) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	must(b, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	must(b, err)
	wcs := make([]ibverbx.WC, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := cq.Poll(wcs); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
