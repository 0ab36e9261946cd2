package softnic_test

import (
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestProbe: when everything but the first packets of a message is lost, the receiver cannot report it. A
// probe detects the loss long before the QP's timeout of 67 ms, without consuming a retry.
func TestProbe(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			w := newWorld(t, softnic.FaultConfig{ProbeAfter: 2 * time.Millisecond, Impairment: softnic.Impairment{Delay: 10 * time.Microsecond}})
			r := newRig(t, w.link)
			_, src := memory(t, r.pa, mib)
			_, dst := memory(t, r.pb, mib)
			cq := newCQ(t, r.ca, 4)
			qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 4), 4)
			w.link.Cut(r.a, r.b)
			wr := writeWR(src, dst, 100*4096)
			wr.Opcode = op
			if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatalf("PostSend: %v", err)
			}
			w.link.Restore(r.a, r.b)
			for len(poll(t, cq)) == 0 {
				next, pending := w.link.Step()
				if !pending {
					t.Fatal("nothing is pending and the request has not completed")
				}
				w.now = max(w.now, next)
			}
			stats := r.a.Stats()
			if took := time.Duration(w.now); took > 5*time.Millisecond || stats.Timeouts != 0 || stats.Probes == 0 {
				t.Errorf("took %v with %d probes and %d timeouts, want at most 5 ms, some and none", took, stats.Probes, stats.Timeouts)
			}
		})
	}
}

// TestProbesKeepTheDeadline: probes neither shorten nor lengthen the time until a dead peer is reported.
func TestProbesKeepTheDeadline(t *testing.T) {
	took := func(probe time.Duration) int64 {
		w := newWorld(t, softnic.FaultConfig{ProbeAfter: probe})
		r := newRig(t, w.link)
		w.link.Cut(r.a, r.b)
		if got := r.write(w); got.Status != verbs.StatusRetryExcErr {
			t.Errorf("write over a cut link = %v, want %v", got.Status, verbs.StatusRetryExcErr)
		}
		return w.now
	}
	if with, without := took(2*time.Millisecond), took(0); with != without {
		t.Errorf("gave up after %v with probes, %v without, want the same", time.Duration(with), time.Duration(without))
	}
}
