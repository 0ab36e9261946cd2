//go:build linux

package softnic

import (
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// declared declares the peer of a besieged NIC's RC QP to be a softnic.
func (s *besieged) declared(t *testing.T) *qp {
	t.Helper()
	q := s.qps[0]
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	q.path.route.dest = s.nic.udp.dest(udpTarget{udpAddr: udpAddr{q.path.dgid, 50000}}, &udpPeer{runs: true})
	return q
}

// TestUDPReady: a softnic that got an RNR NAK is notified once when a receive is posted. Other peers are not
// notified.
func TestUDPReady(t *testing.T) {
	for _, softnic := range []bool{false, true} {
		s := newBesieged(t)
		q, want := s.qps[0], uint64(0)
		if softnic {
			q, want = s.declared(t), 1
		}
		send := make([]byte, 20)
		for range 3 { // two receives are posted
			h := roce.Header{Opcode: roce.OpSendOnly, DestQPN: q.num, PKey: roce.PKeyDefault, PSN: q.epsn}
			h.Encode(send, 4)
			s.flow.Seal(send, 0)
			s.attack(send, len(send))
		}
		before := s.nic.Stats()
		if before.RNRNAKsSent != 1 {
			t.Fatalf("%d RNR NAKs, want 1", before.RNRNAKsSent)
		}
		for range 2 {
			if n, err := q.PostRecv([]verbs.RecvWR{{}}); n != 1 || err != nil {
				t.Fatalf("PostRecv = %d, %v, want 1", n, err)
			}
		}
		if got := s.nic.Stats().PacketsSent - before.PacketsSent; got != want {
			t.Errorf("softnic %v: %d packets after two receives were posted, want %d", softnic, got, want)
		}
	}
}

// TestUDPResume: an acknowledgement of the preceding packets cancels the RNR wait, which then does not count
// as a retry. Older acknowledgements do not.
func TestUDPResume(t *testing.T) {
	s := newBesieged(t)
	q := s.declared(t)
	if n, err := q.PostSend(make([]verbs.SendWR, 3)); n != 3 || err != nil {
		t.Fatalf("PostSend = %d, %v, want 3", n, err)
	}
	answer := func(psn roce.PSN, syndrome uint8) {
		b := make([]byte, 20)
		h := roce.Header{Opcode: roce.OpAck, DestQPN: q.num, PKey: roce.PKeyDefault, PSN: psn & roce.PSNMask, Syndrome: syndrome}
		h.Encode(b, 0)
		s.flow.Seal(b, 0)
		s.attack(b, len(b))
	}
	const left = 3
	q.core.mu.Lock()
	first := q.una
	q.attr.RNRRetry = left
	q.core.mu.Unlock()
	answer(first.Add(1), roce.SyndromeRNR) // code 0 is 655 ms
	if !q.rnrWait || q.una != first.Add(1) {
		t.Fatalf("waits: %v, oldest %d, want the QP to wait with %d", q.rnrWait, q.una, first.Add(1))
	}
	answer(first.Add(roce.PSNMask), roce.SyndromeAck)
	if !q.rnrWait {
		t.Error("an old acknowledgement ended the wait, want none to")
	}
	sent := s.nic.Stats().PacketsSent
	answer(first, roce.SyndromeAck)
	if got := s.nic.Stats().PacketsSent - sent; q.rnrWait || got != 2 || q.rnrLeft != left {
		t.Errorf("waits: %v, %d packets again, %d retries left; want false, 2, %d", q.rnrWait, got, q.rnrLeft, left)
	}
}
