package transfer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"ibverbx/node"
	"ibverbx/softnic"
)

func TestNotifyWaitsForWholeBatch(t *testing.T) {
	for rail := range 2 {
		n := faultNetwork(t, 2, softnic.Impairment{})
		const size = 64 << 10
		p := newPair(t, n, 64*size)
		release := n.hold(p.here, p.there, rail)
		defer release()
		fill(p.local.Bytes(), 3)
		b := p.peer.Batch()
		for i := range int64(64) {
			b.Put(p.remote.At(i*size), p.local.Slice(i*size, size))
		}
		tr := b.Notify([]byte("all")).Submit(soon(t))
		quiet(t, p.there, "before all blocks were there")
		release()
		wantNote(t, p.there, "all")
		wantSame(t, "the peer's segment", p.target.Bytes(), p.local.Bytes())
		wantOK(t, "Wait", tr.Wait(soon(t)))
	}
}

func TestNotifyAfterGetIsNotEarly(t *testing.T) {
	n := faultNetwork(t, 2, softnic.Impairment{})
	const size = 4096 // a NIC starts the next request once it has sent the response
	p := newPair(t, n, size)
	p.publish(t, 4)
	want := append([]byte(nil), p.target.Bytes()...)
	first, second := n.hold(p.there, p.here, 0), n.hold(p.there, p.here, 1)
	release := func() { first(); second() }
	defer release()
	tr := p.peer.Batch().Get(p.local.Slice(0, size), p.remote.At(0)).Notify([]byte("read")).Submit(soon(t))
	quiet(t, p.there, "before the blocks were read")
	release()
	wantNote(t, p.there, "read")
	wantSame(t, "the segment", p.local.Bytes(), want)
	clear(p.target.Bytes()) // the notification permits this
	wantOK(t, "Wait", tr.Wait(soon(t)))
}

// TestNotifyThenPeerCloses: a notification received by the peer's program counts as sent, even if the peer
// closes its Engine before the NIC's acknowledgment.
func TestNotifyThenPeerCloses(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 4096)
	release := n.hold(p.there, p.here, 0)
	defer release()
	sent := make(chan error, 1)
	go func() { sent <- p.peer.Notify(soon(t), []byte("last words")) }()
	wantNote(t, p.there, "last words")
	p.there.stop()
	wantOK(t, "Notify", <-sent)
}

// TestNotifyThenClose: notifications sent before the local Engine is closed reach the peer's program, even if
// its shard has not polled yet.
func TestNotifyThenClose(t *testing.T) {
	n := memoryNetwork(1)
	for range 20 {
		p := newPair(t, n, 4096)
		for i := range 10 {
			wantOK(t, "Notify", p.peer.Notify(soon(t), number(i)))
		}
		p.here.stop()
		for i := range 10 {
			wantNote(t, p.there, string(number(i)))
		}
		p.there.stop()
	}
}

// TestGoodbyeWithFalseNumber: a peer that claims notifications that were never sent loses its session.
func TestGoodbyeWithFalseNumber(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	s := p.peer.session()
	wantErr(t, "a false goodbye", p.peer.message(s, &revoke{grant: mailboxGrant, arrived: 1}), errProtocol)
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("still here")))
	wantNote(t, p.there, "still here")
}

func TestNotifyWithoutPolling(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 8<<20)
	tr := p.peer.Batch().Get(p.local.Slice(0, 8<<20), p.remote.At(0)).Notify([]byte("read")).Submit(soon(t))
	wantNote(t, p.there, "read")
	select {
	case <-tr.Done():
	case <-soon(t).Done():
		t.Fatal("the transfer has not ended after a minute")
	}
}

