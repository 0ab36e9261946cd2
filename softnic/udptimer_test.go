//go:build linux

package softnic

import (
	"sync"
	"testing"
	"time"

	"ibverbx/verbs"
)

// ask posts a WRITE to the besieged NIC's nonexistent peer.
func (s *besieged) ask(t *testing.T) *qp {
	t.Helper()
	q := s.qps[0]
	_, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}})
	check(t, err)
	return q
}

// TestUDPTimersOfBusyNICs: a goroutine reads all the time, as polling programs do. A silent peer still times
// out.
func TestUDPTimersOfBusyNICs(t *testing.T) {
	s := newBesieged(t)
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			s.nic.udp.reading.Lock()
			time.Sleep(time.Millisecond)
			s.nic.udp.reading.Unlock()
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	q := s.ask(t)
	for deadline := time.Now().Add(2 * time.Minute); q.State() != verbs.StateErr; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("the QP is in %s after 2 minutes with a peer that is gone, %+v, want %s", q.State(), s.nic.Stats(), verbs.StateErr)
			break
		}
	}
	close(stop)
	done.Wait()
}

// TestUDPTimersAlwaysLate: a process that is always late reports a dead peer after twice the regular timeout.
func TestUDPTimersAlwaysLate(t *testing.T) {
	s := newBesieged(t)
	q := s.ask(t)
	c := s.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	retries, begin := int(q.attr.RetryCount)+1, q.timerAt
	const late = lateTimer + time.Millisecond
	for k := 0; q.state == verbs.StateRTS; k++ {
		now := q.timerAt + int64(late)
		if limit := 3 * retries * int(verbs.AckTimeout(q.attr.Timeout)+late); now-begin > int64(limit) {
			t.Fatalf("%d timeouts after %v, want %d and the QP in error", s.nic.stats.Timeouts, time.Duration(now-begin), retries)
		}
		c.timers.drop(q)
		q.timeout(now)
	}
	if got := s.nic.stats.Timeouts; int(got) != retries {
		t.Errorf("given up after %d timeouts, want %d", got, retries)
	}
}
