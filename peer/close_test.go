package peer_test

import (
	"slices"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// diary notes in which order objects of a NIC are closed.
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

// The wrappers pass everything on and note what is closed.
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

// A Session that is closed takes its QPs away before its memory: what the peer has under way
// then finds nobody, and does not find that its keys are wrong.
func TestSessionCloseOrder(t *testing.T) {
	n := newNetwork(1)
	seen := &diary{}
	noted := config(func() (peer.NICs, error) {
		nics, err := n.open(1, softnic.Config{})()
		for i := range nics.Rails {
			nics.Rails[i].Context = notedContext{nics.Rails[i].Context, seen}
		}
		return nics, err
	})
	noted.QP = ibverbx.Config{Lanes: 2, Policy: ibverbx.RoundRobin}
	d, l := mustMeet(t, noted, config(n.open(1, softnic.Config{})))
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
