package traffic_test

import (
	"log/slog"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestSharedDataLateCompletion: a receive whose completion is processed after its VirtualQP was closed serves the others,
// even without any other completion.
func TestSharedDataLateCompletion(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		p := newPooled(t, enginetest.MemoryLinks(1), bare, 1, 2, ibverbx.Config{Lanes: lanes})
		p.send(0)
		cq, err := p.server.CQ.CQ(0)
		enginetest.Must(t, err)
		var wcs [4]verbs.WC
		n := 0
		for turn := 0; n == 0; turn++ {
			if turn > 1_000_000 {
				t.Fatal("the message did not arrive")
			}
			p.clients[0].Poll()
			n, err = cq.Poll(wcs[:])
			enginetest.Must(t, err)
		}
		enginetest.Must(t, p.at[0].Close())
		if n, err := p.server.CQ.ProcessCompletions(0, wcs[:n], make([]ibverbx.WC, 4)); n != 0 || err != nil {
			t.Errorf("%d lanes: ProcessCompletions = %d, %v; want no completion of a closed VirtualQP", lanes, n, err)
		}
		p.send(1)
		for turn := 0; p.got[1] == 0; turn++ {
			if turn > 1_000_000 {
				t.Fatalf("%d lanes: the other VirtualQP gets no receive", lanes)
			}
			for _, wc := range p.server.Poll() {
				if wc.QP == p.at[1] && wc.Status == verbs.StatusSuccess {
					p.got[1]++
				}
			}
			p.clients[1].Poll()
		}
	}
}

// TestSharedDataCloseQuietly: closing a working VirtualQP is not a failure, even though it drains the lanes.
func TestSharedDataCloseQuietly(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, nil))
		p := newPooled(t, enginetest.MemoryLinks(1), bare, 2, 2, ibverbx.Config{Lanes: lanes, Log: log})
		wr := ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(p.buffers.SGE(0, 8))
		if n, err := p.at[0].PostSend([]ibverbx.SendWR{wr}); n != 1 { // the client has no receive
			t.Fatal(err)
		}
		enginetest.Must(t, p.at[0].Close())
		if text.Len() > 0 || p.at[0].Err() != nil {
			t.Errorf("%d lanes: Close logged %q, and the error is %v", lanes, text.String(), p.at[0].Err())
		}
	}
}
