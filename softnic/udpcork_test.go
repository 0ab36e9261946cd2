//go:build linux

package softnic

import (
	"testing"

	"ibverbx/verbs"
)

// TestUDPCork: between Cork and Uncork packets of all QPs are collected, and the last Uncork is not the
// only one that sends them.
func TestUDPCork(t *testing.T) {
	s := newBesieged(t)
	all, u := s.qps, s.nic.udp
	var x verbs.Corker = all[0].pd.ctx
	waiting := func() bool {
		u.nic.core.mu.Lock()
		defer u.nic.core.mu.Unlock()
		return u.udpNIC.dirty
	}
	post := func(q *qp) bool {
		if n, err := q.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}}); n != 1 || err != nil {
			t.Fatalf("PostSend = %d, %v, want 1", n, err)
		}
		return waiting()
	}
	if post(all[0]) {
		t.Error("packets wait after a post, want none")
	}
	x.Cork()
	x.Cork()
	if !post(all[0]) || !post(all[1]) {
		t.Error("no packet waits in a cork, want some")
	}
	x.Uncork()
	if waiting() {
		t.Error("packets wait after Uncork, want none")
	}
	if !post(all[0]) {
		t.Error("no packet waits in a cork, want some")
	}
	x.Uncork()
	if waiting() || post(all[0]) {
		t.Error("packets wait after the last Uncork, want none")
	}
}
