package reliable_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// gate is a context whose UC QPs can be blocked in PostSend.
type gate struct {
	interposer
	mu      sync.Mutex
	qps     map[uint32]*gatedQP
	entered chan struct{} // receives an element when a QP blocks
	open    chan struct{} // closing it ends the block
}

type gatedQP struct {
	verbs.QP
	gate  *gate
	waits atomic.Bool
}

func newGate() *gate {
	g := &gate{qps: map[uint32]*gatedQP{}, entered: make(chan struct{}, 1), open: make(chan struct{})}
	g.qp = func(typ verbs.QPType, q verbs.QP) verbs.QP {
		if typ != verbs.UC {
			return q
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		gated := &gatedQP{QP: q, gate: g}
		g.qps[q.Num()] = gated
		return gated
	}
	return g
}

func (q *gatedQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if q.waits.Load() {
		select {
		case q.gate.entered <- struct{}{}:
		default:
		}
		<-q.gate.open
	}
	return q.QP.PostSend(wrs)
}

// hold blocks the paths of a QP.
func (g *gate) hold(q verbs.QP) {
	for _, p := range q.(reliable.StatsReader).Paths() {
		g.mu.Lock()
		g.qps[p.QPN].waits.Store(true)
		g.mu.Unlock()
	}
}

// TestEnginesAreIndependent blocks one connection in a NIC call. Meanwhile another one in the same PD, with a
// separate CQ, moves every kind of message.
func TestEnginesAreIndependent(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to tell connections")
	link := softnic.NewMemoryLink(nil)
	g := newGate()
	a := newSideOver(t, link, reliable.Config{Paths: 4}, 1<<17, g.over)
	b := newSide(t, link, reliable.Config{Paths: 4}, 1<<17)
	a2, b2 := a.apart(t), b.apart(t)
	connect(t, a, b)
	connect(t, a2, b2)
	b.recv(t, 0, 0, 0)
	b.recv(t, 1, 0, 0)
	must(t, a.sendNothing(1))
	g.hold(a.qp)
	open := sync.OnceFunc(func() { close(g.open) })
	late := time.AfterFunc(patience, open) // so that a failing test terminates
	posted := make(chan error)
	go func() { posted <- a.sendNothing(1) }()
	<-g.entered
	for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
		transfer(t, a2, b2, op, 100_000)
	}
	if !late.Stop() {
		t.Errorf("a connection waits for another one that waits for its NIC, want it to go on")
	}
	open()
	must(t, <-posted)
}