// TestNotifyInOrder submits batches whose first ones take longest.
func TestNotifyInOrder(t *testing.T) {
	p := newPair(t, memoryNetwork(2), 4<<20)
	var transfers []*Transfer
	for i := range 32 {
		size := int64(4<<20) >> (i % 8)
		b := p.peer.Batch()
		if i%8 > 0 { // each at a separate offset
			b.Put(p.remote.At(size), p.local.Slice(size, size))
		}
		if i%5 == 0 {
			b.Get(p.local.Slice(0, 1), p.remote.At(0))
		}
		transfers = append(transfers, b.Notify(number(i)).Submit(soon(t)))
		if i%8 == 7 {
			for _, tr := range transfers {
				wantOK(t, "Wait", tr.Wait(soon(t)))
			}
			transfers = nil
		}
	}
	for i := range 32 {
		if got := wantNote(t, p.there, string(number(i))); got.Seq != uint64(i) {
			t.Errorf("notification %d: got number %d", i, got.Seq)
		}
	}
}

// steadyNotes sends count batches of one Put and one notification each, while disturb is called repeatedly.
// It checks that each notification arrives once, in order, and after its block.
func steadyNotes(t *testing.T, p *pair, count int, disturb func(i int)) {
	t.Helper()
	const size = 256
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond):
				disturb(i)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		var transfers []*Transfer
		for i := range count {
			off := int64(i) * size
			var block [size]byte
			fill(block[:], uint64(i))
			if _, err := p.local.mem.WriteAt(block[:], off); err != nil {
				t.Errorf("WriteAt: got %v, want no error", err)
			}
			b := p.peer.Batch().Put(p.remote.At(off), p.local.Slice(off, size))
			if i%7 == 0 {
				b.Get(p.local.Slice(p.local.Len()-size, size), p.remote.At(p.remote.Len()-size))
			}
			transfers = append(transfers, b.Notify(number(i)).Submit(soon(t)))
			if i%7 == 0 {
				_ = transfers[i].Wait(soon(t))
			}
		}
		for i, tr := range transfers {
			if err := tr.Wait(soon(t)); err != nil {
				t.Errorf("batch %d: got %v, want no error", i, err)
			}
		}
	})
	want := make([]byte, size)
	for i := range count {
		wantNote(t, p.there, string(number(i)))
		fill(want, uint64(i))
		p.target.wantBytes(t, "the block of a notification", int64(i)*size, want)
	}
	quiet(t, p.there, "twice")
}

func TestNotifyOnceAcrossReconnect(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, 1<<20)
		losses := uint64(0)
		steadyNotes(t, p, 2000, func(int) {
			if losses == 3 || p.peer.Node().Stats().Sessions != losses+1 { // the time between attempts doubles
				return
			}
			if losses++; losses%2 == 0 {
				lose(p.peer)
			} else {
				lose(p.back)
			}
		})
		if got := p.peer.Node().Stats().Sessions; got < 2 {
			t.Errorf("there were %d sessions, want several", got)
		}
	})
}

// TestNotifySentAgain loses notifications that have reached the peer's NIC, as when the session is lost at
// that moment.
func TestNotifySentAgain(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	p.back.link.Mu.Lock()
	session := p.back.link.Session
	p.back.link.Session = nil // later notifications are ignored
	p.back.link.Mu.Unlock()
	for i := range 3 {
		wantOK(t, "Notify", p.peer.Notify(soon(t), number(i)))
	}
	received := func() bool { return p.back.Node().Stats().Counters.Notifications == 3 }
	eventually(t, "the notifications have arrived", received)
	quiet(t, p.there, "that was lost")
	p.back.link.Mu.Lock()
	p.back.link.Session = session
	p.back.link.Mu.Unlock()
	lose(p.peer)
	for i := range 3 {
		wantNote(t, p.there, string(number(i)))
	}
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("next")))
	wantNote(t, p.there, "next")
}

