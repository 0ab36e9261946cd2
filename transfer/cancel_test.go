package transfer

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"ibverbx/node"
	"ibverbx/softnic"
)

func TestWaitTimeoutIsNotCancel(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 1<<20)
	p.publish(t, 7)
	release := n.hold(p.there, p.here, 0)
	defer release()
	tr := p.peer.Get(soon(t), p.local.Slice(0, 1<<20), p.remote.At(0))
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	wantErr(t, "Wait", tr.Wait(ctx), context.DeadlineExceeded)
	if tr.Err() != nil || tr.isDone() {
		t.Errorf("the transfer has ended with %v after a Wait that timed out", tr.Err())
	}
	release()
	wantOK(t, "Wait", tr.Wait(soon(t)))
	wantSame(t, "the segment", p.local.Bytes(), p.target.Bytes())
}

// TestCancelThenReuseBuffer cancels reads and immediately reuses their buffer. The new bytes must survive.
// There are 50 rounds, or 10,000 with IBVERBX_TEST_LONG=1.
func TestCancelThenReuseBuffer(t *testing.T) {
	n := faultNetwork(t, 2, softnic.Impairment{Loss: 0.002, Reorder: 0.01, Delay: 10 * time.Microsecond})
	n.node = func(c *node.Config) { c.Window = 64 << 10 } // so that part of it remains to be canceled
	const size = 2 << 20
	p := newPair(t, n, size)
	p.publish(t, 8)
	theirs := append([]byte(nil), p.target.Bytes()...)
	own := make([]byte, size)
	canceled, rounds := 0, 50
	if os.Getenv("IBVERBX_TEST_LONG") == "1" {
		rounds = 10_000
	}
	for i := range rounds {
		tr := p.peer.Get(soon(t), p.local.Slice(0, size), p.remote.At(0))
		if i%2 == 0 {
			time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
		}
		tr.Cancel()
		err := tr.Wait(soon(t))
		if err == nil {
			wantSame(t, "the segment", p.local.Bytes(), theirs)
		} else {
			wantErr(t, "Wait", err, ErrCanceled)
			canceled++
		}
		fill(own, uint64(i))
		copy(p.local.Bytes(), own)
		time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
		wantSame(t, "a buffer that was used again", p.local.Bytes(), own)
	}
	t.Logf("%d of %d were canceled in time", canceled, rounds)
}

func TestDoCancels(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 32<<20)
	release := n.hold(p.there, p.here, 0)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- p.peer.Batch().Get(p.local.Slice(0, 32<<20), p.remote.At(0)).Notify([]byte("never")).Do(ctx)
	}()
	eventually(t, "the transfer is under way", func() bool {
		p.peer.link.Mu.Lock()
		defer p.peer.link.Mu.Unlock()
		return p.peer.count == 1
	})
	cancel()
	select {
	case err := <-done:
		t.Fatalf("Do returned %v while the NIC could still write", err)
	case <-time.After(20 * time.Millisecond):
	}
	release()
	err := <-done
	wantErr(t, "Do", err, ErrCanceled)
	wantErr(t, "Do", err, context.Canceled)
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("next")))
	wantNote(t, p.there, "next")
}

// TestCancelWithSilentPeer cancels a transfer with an unresponsive peer. It completes because the session is
// closed.
func TestCancelWithSilentPeer(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 1<<20)
	release := n.hold(p.there, p.here, 0)
	defer release()
	tr := p.peer.Get(soon(t), p.local.Slice(0, 1<<20), p.remote.At(0))
	tr.Cancel()
	wantErr(t, "Wait", tr.Wait(soon(t)), ErrCanceled)
}

func TestQueueIsBounded(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	a := n.start(t, hostConfig{name: "a", engine: Config{MaxOutstanding: 2}})
	b := n.start(t, hostConfig{name: "b"})
	local := a.alloc("local", 4096, 0)
	b.alloc("target", 4096, Read)
	p := a.to(b)
	remote := open2(t, p, "target", Read)
	release := n.hold(b, a, 0)
	defer release()
	get := func(i int64) *Batch { return p.Batch().Get(local.Slice(i*8, 8), remote.At(i*8)) }
	first, second := get(0).Submit(soon(t)), get(1).Submit(soon(t))
	done, cancel := context.WithCancel(context.Background())
	cancel()
	wantErr(t, "Submit that does not wait", get(2).Submit(done).Err(), ErrBusy)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err := get(2).Submit(ctx).Err()
	wantErr(t, "Submit", err, ErrBusy)
	wantErr(t, "Submit", err, context.DeadlineExceeded)
	late := make(chan error, 8)
	for i := range int64(8) {
		go func() { late <- get(2 + i).Do(soon(t)) }()
	}
	release()
	wantOK(t, "Wait", errors.Join(first.Wait(soon(t)), second.Wait(soon(t))))
	for range 8 {
		wantOK(t, "Do that waited for room", <-late)
	}
}

