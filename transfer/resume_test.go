package transfer

import (
	"testing"

	"ibverbx/softnic"
)

// TestNotifyAcknowledgmentLost: a notification has arrived, and the session is lost before the
// acknowledgment. The peer's next hello acknowledges it.
func TestNotifyAcknowledgmentLost(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	p := newPair(t, n, 4096)
	release := n.hold(p.there, p.here, 0)
	defer release()
	tr := p.peer.Batch().Notify([]byte("arrived")).Submit(soon(t))
	wantNote(t, p.there, "arrived")
	lose(p.peer)
	sessionLost(t, p.peer)
	release()
	wantOK(t, "Wait", tr.Wait(soon(t)))
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("next")))
	wantNote(t, p.there, "next")
}

// TestTakenBeforeHello: the program consumes all notifications between this side's hello and the peer's. The
// peer still learns about the free slots.
func TestTakenBeforeHello(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	var transfers []*Transfer
	for i := range maxNotifications + 10 {
		transfers = append(transfers, p.peer.Batch().Notify(number(i)).Submit(soon(t)))
	}
	wantOK(t, "Wait", transfers[maxNotifications-1].Wait(soon(t)))
	b := p.back
	s := b.session()
	eventually(t, "all that fit have arrived", func() bool { return b.arrived(b.link.Proc) == maxNotifications })
	b.link.Down(s)
	_, err := b.hello(s)
	wantOK(t, "hello", err)
	m := hello{id: b.link.Proc.ID, seen: b.link.ID, mailbox: b.link.Proc.mailbox}
	for i := range maxNotifications {
		wantNote(t, p.there, string(number(i)))
	}
	wantOK(t, "up", b.up(s, &m))
	for i := maxNotifications; i < len(transfers); i++ {
		wantNote(t, p.there, string(number(i)))
	}
}

// TestNotifySubmittedLate: a notification was to be sent in one session, and the goroutine that submits it runs only in the next one.
func TestNotifySubmittedLate(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	tr := &Transfer{peer: p.peer, name: "notify", batch: &batchState{body: []byte("late")}}
	list, err := p.peer.admit(soon(t), tr, true)
	wantOK(t, "admit", err)
	lose(p.peer)
	eventually(t, "there is another session", func() bool {
		p.peer.link.Mu.Lock()
		defer p.peer.link.Mu.Unlock()
		return p.peer.number == 2 && p.peer.link.Connected()
	})
	tr.begin(list, false, true)
	wantNote(t, p.there, "late")
	wantOK(t, "Wait", tr.Wait(soon(t)))
}
