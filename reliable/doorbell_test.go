package reliable_test

import (
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// counted is a context whose UC QPs count their doorbells.
type counted struct {
	verbs.Context
	paths []*countedQP
}

type countedPD struct {
	verbs.PD
	ctx *counted
}

// countedQP counts calls of PostSend, a doorbell each, and what they posted.
type countedQP struct {
	verbs.QP
	doorbells, requests int
}

func (c *counted) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return countedPD{pd, c}, err
}

func (p countedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	q, err := p.PD.CreateQP(cfg)
	if err != nil || cfg.Type != verbs.UC {
		return q, err
	}
	counting := &countedQP{QP: q}
	p.ctx.paths = append(p.ctx.paths, counting)
	return counting, nil
}

func (q *countedQP) PostSend(wrs []verbs.SendWR) (int, error) {
	n, err := q.QP.PostSend(wrs)
	q.doorbells++
	q.requests += n
	return n, err
}

// quantum runs one call of the user's. Each path may ring once in it. It returns how many paths
// rang, and how many requests left.
func (c *counted) quantum(t *testing.T, what string, call func()) (rang, requests int) {
	t.Helper()
	for _, q := range c.paths {
		q.doorbells, q.requests = 0, 0
	}
	call()
	for i, q := range c.paths {
		if q.doorbells > 1 {
			t.Fatalf("%s: path %d rang %d times for %d requests, want once at most", what, i, q.doorbells, q.requests)
		}
		rang += q.doorbells
		requests += q.requests
	}
	return rang, requests
}

// TestOneDoorbellPerPath wants that what one call brings to a path leaves as one chain, with
// one doorbell, however many chunks that is.
func TestOneDoorbellPerPath(t *testing.T) {
	const size, chunk, parts = 4 << 20, 32 << 10, 8
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock})
	cfg := reliable.Config{Now: clock}
	c := &counted{}
	a := newSideOver(t, link, cfg, size, func(inner verbs.Context) verbs.Context { c.Context = inner; return c })
	b := newSide(t, link, cfg, size)
	connect(t, a, b)
	var wrs []verbs.SendWR
	for i := range parts {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		wr.SetSGE(a.sge(i*size/parts, size/parts))
		wrs = append(wrs, wr)
	}
	post := func() {
		if n, err := a.qp.PostSend(wrs); n != parts {
			t.Fatalf("PostSend = %d, %v, want %d", n, err, parts)
		}
	}
	rang, requests := c.quantum(t, "the first post", post)
	// The window of bytes is full: 128 chunks on 16 paths.
	if want := size / chunk; requests != want || rang > len(c.paths) {
		t.Fatalf("a chain of %d chunks left as %d requests with %d doorbells, want %d and 16 at most", want, requests, rang, want)
	}
	c.quantum(t, "a second post", post)
	total, bells, done := requests, rang, 0
	for polls := 0; done < 2*parts; polls++ {
		if polls == 1000 {
			t.Fatalf("%d requests done after %d polls, want %d", done, polls, 2*parts)
		}
		var wcs [16]verbs.WC
		if _, err := b.cq.Poll(wcs[:]); err != nil {
			t.Fatalf("Poll = %v, want none", err)
		}
		rang, requests := c.quantum(t, "a poll", func() {
			n, err := a.cq.Poll(wcs[:])
			if err != nil {
				t.Fatalf("Poll = %v, want none", err)
			}
			done += n
		})
		total, bells = total+requests, bells+rang
	}
	if total < 2*size/chunk || bells > total/2 {
		t.Fatalf("%d chunks left with %d doorbells, want %d chunks and half as many doorbells at most", total, bells, 2*size/chunk)
	}
	t.Logf("%d chunks, %d doorbells", total, bells)
}