// TestRoomAfterRefusal: of the transfers that wait for a free slot, a refused one passes the slot on to the
// others.
func TestRoomAfterRefusal(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	a := n.start(t, hostConfig{name: "a", engine: Config{MaxOutstanding: 1}})
	b := n.start(t, hostConfig{name: "b"})
	local := a.alloc("local", 4096, 0)
	b.alloc("target", 4096, Read|Write)
	p := a.to(b)
	good, bad := open2(t, p, "target", Read), open2(t, p, "target", Read|Write)
	release := n.hold(b, a, 0)
	defer release()
	first := p.Get(soon(t), local.Slice(0, 8), good.At(0))
	results := make(chan error, 8)
	for i := range int64(8) {
		from := []*Remote{good, bad}[i%2]
		go func() { results <- p.Batch().Get(local.Slice(i*8, 8), from.At(i*8)).Do(soon(t)) }()
	}
	time.Sleep(10 * time.Millisecond) // only gives a bug time to show
	p.link.Mu.Lock()
	bad.revoked = true
	p.link.Mu.Unlock()
	release()
	wantOK(t, "Wait", first.Wait(soon(t)))
	refused := 0
	for range 8 {
		err := <-results
		if err != nil {
			wantErr(t, "Do", err, ErrRevoked)
			refused++
		}
	}
	if refused != 4 {
		t.Errorf("%d transfers were refused, want 4", refused)
	}
	p.link.Mu.Lock()
	bad.revoked = false
	p.link.Mu.Unlock()
}

// TestCancelBeforeNotify: a transfer is canceled after its blocks are posted, while its notification waits
// because the peer's mailbox is full. It completes with its blocks, although the notification could never be
// sent.
func TestCancelBeforeNotify(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 4096)
	var notes []*Transfer
	for i := range maxNotifications + 1 {
		notes = append(notes, p.peer.Batch().Notify(number(i)).Submit(soon(t)))
	}
	wantOK(t, "Wait", notes[maxNotifications-1].Wait(soon(t)))
	release := n.hold(p.there, p.here, 0)
	defer release()
	tr := p.peer.Batch().Get(p.local.Slice(0, 8), p.remote.At(0)).Notify([]byte("never")).Submit(soon(t))
	tr.Cancel()
	release()
	wantErr(t, "Wait", tr.Wait(soon(t)), ErrCanceled)
	for i := range notes {
		wantNote(t, p.there, string(number(i)))
	}
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("next")))
	wantNote(t, p.there, "next")
}

// TestCancelNotifyWithoutSession: a notification waits for a session until its context is done.
func TestCancelNotifyWithoutSession(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	wantOK(t, "Close", p.there.node.Close())
	sessionLost(t, p.peer)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	wantErr(t, "Notify", p.peer.Notify(ctx, []byte("never")), ErrCanceled)
}

// TestCancelNotifyUnderWay: a notification canceled after its operation was posted completes immediately, and
// may still arrive.
func TestCancelNotifyUnderWay(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 4096)
	session := p.peer.session()
	release := n.hold(p.there, p.here, 0)
	defer release()
	tr := p.peer.Batch().Notify([]byte("canceled")).Submit(soon(t))
	tr.Cancel()
	wantErr(t, "Wait", tr.Wait(soon(t)), ErrCanceled)
	release()
	wantNote(t, p.there, "canceled")
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("next")))
	wantNote(t, p.there, "next")
	if p.peer.session() != session {
		t.Error("the session has ended")
	}
}

// TestCanceledNotificationsAreBounded: a program that cancels one notification after another, because the peer's program reads none, is
// refused at some point. Later notifications arrive once the peer reads.
func TestCanceledNotificationsAreBounded(t *testing.T) {
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{name: "a", engine: Config{MaxOutstanding: 8}}), n.start(t, hostConfig{name: "b"})
	p := a.to(b)
	for i := range maxNotifications {
		wantOK(t, "Notify", p.Notify(soon(t), number(i)))
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	canceled := 0
	for range 10 * maxNotifications {
		err := p.Notify(done, []byte("canceled"))
		if errors.Is(err, ErrBusy) {
			break
		}
		wantErr(t, "Notify", err, ErrCanceled)
		canceled++
	}
	p.link.Mu.Lock()
	if kept := p.link.Proc.out.unread.Len(); canceled == 0 || kept > 8+maxNotifications {
		t.Errorf("%d notifications are kept after %d canceled ones, want at most %d", kept, canceled, 8+maxNotifications)
	}
	p.link.Mu.Unlock()
	for i := range maxNotifications {
		wantNote(t, b, string(number(i)))
	}
	eventually(t, "a notification is accepted", func() bool {
		err := p.Notify(soon(t), []byte("next"))
		if err != nil {
			wantErr(t, "Notify", err, ErrBusy)
		}
		return err == nil
	})
	wantNote(t, b, "next")
}
