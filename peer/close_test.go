package peer_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// diary records the closing order of a NIC's objects.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) note(what string, end func() error) error {
	d.mu.Lock()
	d.entries = append(d.entries, what)
	d.mu.Unlock()
	return end()
}

// The wrappers forward every call and record each Close.
type (
	notedContext struct {
		verbs.Context
		diary *diary
	}
	notedPD struct {
		verbs.PD
		diary *diary
	}
	notedMR struct {
		verbs.MR
		diary *diary
	}
	notedQP struct {
		verbs.QP
		diary *diary
	}
)

func (c notedContext) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return notedPD{pd, c.diary}, err
}

func (p notedPD) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegisterMemory(m, access)
	return notedMR{mr, p.diary}, err
}

func (p notedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(cfg)
	return notedQP{qp, p.diary}, err
}

func (m notedMR) Close() error { return m.diary.note("MR", m.MR.Close) }
func (q notedQP) Close() error { return q.diary.note("QP", q.QP.Close) }

// Session.Close destroys the QPs before the memory. The peer's outstanding requests then fail because the QP
// is closed, not because of a wrong key.
func TestSessionCloseOrder(t *testing.T) {
	n := newNetwork(1)
	seen := &diary{}
	noted := config(func() (peer.NICs, error) {
		nics, err := n.open(1)()
		for i := range nics.Rails {
			nics.Rails[i].Context = notedContext{nics.Rails[i].Context, seen}
		}
		return nics, err
	})
	noted.QP = ibverbx.Config{Lanes: 2, Policy: ibverbx.RoundRobin}
	d, l := mustMeet(t, noted, config(n.open(1)))
	write(t, d, l, 1)
	seen.entries = nil
	if err := d.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	last := slices.Index(seen.entries, "MR")
	if last < 2 || slices.Contains(seen.entries[last:], "QP") {
		t.Errorf("closed in the order %v, want all QPs before the memory that the peer uses", seen.entries)
	}
}

// A side that only waits, without having posted a request, notices the peer's death.
func TestSessionPeerDies(t *testing.T) {
	n := newNetwork(1)
	d, l := mustMeet(t, config(n.open(1)), config(n.open(1)))
	if _, err := d.QP.PostRecv([]ibverbx.RecvWR{{WRID: 5}}); err != nil {
		t.Fatalf("PostRecv: got %v, want no error", err)
	}
	if err := l.Conn.Close(); err != nil { // the host does this for a killed process
		t.Fatalf("Close: got %v, want no error", err)
	}
	var wcs [4]ibverbx.WC
	if n, err := d.CQ.Wait(soon(t), wcs[:]); n != 1 || err != nil || wcs[0].WRID != 5 {
		t.Fatalf("Wait: got %d, %v, want receive 5 flushed", n, err)
	}
	if err := d.QP.Err(); wcs[0].Status != verbs.StatusWRFlushErr || !errors.Is(err, ibverbx.ErrPeerGone) || !errors.Is(err, bootstrap.ErrPeerClosed) {
		t.Errorf("the receive ended in %v and the VirtualQP in %v, want %v and %v", wcs[0].Err(), err, verbs.StatusWRFlushErr, ibverbx.ErrPeerGone)
	}
	if err := l.QP.Err(); err != nil {
		t.Errorf("the side that closed its connection: got %v, want no error about the peer", err)
	}
}

// A side in WaitDone helps to rebuild a lane that the other side has lost.
func TestFinishBringsLanesBack(t *testing.T) {
	n := newNetwork(2)
	d, l := mustMeet(t, config(n.open(2)), config(n.open(2)))
	ctx := soon(t)
	finished := make(chan error, 1)
	go func() { finished <- l.WaitDone(ctx) }()
	if err := d.QP.KillLane(0); err != nil {
		t.Fatalf("KillLane: got %v, want no error", err)
	}
	wr := ibverbx.SendWR{WRID: 7, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: d.Remote("data")}
	wr.SetSGE(d.Local("data").SGE(0, 1<<20))
	if _, err := d.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatalf("PostSend: got %v, want no error", err)
	}
	var wcs [4]ibverbx.WC
	if n, err := d.CQ.Wait(ctx, wcs[:]); n != 1 || err != nil || wcs[0].WRID != 7 {
		t.Fatalf("Wait: got %d, %v, want the completion of request 7", n, err)
	}
	if err := wcs[0].Err(); err != nil {
		t.Errorf("the request ended in %v, want success", err)
	}
	if mine, theirs := d.WaitDone(ctx), <-finished; mine != nil || theirs != nil {
		t.Errorf("WaitDone: got %v and %v, want no errors", mine, theirs)
	}
}
