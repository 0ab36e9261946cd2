package node

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// held returns a host and one of its peers. hold delays the packets to the peer.
func held(t *testing.T, change ...func(*Config)) (a *host, there *Peer, hold, release func()) {
	t.Helper()
	link, err := softnic.NewFaultLink(nil)
	if err != nil {
		t.Fatalf("NewFaultLink: got %v, want no error", err)
	}
	n := network{link}
	a, b := n.start(t, change...), n.start(t)
	there, _ = a.meet(b)
	eventually(t, "the queue has the VirtualQP", func() (has bool) { // a moment after the peer is ready
		there.shard.do(func() { has = there.queue.qp != nil })
		return has
	})
	return a, there, func() { link.Hold(a.nics[0], b.nics[0]) }, func() { link.Release(a.nics[0], b.nics[0]) }
}

// settle posts submitted operations, even if the goroutine responsible for them has not run yet. The lock
// must be held.
func (s *shard) settle() {
	s.takeInbox()
	s.post()
}

// TestNoEndBeforeQPIsClosed: a Peer is closed while its session is closing. Operations do not complete
// between the queue's release of the VirtualQP and its close, because the NIC still uses their memory.
func TestNoEndBeforeQPIsClosed(t *testing.T) {
	a, there, hold, _ := held(t)
	hold()
	j := a.job(there, verbs.OpRDMAWrite, 0, 64<<10)
	there.Service().Submit(&j.Op)
	there.shard.do(func() {
		there.shard.settle()
		if stateOf(&j.Op).Flight == 0 {
			t.Error("the operation is not posted")
		}
		there.queue.detach() // as session.part does
		there.queue.refuseAll(ErrClosed)
		if ended(&j.Op) {
			t.Error("the operation has ended while the VirtualQP is open")
		}
	})
	lose(there)
	if err := j.result(t); !errors.Is(err, ErrClosed) {
		t.Errorf("the operation ended with %v, want ErrClosed", err)
	}
}

// TestSmallWindow: a block that does not fit in the window waits for an earlier unsignaled one.
func TestSmallWindow(t *testing.T) {
	a, there, _, _ := held(t, func(c *Config) { c.Window = minWindow })
	j := a.job(there, verbs.OpRDMAWrite, 0, 8<<10)
	long := j.Blocks[0]
	long.LocalOffset, long.RemoteOffset, long.Length = 1<<20, 1<<20, 1<<20
	j.Blocks = append(j.Blocks, long)
	a.do(there, j)
}

// TestFullQueue: the VirtualQP is full, because the queue overestimates its depth, or because of the extra
// request behind a canceled operation. Operations wait for free slots.
func TestFullQueue(t *testing.T) {
	for name, test := range map[string]struct{ depth, more, blocks int }{
		"too deep": {1000, 0, 1}, "canceled": {0, -5, 20},
	} {
		t.Run(name, func(t *testing.T) {
			a, there, hold, release := held(t)
			remote := a.grantBy(there)
			hold()
			var jobs []*job
			submit := func(blocks int) *job {
				j := a.jobOn(there, remote, verbs.OpRDMAWrite, uint64(len(jobs))*8, 8)
				for i := range uint64(blocks - 1) {
					b := j.Blocks[0]
					b.LocalOffset, b.RemoteOffset = 1<<20+8*i, 1<<20+8*i
					j.Blocks = append(j.Blocks, b)
				}
				there.Service().Submit(&j.Op)
				jobs = append(jobs, j)
				return j
			}
			there.shard.mu.Lock()
			if test.depth > 0 {
				there.queue.depth = test.depth
			}
			for range sendDepth - 1 + test.more {
				submit(1)
			}
			canceled := submit(test.blocks)
			there.shard.unlock()
			if test.depth == 0 {
				there.shard.do(func() {
					there.shard.settle()
					if room := there.queue.depth - there.queue.ledger.Len(); room != 0 || there.queue.unsignaled == 0 {
						t.Errorf("there is room for %d fragments and %d are unsignaled, want none and some", room, there.queue.unsignaled)
					}
				})
				there.Service().Cancel(&canceled.Op)
			}
			for range 40 {
				submit(1)
			}
			release()
			for i, j := range jobs {
				if err := j.result(t); err != nil && (j != canceled || !errors.Is(err, ErrCanceled)) {
					t.Fatalf("operation %d ended with %v, want no error", i, err)
				}
			}
		})
	}
}

