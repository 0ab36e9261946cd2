package node

import (
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestIdlePollLoopWakesForDeadline: a goroutine submits an operation and leaves, and the peer does
// not respond. The poll loop, in a long sleep, wakes up when the VirtualCQ must be polled.
func TestIdlePollLoopWakesForDeadline(t *testing.T) {
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{})
	if err != nil {
		t.Fatalf("NewFaultLink: got %v, want no error", err)
	}
	n := network{link}
	a, b := n.start(t), n.start(t)
	p, _ := a.meet(b)
	s := p.shard
	plan := func() (now, wakes, due int64, armed bool) {
		s.mu.Lock()
		defer s.mu.Unlock() // without posting
		return s.now(), s.wakeAt, s.cq.Due(), s.armed
	}
	eventually(t, "the poll loop sleeps for long", func() bool {
		now, wakes, _, armed := plan()
		return armed && wakes > now+int64(idleSleep/2)
	})
	if err := link.Impair(a.nics[0], b.nics[0], softnic.Impairment{Delay: 3 * time.Second}); err != nil {
		t.Fatalf("Impair: got %v, want no error", err)
	}
	j := a.job(p, verbs.OpRDMAWrite, 0, 64)
	p.Service().Submit(&j.Op)
	s.mu.Lock()
	if s.armed && !s.woken && s.wakeAt > s.cq.Due()+int64(time.Millisecond) {
		t.Error("nothing wakes the poll loop before the deadline of the operation")
	}
	s.mu.Unlock()
	eventually(t, "the poll loop wakes up in time", func() bool {
		_, wakes, due, armed := plan()
		return armed && wakes <= due+int64(time.Millisecond)
	})
	select {
	case err := <-j.done:
		t.Errorf("the operation ended with %v before the poll loop was observed, want it outstanding", err)
	default:
	}
	if err := link.Impair(a.nics[0], b.nics[0], softnic.Impairment{}); err != nil {
		t.Fatalf("Impair: got %v, want no error", err)
	}
	if err := j.result(t); err != nil {
		t.Errorf("the operation ended with %v, want no error", err)
	}
}

// TestLeaveLetsPollLoopSleep: a poll loop that sleeps until the next completion is not woken by goroutines that
// leave the shard to it.
func TestLeaveLetsPollLoopSleep(t *testing.T) {
	n := newNetwork(1)
	p, _ := n.start(t).meet(n.start(t))
	s := p.shard
	plan := func() (wakes int64) {
		s.do(func() {
			if s.armed {
				wakes = s.wakeAt
			}
		})
		return wakes
	}
	eventually(t, "the poll loop sleeps", func() bool { return plan() != 0 })
	woken, last := 0, plan()
	for range 100 {
		p.Service().Leave()
		time.Sleep(100 * time.Microsecond) // it may wake up
		if now := plan(); now != last {
			woken, last = woken+1, now
		}
	}
	if woken > 20 { // it also checks its peers periodically
		t.Errorf("the poll loop woke up %d times in 100, want hardly ever", woken)
	}
}
