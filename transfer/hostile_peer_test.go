package transfer

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/service"
)

// slowSession is a session whose peer does not accept messages.
type slowSession struct {
	service.Session
	release chan struct{}
	sending atomic.Int32
}

func (s *slowSession) Send(context.Context, service.ID, []byte) error {
	s.sending.Add(1)
	<-s.release
	return nil
}

// TestManyRevocations: a peer repeatedly revokes segments it has not granted, and does not accept the
// responses. They are sent one at a time.
func TestManyRevocations(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096).peer
	s := &slowSession{Session: p.session(), release: make(chan struct{})}
	p.link.Mu.Lock()
	p.link.Session = s
	p.link.Mu.Unlock()
	done := make(chan error, 1)
	go func() {
		var err error
		for i := uint32(0); i < 100 && err == nil; i++ {
			err = p.message(s, &revoke{grant: 1000 + i})
		}
		done <- err
	}()
	eventually(t, "an answer is sent", func() bool { return s.sending.Load() > 0 })
	time.Sleep(10 * time.Millisecond) // only gives a bug time to show
	if got := s.sending.Load(); got != 1 {
		t.Errorf("%d answers are sent at a time, want 1", got)
	}
	close(s.release)
	wantOK(t, "message", <-done)
	p.link.Mu.Lock()
	p.link.Session = s.Session
	p.link.Mu.Unlock()
}

// TestNotesOfManyEngines: a peer claims to be a new one in every session, and fills the mailbox each time.
// The number of pending notifications is bounded.
func TestNotesOfManyEngines(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096).back
	s := p.session()
	b := p.mailbox.mem.Bytes()
	var err error
	for id := uint64(1); id < 20 && err == nil; id++ {
		wantOK(t, "up", p.up(s, &hello{id: id, seen: p.link.ID, mailbox: p.mailbox.remote()}))
		for seq := uint32(0); seq < maxNotifications && err == nil; seq++ {
			little.PutUint64(b[seq*slotSize:], uint64(seq))
			err = p.notificationArrived(s, seq<<placeBits|seq, notificationHeader)
		}
	}
	wantErr(t, "notifications of 20 engines", err, errProtocol)
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	if p.queued > maxQueued+mailboxSize {
		t.Errorf("%d bytes wait for the program, want at most %d", p.queued, maxQueued+mailboxSize)
	}
}

// TestGrantNumbers: opening the same segment repeatedly does not use up grant numbers.
func TestGrantNumbers(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	last := func() uint32 {
		p.there.mu.Lock()
		defer p.there.mu.Unlock()
		return p.there.grants
	}
	before := last()
	for range 10 {
		open2(t, p.peer, "target", Read|Write)
	}
	if after := last(); after != before {
		t.Errorf("the last grant has number %d, want %d as before", after, before)
	}
}
