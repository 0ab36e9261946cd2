package softnic_test

import (
	"fmt"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// loner is a NIC with one QP that sends to itself.
type loner struct {
	t   *testing.T
	nic *softnic.NIC
	q   verbs.QP
	cq  verbs.CQ
	mr  verbs.MR
	ah  verbs.AH
}

func newLoner(t *testing.T, typ verbs.QPType) *loner {
	t.Helper()
	l := &loner{t: t}
	nic, ctx, pd := plug(t, softnic.NewMemoryLink(nil))
	l.nic = nic
	_, l.mr = memory(t, pd, 4*kib)
	l.cq = newCQ(t, ctx, 64)
	q, err := pd.CreateQP(verbs.QPConfig{Type: typ, SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: 8, MaxRecvWR: 8})
	must(t, err)
	l.q = q
	e, err := q.Endpoint()
	must(t, err)
	l.ah, err = pd.CreateAH(verbs.AHAttr{DGID: e.GID, SGIDIndex: 1})
	must(t, err)
	l.connect()
	return l
}

func (l *loner) connect() {
	l.t.Helper()
	e, err := l.q.Endpoint()
	must(l.t, err)
	must(l.t, l.q.Connect(e))
}

// send posts signaled SENDs of n bytes to itself, in one chain.
func (l *loner) send(n uint32, ids ...uint64) {
	l.t.Helper()
	wrs := make([]verbs.SendWR, len(ids))
	for i, id := range ids {
		wrs[i] = verbs.SendWR{WRID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		if l.q.Type() == verbs.UD {
			wrs[i].AH, wrs[i].RemoteQPN, wrs[i].RemoteQKey = l.ah.Handle(), l.q.Num(), verbs.DefaultQKey
		}
		wrs[i].SetSGE(verbs.SGE{Addr: l.mr.Addr(), Length: n, LKey: l.mr.LKey()})
	}
	if n, err := l.q.PostSend(wrs); n != len(wrs) || err != nil {
		l.t.Fatalf("PostSend = %d, %v, want %d", n, err, len(wrs))
	}
}

func (l *loner) recv(id uint64, n, lkey uint32) {
	l.t.Helper()
	r := verbs.RecvWR{WRID: id}
	r.SetSGE(verbs.SGE{Addr: l.mr.Addr() + 2*kib, Length: n, LKey: lkey})
	postRecv(l.t, l.q, []verbs.RecvWR{r})
}

// want polls and compares the status of each work request, which must complete exactly once.
func (l *loner) want(want map[uint64]verbs.Status) {
	l.t.Helper()
	got := map[uint64]verbs.Status{}
	for _, wc := range poll(l.t, l.cq) {
		if _, twice := got[wc.WRID]; twice {
			l.t.Errorf("work request %d completed twice", wc.WRID)
		}
		got[wc.WRID] = wc.Status
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		l.t.Errorf("completions = %v, want %v", got, want)
	}
}

// TestUDSelfShortReceive: a datagram longer than its receive is dropped silently, even if the QP sent it to
// itself. The send completes once, the QP stays in RTS, and the receive serves the next datagram.
func TestUDSelfShortReceive(t *testing.T) {
	l := newLoner(t, verbs.UD)
	l.recv(100, verbs.GRHLen+8, l.mr.LKey())
	l.send(64, 1)
	l.want(map[uint64]verbs.Status{1: verbs.StatusSuccess})
	l.send(64, 2, 3)
	l.want(map[uint64]verbs.Status{2: verbs.StatusSuccess, 3: verbs.StatusSuccess})
	if got := l.q.State(); got != verbs.StateRTS {
		t.Errorf("the QP is in %v, want RTS", got)
	}
	if got := l.nic.Stats().MessagesDropped; got != 3 {
		t.Errorf("%d messages dropped, want 3", got)
	}
	l.send(8, 4)
	l.want(map[uint64]verbs.Status{4: verbs.StatusSuccess, 100: verbs.StatusSuccess})
}

// TestSelfBadReceive: a receive with a wrong key fails a QP that sends to itself, but only after the send.
// Every work request completes exactly once, later ones are flushed, and the QP works again after a reset.
func TestSelfBadReceive(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			l := newLoner(t, typ)
			l.recv(100, 1*kib, l.mr.LKey()+1)
			l.recv(101, 1*kib, l.mr.LKey())
			l.send(64, 1)
			l.want(map[uint64]verbs.Status{
				1: verbs.StatusSuccess, 100: verbs.StatusLocProtErr, 101: verbs.StatusWRFlushErr,
			})
			if got := l.q.State(); got != verbs.StateErr {
				t.Errorf("the QP is in %v, want ERR", got)
			}
			l.send(64, 2)
			l.want(map[uint64]verbs.Status{2: verbs.StatusWRFlushErr})

			must(t, l.q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
			l.connect()
			l.recv(102, 1*kib, l.mr.LKey())
			l.send(64, 3)
			l.want(map[uint64]verbs.Status{3: verbs.StatusSuccess, 102: verbs.StatusSuccess})
		})
	}
}

// TestSelfBadReceiveChain: the same with sends behind the one that uses the bad receive, in one chain.
// A full QP can be filled again after its sends have completed.
func TestSelfBadReceiveChain(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(typ.String(), func(t *testing.T) {
			l := newLoner(t, typ)
			l.recv(100, 1*kib, l.mr.LKey()+1)
			l.send(64, 0, 1, 2, 3, 4, 5, 6, 7)
			ended := map[uint64]int{}
			for _, wc := range poll(t, l.cq) {
				ended[wc.WRID]++
			}
			for id := range uint64(8) {
				if ended[id] != 1 {
					t.Errorf("send %d completed %d times, want once", id, ended[id])
				}
			}
			if len(ended) != 9 || ended[100] != 1 {
				t.Errorf("completions by work request = %v, want 8 sends and receive 100", ended)
			}
			l.send(64, 10, 11, 12, 13, 14, 15, 16, 17) // all slots are free again
			if got := len(poll(t, l.cq)); got != 8 {
				t.Errorf("%d completions of 8 sends on a QP in ERR, want 8", got)
			}
		})
	}
}
