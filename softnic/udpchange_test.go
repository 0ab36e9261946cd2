//go:build linux && !heapmem

package softnic_test

import (
	"sync"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// A READ of memory being written concurrently is answered: the ICRC covers the bytes actually sent. (The race
// detector would complain about memory on the Go heap.)
func TestUDPReadOfChangingMemory(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{})
	_, dst := memory(t, u.pa, 64*kib)
	src, srcMR := memory(t, u.pb, 64*kib)
	cq := newCQ(t, u.ca, 16)
	qa, _ := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 16)
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for k := 0; ; k++ {
			select {
			case <-stop:
				return
			default:
				src.Bytes()[k%src.Len()]++
			}
		}
	})
	wr := writeWR(dst, srcMR, 64*kib)
	wr.Opcode = verbs.OpRDMARead
	for range 50 {
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatalf("PostSend: %v", err)
		}
		succeeded(t, await(t, cq, 1))
	}
	close(stop)
	done.Wait()
	if s := u.a.Stats(); s.BadICRC != 0 {
		t.Errorf("%d packets with a bad ICRC, want 0", s.BadICRC)
	}
}
