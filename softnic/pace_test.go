//go:build linux

package softnic_test

import (
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// pacedNICs returns two NICs on separate links, with small buffers, that assume each other to be softnics.
func pacedNICs(t *testing.T) *udpRig {
	t.Helper()
	return newUDPRig(t, softnic.UDPConfig{AssumeSoftNICs: true, Buffer: 64 << 10})
}

// TestPacedUC: messages many times larger than the receiver's socket buffer all arrive, although UC lacks
// acknowledgements.
func TestPacedUC(t *testing.T) {
	const n, size = 200, 64 << 10
	r := pacedNICs(t)
	_, src := memory(t, r.pa, size)
	_, dst := memory(t, r.pb, size)
	cqA, cqB := newCQ(t, r.ca, n), newCQ(t, r.cb, n)
	qa, qb := r.pair(verbs.UC, cqA, cqB, n)
	recv := verbs.RecvWR{}
	recv.SetSGE(verbs.SGE{Addr: dst.Addr(), Length: size, LKey: dst.LKey()})
	for range n {
		if _, err := qb.PostRecv([]verbs.RecvWR{recv}); err != nil {
			t.Fatal(err)
		}
	}
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	send.SetSGE(verbs.SGE{Addr: src.Addr(), Length: size, LKey: src.LKey()})
	for range n {
		if _, err := qa.PostSend([]verbs.SendWR{send}); err != nil {
			t.Fatal(err)
		}
	}
	succeeded(t, await(t, cqA, n))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("sender %+v, receiver %+v", r.a.Stats(), r.b.Stats())
		}
	})
	succeeded(t, await(t, cqB, n))
	if s := r.b.Stats(); s.MessagesDropped != 0 {
		t.Errorf("%d messages were dropped, want none", s.MessagesDropped)
	}
}

// TestPacedUD: datagrams of many times the receiver's socket buffer arrive too.
func TestPacedUD(t *testing.T) {
	const n, size = 2000, 4096
	r := pacedNICs(t)
	_, src := memory(t, r.pa, size)
	_, dst := memory(t, r.pb, size+verbs.GRHLen)
	cqA, cqB := newCQ(t, r.ca, n), newCQ(t, r.cb, n)
	qa, qb := r.pair(verbs.UD, cqA, cqB, n)
	recv := verbs.RecvWR{}
	recv.SetSGE(verbs.SGE{Addr: dst.Addr(), Length: size + verbs.GRHLen, LKey: dst.LKey()})
	to, err := qb.Endpoint()
	must(t, err)
	ah, err := r.pa.CreateAH(verbs.AHAttr{DGID: to.GID, DLID: to.LID}) // the LID: another process can have the address too
	must(t, err)
	send := verbs.SendWR{Opcode: verbs.OpSend, AH: ah.Handle(), RemoteQPN: qb.Num(), RemoteQKey: verbs.DefaultQKey}
	send.SetSGE(verbs.SGE{Addr: src.Addr(), Length: size, LKey: src.LKey()})
	for range n {
		if _, err := qb.PostRecv([]verbs.RecvWR{recv}); err != nil {
			t.Fatal(err)
		}
	}
	for range n {
		if _, err := qa.PostSend([]verbs.SendWR{send}); err != nil {
			t.Fatal(err)
		}
	}
	succeeded(t, await(t, cqB, n))
}

// TestPacedToNobody: without responses a paced QP continues slowly, and every request completes.
func TestPacedToNobody(t *testing.T) {
	const n = 40 // more than the window of such a small buffer
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			r := pacedNICs(t)
			_, src := memory(t, r.pa, 4096)
			cq := newCQ(t, r.ca, n)
			q, err := r.pa.CreateQP(verbs.QPConfig{Type: typ, SendCQ: cq, RecvCQ: cq, MaxSendWR: n})
			must(t, err)
			must(t, q.Connect(verbs.Endpoint{QPN: 17, MTU: verbs.MTU4096, GID: verbs.GIDFromAddr(nobody)}))
			ah, err := r.pa.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(nobody)})
			must(t, err)
			send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, AH: ah.Handle(), RemoteQPN: 17}
			send.SetSGE(verbs.SGE{Addr: src.Addr(), Length: 16, LKey: src.LKey()})
			begin := time.Now()
			for range n {
				if _, err := q.PostSend([]verbs.SendWR{send}); err != nil {
					t.Fatal(err)
				}
			}
			succeeded(t, await(t, cq, n))
			if time.Since(begin) < 100*time.Millisecond {
				t.Errorf("%v: %d packets to nobody left at once, want a pause", typ, n)
			}
		})
	}
}