func TestNotifyAcrossNICDeath(t *testing.T) {
	n := faultNetwork(t, 2, softnic.Impairment{Loss: 0.001, Delay: 20 * time.Microsecond})
	p := newPair(t, n, 1<<20)
	steadyNotes(t, p, 500, func(i int) {
		switch i {
		case 0, 1, 2, 3:
			h := []*host{p.here, p.there}[i%2]
			h.nics[i/2].Reset()
		case 4:
			p.here.nics[1].Fail() // for good
		}
	})
}

// TestReceiverTakesNothing fills the mailbox. Data must still move, and the number of pending notifications
// must stay bounded.
func TestReceiverTakesNothing(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 1<<20)
	const count = 2000
	var transfers []*Transfer
	for i := range count {
		transfers = append(transfers, p.peer.Batch().Notify(number(i)).Submit(soon(t)))
	}
	fill(p.local.Bytes(), 5)
	wantOK(t, "Put", p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, 1<<20)).Wait(soon(t)))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	wantErr(t, "Wait for a notification without room", transfers[count-1].Wait(ctx), context.DeadlineExceeded)
	if s := transfers[count-1].Status(); s.Phase != Moving && s.Phase != Notifying {
		t.Errorf("the last transfer is %v, want it to wait", s.Phase)
	}
	waiting := func() int {
		p.there.inbox.mu.Lock()
		defer p.there.inbox.mu.Unlock()
		return p.there.inbox.list.Len()
	}
	eventually(t, "the mailbox is full", func() bool { return waiting() == maxNotifications })
	transfers[count-1].Cancel()
	wantErr(t, "Wait for a canceled notification", transfers[count-1].Wait(soon(t)), ErrCanceled)
	for i := range count - 1 {
		wantNote(t, p.there, string(number(i)))
		if i == count/2 {
			lose(p.peer)
		}
	}
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("behind a canceled one")))
	wantNote(t, p.there, "behind a canceled one")
}

func TestLongNotifications(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	rng := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, MaxNotification)
	var wg sync.WaitGroup
	defer wg.Wait()
	sizes := make([]int, 500)
	for i := range sizes {
		sizes[i] = rng.IntN(MaxNotification + 1)
	}
	wg.Go(func() {
		for i, size := range sizes {
			fill(body[:size], uint64(i))
			p.peer.Batch().Notify(body[:size]).Submit(soon(t))
		}
	})
	want := make([]byte, MaxNotification)
	for i, size := range sizes {
		fill(want[:size], uint64(i))
		got, err := p.there.Recv(soon(t))
		wantOK(t, "Recv", err)
		wantSame(t, "a notification", got.Body, want[:size])
	}
}

func TestPutIntoRestarted(t *testing.T) {
	n := memoryNetwork(2)
	p := newPair(t, n, 1<<20)
	fill(p.local.Bytes(), 6)
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("old")))
	again := p.there.restart()
	target := again.alloc("target", 1<<20, Read|Write)
	var err error
	for err == nil { // until the restart is noticed
		err = p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, 1<<20)).Notify([]byte("stale")).Do(soon(t))
	}
	wantErr(t, "Put into a restarted process", err, ErrRestarted)
	peer := p.here.to(again)
	if peer != p.peer {
		t.Errorf("the restarted process is another Peer")
	}
	wantErr(t, "Put into a stale segment", p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, 1)).Wait(soon(t)), ErrRestarted)
	wantSame(t, "the new process's segment", target.Bytes(), make([]byte, 1<<20))
	remote := open2(t, peer, "target", Write)
	wantOK(t, "Put", peer.Batch().Put(remote.At(0), p.local.Slice(0, 1<<20)).Notify([]byte("new")).Do(soon(t)))
	if got := wantNote(t, again, "new"); got.Seq != 0 {
		t.Errorf("the first notification to a process has number %d, want 0", got.Seq)
	}
	wantSame(t, "the new process's segment", target.Bytes(), p.local.Bytes())
}

