package transfer

import (
	"errors"
	"testing"
	"time"

	"ibverbx/node"
	"ibverbx/softnic"
)

// sessionLost waits until a peer's session is closed.
func sessionLost(t testing.TB, p *Peer) {
	t.Helper()
	eventually(t, "the session has ended", func() bool {
		p.link.Mu.Lock()
		defer p.link.Mu.Unlock()
		return p.link.Session == nil
	})
}

// TestOneSideGivesUp: between two sessions, only one side forgets the other. Both restart their
// counters at zero.
func TestOneSideGivesUp(t *testing.T) {
	for name, giveUp := range map[string][2]time.Duration{
		"the sender": {5 * time.Millisecond, -1}, "the receiver": {-1, 5 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			n := memoryNetwork(1)
			after := func(d time.Duration) func(*node.Config) { return func(c *node.Config) { c.LostTimeout = d } }
			a := n.start(t, hostConfig{name: "a", node: after(giveUp[0])})
			b := n.start(t, hostConfig{name: "b", node: after(giveUp[1])})
			p := a.to(b)
			for i := range 3 {
				wantOK(t, "Notify", p.Notify(soon(t), number(i)))
				wantNote(t, b, string(number(i)))
			}
			lose(p)
			eventually(t, "there is another session", func() bool { return p.Node().Stats().Sessions == 2 })
			p = a.to(b)
			for i := range 3 {
				wantOK(t, "Notify", p.Notify(soon(t), number(i)))
				if got := wantNote(t, b, string(number(i))); got.Seq != uint64(i) {
					t.Logf("notification %d has number %d: the session was back too early", i, got.Seq)
				}
			}
		})
	}
}

// TestPeerClosedAtOtherSide: the dialed side forgets the other. The next session works.
func TestPeerClosedAtOtherSide(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	wantOK(t, "Close", p.back.Node().Close())
	eventually(t, "the old segment is of no use", func() bool {
		err := p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, 8)).Wait(soon(t))
		return errors.Is(err, ErrRestarted)
	})
	remote := open2(t, p.peer, "target", Write)
	wantOK(t, "Put", p.peer.Batch().Put(remote.At(0), p.local.Slice(0, 8)).Notify([]byte("put")).Do(soon(t)))
	wantNote(t, p.there, "put")
}

// TestNoBlockAfterNotification: a session is lost together with a batch's acknowledgments. Its blocks are
// rewritten in the next session, and only then is the notification delivered.
func TestNoBlockAfterNotification(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 4096)
	fill(p.local.Bytes(), 1)
	release := n.hold(p.there, p.here, 0) // acknowledgments do not arrive
	defer release()
	tr := p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, 4096)).Notify([]byte("here")).Submit(soon(t))
	quiet(t, p.there, "before the end of the blocks")
	lose(p.peer)
	sessionLost(t, p.peer)
	release()
	wantNote(t, p.there, "here")
	clear(p.target.Bytes()) // as the program might
	wantOK(t, "Wait", tr.Wait(soon(t)))
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("all")))
	wantNote(t, p.there, "all")
	wantSame(t, "bytes that were used again", p.target.Bytes(), make([]byte, 4096))
}

// TestEngineReplaced: an Engine is closed and replaced on the same Node several times. None receives messages
// meant for another.
func TestEngineReplaced(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	for i := range 3 {
		old := []*host{p.here, p.there}[i%2]
		wantOK(t, "Close", old.Close(soon(t)))
		var err error
		old.Engine, err = New(Config{Node: old.node})
		wantOK(t, "New", err)
		if i%2 == 0 {
			p.local = p.here.alloc("", 4096, 0)
		} else {
			p.there.alloc("target", 4096, Read|Write)
		}
		peer := p.here.to(p.there)
		var remote *Remote
		eventually(t, "the segment can be opened", func() bool { // the peer may not have noticed yet
			remote, err = peer.Open(soon(t), "target", Write)
			return err == nil
		})
		wantOK(t, "Put", peer.Batch().Put(remote.At(0), p.local.Slice(0, 4096)).Notify(number(i)).Do(soon(t)))
		if got := wantNote(t, p.there, string(number(i))); got.Seq != 0 {
			t.Errorf("the first notification has number %d", got.Seq)
		}
	}
}

// TestEndsOnce: transfers wait for a free slot at a restarting peer and are canceled at the same
// time. Each completes once.
func TestEndsOnce(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	var transfers []*Transfer
	for i := range 2 * maxNotifications {
		b := p.peer.Batch()
		if i%3 == 0 {
			b.Get(p.local.Slice(0, 0), p.remote.At(0))
		}
		transfers = append(transfers, b.Notify(number(i)).Submit(soon(t)))
	}
	canceled := make(chan struct{})
	go func() {
		defer close(canceled)
		for i := len(transfers) - 1; i >= 0; i-- {
			transfers[i].Cancel()
			time.Sleep(10 * time.Microsecond)
		}
	}()
	p.there.restart()
	<-canceled
	for _, tr := range transfers {
		if err := tr.Wait(soon(t)); err != nil && !errors.Is(err, ErrRestarted) {
			wantErr(t, "Wait", err, ErrCanceled)
		}
	}
	p.peer.link.Mu.Lock()
	defer p.peer.link.Mu.Unlock()
	if p.peer.count != 0 || p.peer.running.first != nil {
		t.Errorf("%d transfers are under way, want none", p.peer.count)
	}
}

func TestPeers(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	eventually(t, "the listener knows the peer", func() bool { return len(p.there.Peers()) == 1 })
	back := p.there.Peers()[0]
	if name := back.Node().Identity().Name; name != "a" {
		t.Errorf("Peers: got %q, want a", name)
	}
	wantOK(t, "Notify", back.Notify(soon(t), []byte("welcome")))
	wantNote(t, p.here, "welcome")
	p.here.stop()
	eventually(t, "the listener knows no peer", func() bool { return len(p.there.Peers()) == 0 })
}
