package sim

import (
	"testing"
	"time"

	"ibverbx"
)

// TestCheckGone: an end whose peer was replaced must fail soon, with the right error.
func TestCheckGone(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		after time.Duration
		other int // reasons to fail
		bad   bool
	}{
		{"soon", ibverbx.ErrPeerGone, goneTime, 0, false},
		{"late", ibverbx.ErrPeerGone, goneTime + 1, 0, true},
		{"another error", ibverbx.ErrDeadline, time.Second, 0, true},
		{"another reason", ibverbx.ErrDeadline, time.Second, 1, false},
	} {
		w := &world{report: &Report{}, now: int64(time.Minute + c.after)}
		e := &end{w: w, endState: endState{replaced: int64(time.Minute), reasons: c.other}}
		if e.checkGone(c.err); w.failed() != c.bad {
			t.Errorf("%s: failure = %v, want one: %v", c.name, w.report.Failure, c.bad)
		}
	}
}

// TestHeir: a process responds on its predecessor's channel to messages received there, and sends everything
// else to its own peer.
func TestHeir(t *testing.T) {
	w := &world{plan: &Plan{Failover: true}}
	own, old := &controlPair{w: w}, &controlPair{w: w}
	h := &replacementChannel{own: channel{pair: own}, old: channel{pair: old}}
	newPeer, oldPeer := channel{pair: own, side: 1}, channel{pair: old, side: 1}
	send := func(c ibverbx.Control, text string) {
		t.Helper()
		if err := c.Send([]byte(text)); err != nil {
			t.Fatalf("Send(%q) = %v, want nil", text, err)
		}
		w.now += int64(controlDelay)
	}
	wants := func(c ibverbx.Control, text string) {
		t.Helper()
		b := make([]byte, ibverbx.MaxControl)
		if n, err := c.Recv(b); err != nil || string(b[:n]) != text {
			t.Fatalf("Recv = %q, %v; want %q", b[:n], err, text)
		}
	}
	send(oldPeer, "down")
	send(newPeer, "offer")
	wants(h, "offer")
	send(h, "offer too")
	wants(h, "down")
	send(h, "reset")
	send(h, "more")
	wants(oldPeer, "reset")
	wants(oldPeer, "")
	wants(newPeer, "offer too")
	wants(newPeer, "more")
}