// TestCancelIsNotLost: an operation is submitted and canceled while another goroutine picks up submissions.
// It completes.
func TestCancelIsNotLost(t *testing.T) {
	a, there, _, _ := held(t)
	s := there.shard
	s.mu.Lock()
	defer s.unlock()
	there.queue.paused = true // prevents posting
	j := a.job(there, verbs.OpRDMAWrite, 0, 8)
	for range 2000 {
		var other sync.WaitGroup
		var submitted atomic.Bool
		other.Go(func() {
			there.Service().Submit(&j.Op)
			there.Service().Cancel(&j.Op)
			submitted.Store(true)
		})
		for !submitted.Load() {
			s.takeInbox()
		}
		other.Wait()
		s.takeInbox()
		if !ended(&j.Op) {
			t.Fatal("an operation that was canceled has not ended")
		}
		<-j.done
	}
	there.queue.paused = false
}

// TestStaleCancel: a Cancel handled after its operation has completed and was submitted again has
// no effect. By then the peer is on another shard.
func TestStaleCancel(t *testing.T) {
	n := newNetwork(1)
	a := n.start(t, sharded(2))
	first, _ := a.meet(n.start(t))
	second, _ := a.meet(n.start(t))
	j := a.job(first, verbs.OpRDMAWrite, 0, 8)
	other := a.job(second, verbs.OpRDMAWrite, 0, 8)
	first.Service().Submit(&j.Op)
	first.shard.mu.Lock()
	for len(j.done) == 0 {
		first.shard.postAndPoll()
	}
	<-j.done
	first.shard.cancels.ops = append(first.shard.cancels.ops, cancelation{&j.Op, first, 1}) // as if it preceded the completion
	first.shard.cancels.any.Store(true)
	second.shard.mu.Lock()
	j.Blocks = other.Blocks
	second.Service().Submit(&j.Op)
	second.shard.takeInbox()
	first.shard.unlock()
	second.shard.unlock()
	if err := j.result(t); err != nil {
		t.Errorf("an operation that was submitted again ended with %v, want no error", err)
	}
}

// TestCancelIsRemembered: an operation canceled after it was fully posted completes if its session is lost,
// and is not replayed.
func TestCancelIsRemembered(t *testing.T) {
	a, there, hold, release := held(t)
	hold()
	j := a.job(there, verbs.OpRDMAWrite, 0, 8)
	there.Service().Submit(&j.Op)
	there.Service().Cancel(&j.Op)
	lose(there)
	if err := j.result(t); !errors.Is(err, ErrCanceled) {
		t.Errorf("the operation ended with %v, want ErrCanceled", err)
	}
	release()
	wait(t, there, StateReady)
	a.do(there, j) // as a new operation
}

// TestOpOfAnotherSession: an operation bound to a session fails with ErrLost if submitted in a later one.
func TestOpOfAnotherSession(t *testing.T) {
	a, there, _, _ := held(t)
	first := there.Service().Session().Number()
	lose(there)
	a.eventually("there is another session", func() bool {
		s := there.Service().Session()
		return s != nil && s.Number() > first
	})
	remote := a.grantBy(there)
	late := a.jobOn(there, remote, verbs.OpRDMAWrite, 0, 8)
	late.Session = first
	there.Service().Submit(&late.Op)
	if err := late.result(t); !errors.Is(err, ErrLost) {
		t.Errorf("an operation of the session before ended with %v, want %v", err, ErrLost)
	}
	right := a.jobOn(there, remote, verbs.OpRDMAWrite, 0, 8)
	right.Session = there.Service().Session().Number()
	a.do(there, right)
}