// TestSenderRestarts: a new process restarts the notification count, and the old one's notifications are
// kept.
func TestSenderRestarts(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("first")))
	eventually(t, "the notification has arrived", func() bool {
		p.there.inbox.mu.Lock()
		defer p.there.inbox.mu.Unlock()
		return p.there.inbox.list.Len() == 1
	})
	again := p.here.restart()
	wantOK(t, "Notify", again.to(p.there).Notify(soon(t), []byte("second")))
	first, second := wantNote(t, p.there, "first"), wantNote(t, p.there, "second")
	if first.Seq != 0 || second.Seq != 0 || first.Peer != second.Peer {
		t.Errorf("got notifications %d of %v and %d of %v, want 0 of the same", first.Seq, first.Peer, second.Seq, second.Peer)
	}
}

func TestEngineClosedAndBack(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("one")))
	wantOK(t, "Close", p.there.Close(soon(t)))
	wantErr(t, "Put to a closed engine", p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, 1)).Wait(soon(t)), ErrPeerGone)
	if _, err := p.there.Alloc("x", 1, SegmentConfig{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Alloc on a closed engine: got error %v, want %v", err, ErrClosed)
	}
	var err error
	p.there.Engine, err = New(Config{Node: p.there.node})
	wantOK(t, "New on the same Node", err)
	p.there.alloc("target", 4096, Read|Write)
	remote := open2(t, p.peer, "target", Write)
	wantOK(t, "Put", p.peer.Batch().Put(remote.At(0), p.local.Slice(0, 4096)).Notify([]byte("two")).Do(soon(t)))
	wantNote(t, p.there, "two")
}

// TestPeerGone loses a peer permanently, while notifications wait for free slots and a request for its
// response.
func TestPeerGone(t *testing.T) {
	n := memoryNetwork(1)
	n.node = func(c *node.Config) { c.LostTimeout = 50 * time.Millisecond }
	p := newPair(t, n, 4096)
	const count = maxNotifications + 10
	var transfers []*Transfer
	for i := range count {
		transfers = append(transfers, p.peer.Batch().Notify(number(i)).Submit(soon(t)))
	}
	wantOK(t, "Wait", transfers[0].Wait(soon(t)))
	thaw := p.there.freeze()
	defer thaw()
	transfers = append(transfers, p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, 4096)).Submit(soon(t)))
	verifying(t, transfers[count])
	wantOK(t, "Close", p.there.node.Close())
	for _, tr := range transfers[count-1:] {
		wantErr(t, "Wait", tr.Wait(soon(t)), ErrPeerGone)
	}
	wantErr(t, "Put", p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, 1)).Wait(soon(t)), ErrPeerGone)
	_, err := p.peer.Open(soon(t), "target", Read)
	wantErr(t, "Open", err, ErrPeerGone)
}

// TestNotifyNewProcess: a notification that waits for a free slot is delivered even if the peer's process is
// replaced meanwhile.
func TestNotifyNewProcess(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	a := n.start(t, hostConfig{name: "a", engine: Config{MaxOutstanding: 1}})
	b := n.start(t, hostConfig{name: "b"})
	local := a.alloc("local", 4096, 0)
	b.alloc("target", 4096, Read)
	p := a.to(b)
	remote := open2(t, p, "target", Read)
	release := n.hold(b, a, 0)
	defer release()
	first := p.Get(soon(t), local.Slice(0, 8), remote.At(0))
	late := make(chan error, 1)
	go func() { late <- p.Notify(soon(t), []byte("late")) }()
	time.Sleep(10 * time.Millisecond) // only gives a bug time to show
	p.link.Mu.Lock()
	old := p.link.Proc
	p.link.Proc = p.newProcess(old.Incarnation, &hello{id: old.ID, mailbox: old.mailbox})
	p.link.Mu.Unlock()
	release()
	wantOK(t, "Wait", first.Wait(soon(t)))
	wantOK(t, "Notify", <-late)
	wantNote(t, b, "late")
	old.end(ErrRestarted)
}
