//go:build linux

package softnic

import (
	"bytes"
	"errors"
	"runtime/debug"
	"testing"

	"ibverbx/internal/seal"
	"ibverbx/verbs"
)

// TestUncorkAfterClose: packets collected by a cork leave when the NIC closes. A later Uncork does not use the closed sockets, whose
// descriptors may belong to another file by then.
func TestUncorkAfterClose(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[1] // UC, which does not retransmit
	x := q.pd.ctx
	x.Cork()
	post(t, q, verbs.SendWR{Opcode: verbs.OpRDMAWrite})
	check(t, s.nic.Close())
	x.Uncork()
	if got := s.nic.Stats(); got.PacketsSent != 1 || got.SendDrops != 0 {
		t.Errorf("%d packets and %d drops, want 1 packet that was sent", got.PacketsSent, got.SendDrops)
	}
}

// TestShmUnreportedClosed: Unreported of a QP of a closed NIC does not read the peer's memory, which is unmapped by then.
func TestShmUnreportedClosed(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	s, _ := newShmBesieged(t)
	check(t, s.nic.Close())
	if s.qps[0].Unreported() {
		t.Error("a closed QP has unreported completions, want none")
	}
}

// TestLearnClosed: a QP and its Seal may be closed before a concurrent Connect has locked the NIC. Connect then returns an error.
func TestLearnClosed(t *testing.T) {
	f := newSealAttack(t)
	s, err := NewSeal(bytes.Repeat([]byte{9}, 32), false)
	check(t, err)
	v, err := f.pds[1].CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: f.cqs[1], RecvCQ: f.cqs[1], MaxSendWR: 1, Path: verbs.PathConfig{Seal: s}})
	check(t, err)
	q := v.(*qp)
	check(t, q.Close())
	check(t, s.Close())
	remote := verbs.Endpoint{QPN: 99, GID: verbs.GIDFromAddr(f.addr(0)), LID: 5000, Extra: sealedExtra(seal.NewGreeting(77, 3, [seal.NonceLen]byte{1}))}
	q.core.mu.Lock()
	defer q.core.mu.Unlock()
	if err := q.learn(q.port(), &remote); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("learn on a closed QP = %v, want %v", err, verbs.ErrClosed)
	}
}
