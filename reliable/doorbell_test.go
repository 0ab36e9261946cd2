package reliable_test

import (
	"slices"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// counted is a context that counts the doorbells of its paths, control QPs, handshake QPs and shared receive queues.
type counted struct {
	interposer
	paths, controls, sides []*countedQP
	srqs                   []*countedSRQ
}

func newCounted() *counted {
	c := &counted{}
	c.qp = func(typ verbs.QPType, q verbs.QP) verbs.QP {
		counting := &countedQP{QP: q}
		kind := map[verbs.QPType]*[]*countedQP{verbs.UC: &c.paths, verbs.UD: &c.controls, verbs.RC: &c.sides}[typ]
		*kind = append(*kind, counting)
		return counting
	}
	c.srq = func(pd verbs.PD, cfg verbs.SRQConfig) (verbs.SRQ, error) {
		srq, err := pd.CreateSRQ(cfg)
		if err != nil {
			return nil, err
		}
		counting := &countedSRQ{SRQ: srq}
		c.srqs = append(c.srqs, counting)
		return counting, nil
	}
	return c
}

// countedQP counts calls of PostSend and PostRecv, one doorbell each, and the posted requests.
type countedQP struct {
	verbs.QP
	doorbells, requests int
	signaled            int
	refills, receives   int
}

// countedSRQ counts calls of PostRecv and the posted receives.
type countedSRQ struct {
	verbs.SRQ
	refills, receives int
}

// sent returns the number of requests on these QPs.
func sent(qps ...*countedQP) (n int) {
	for _, q := range qps {
		n += q.requests
	}
	return n
}

func (q *countedQP) PostSend(wrs []verbs.SendWR) (int, error) {
	n, err := q.QP.PostSend(wrs)
	q.doorbells++
	q.requests += n
	for i := range wrs[:n] {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			q.signaled++
		}
	}
	return n, err
}

func (q *countedQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := q.QP.PostRecv(wrs)
	q.refills++
	q.receives += n
	return n, err
}

func (s *countedSRQ) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := s.SRQ.PostRecv(wrs)
	s.refills++
	s.receives += n
	return n, err
}

// quantum runs one user call, in which each path may ring at most once. It returns the number of paths that
// rang and of posted requests.
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

// TestOneDoorbellPerPath: all chunks that one call posts to a path form one chain with one doorbell.
func TestOneDoorbellPerPath(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to count")
	const size, chunk, parts = 4 << 20, 32 << 10, 8
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock})
	cfg := reliable.Config{Now: clock, WindowBytes: size}
	c := newCounted()
	a := newSideOver(t, link, cfg, size, c.over)
	b := newSide(t, link, cfg, size)
	connect(t, a, b)
	a.ctx.(reliable.Stepper).Step() // receives b's credit
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

// TestAcknowledgementsLeaveInChains: the acknowledgements that one poll causes on all connections are posted
// with one doorbell per control QP and one completion each, and receives are reposted in chains. The
// context's counters match the calls to the provider below.
func TestAcknowledgementsLeaveInChains(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to count")
	const size, senders, rounds = 1 << 20, 8, 16
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock})
	cfg := reliable.Config{Now: clock, NoCredits: true} // so that senders never wait
	c := newCounted()
	b := newSideOver(t, link, cfg, size, c.over)
	var from []*side
	for i := range senders {
		from = append(from, newSide(t, link, cfg, size))
		if i == 0 {
			connect(t, from[0], b)
		} else {
			join(t, from[i].qp, b.another(t))
		}
	}
	before, refilled := b.ctx.(reliable.DoorbellCounter).Doorbells(), c.receives()
	for range rounds {
		for _, a := range from {
			a.post(t, a.write(b, 0, size))
		}
		polled := c.controlled()
		var wcs [16]verbs.WC
		_, err := b.cq.Poll(wcs[:])
		must(t, err)
		switch got := c.controlled(); {
		case got.doorbells-polled.doorbells > len(c.controls):
			t.Fatalf("a poll rang %d times for %d packets, want once per control QP", got.doorbells-polled.doorbells, got.requests-polled.requests)
		case got.requests-polled.requests < senders:
			t.Fatalf("a poll sent %d packets, want one to each of %d peers", got.requests-polled.requests, senders)
		case got.signaled-polled.signaled > got.doorbells-polled.doorbells:
			t.Fatalf("%d of %d packets asked for a completion, want the last of each of %d chains",
				got.signaled-polled.signaled, got.requests-polled.requests, got.doorbells-polled.doorbells)
		}
		for _, a := range from {
			for done := 0; done == 0; {
				done, err = a.cq.Poll(wcs[:])
				must(t, err)
				_, err = b.cq.Poll(wcs[:])
				must(t, err)
			}
		}
	}
	got := b.ctx.(reliable.DoorbellCounter).Doorbells()
	want := c.controlled()
	if got.Controls != uint64(want.requests) || got.ControlRings != uint64(want.doorbells) {
		t.Errorf("the context counts %d packets in %d chains, its NIC %d in %d", got.Controls, got.ControlRings, want.requests, want.doorbells)
	}
	again := c.receives()
	posted, rings := again.receives-refilled.receives, again.refills-refilled.refills
	if got.Receives-before.Receives != uint64(posted) || got.RecvRings-before.RecvRings != uint64(rings) || posted < 16*rings || rings == 0 {
		t.Errorf("%d receives were posted again in %d chains (the context counts %d in %d), want chains of 16 or more",
			posted, rings, got.Receives-before.Receives, got.RecvRings-before.RecvRings)
	}
	t.Logf("%d packets in %d chains, %d receives in %d chains", want.requests, want.doorbells, posted, rings)
}

// buffers is a pool of receive buffers for SENDs from all peers of a side: an SRQ refilled at each limit
// event.
type buffers struct {
	*side
	srq    verbs.SRQ
	limit  int
	free   []verbs.RecvWR
	chains int // posts to the SRQ
}

func (b *buffers) add(id uint64, size int) {
	wr := verbs.RecvWR{WRID: id}
	wr.SetSGE(b.sge(int(id)*size, size))
	b.free = append(b.free, wr)
}

// refill posts all free buffers as one chain.
func (b *buffers) refill(t *testing.T) {
	t.Helper()
	if n, err := b.srq.PostRecv(b.free); n != len(b.free) {
		t.Fatalf("PostRecv = %d, %v, want %d", n, err, len(b.free))
	}
	b.free = b.free[:0]
	must(t, b.srq.SetLimit(b.limit))
	b.chains++
}

// poll polls messages and returns their number. At a limit event it refills the pool.
func (b *buffers) poll(t *testing.T, size int) int {
	t.Helper()
	var wcs [64]verbs.WC
	n, err := b.cq.Poll(wcs[:])
	must(t, err)
	for i := range wcs[:n] {
		must(t, wcs[i].Err())
		b.add(wcs[i].WRID, size)
	}
	var evs [4]verbs.Event
	if k, _ := b.ctx.Events(evs[:]); k > 0 && evs[0].Type == verbs.EventSRQLimitReached {
		b.refill(t)
	}
	return n
}

// TestSharedBuffersReturnInChains uses one pool of buffers for SENDs from eight peers. The user refills it
// with a chain at each limit event. The NIC's receive buffers below are reposted in chains, too.
func TestSharedBuffersReturnInChains(t *testing.T) {
	reliable.OverUC(t, "QPs of its own to count")
	const senders, each, count, limit, size = 8, 200, 128, 64, 1000
	now := int64(0)
	clock := func() int64 { now += 100; return now }
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: clock})
	cfg := reliable.Config{Now: clock}
	c := newCounted()
	b := &buffers{limit: limit, side: newSideOver(t, link, cfg, count*size, c.over)}
	var err error
	b.srq, err = b.pd.CreateSRQ(verbs.SRQConfig{MaxWR: count})
	must(t, err)
	t.Cleanup(func() { must(t, b.srq.Close()) })
	var from []*side
	for range senders {
		a := newSide(t, link, cfg, size)
		q, err := b.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 1, SRQ: b.srq})
		must(t, err)
		t.Cleanup(func() { must(t, q.Close()) })
		join(t, a.qp, q)
		from = append(from, a)
	}
	for i := range uint64(count) {
		b.add(i, size)
	}
	b.refill(t)
	before, refilled := b.ctx.(reliable.DoorbellCounter).Doorbells(), c.receives()
	var sent [senders]int
	for got := 0; got < senders*each; got += b.poll(t, size) {
		for i, a := range from {
			wr := a.send(0, size)
			if n, _ := a.qp.PostSend([]verbs.SendWR{wr}[:min(1, each-sent[i])]); n == 1 {
				sent[i]++
			}
			_, err := a.cq.Poll(make([]verbs.WC, 16))
			must(t, err)
		}
		if now > int64(time.Minute) {
			t.Fatalf("%d of %d messages have arrived, in %d chains of receives", got, senders*each, b.chains)
		}
	}
	after, again := b.ctx.(reliable.DoorbellCounter).Doorbells(), c.receives()
	posted, rings := again.receives-refilled.receives, again.refills-refilled.refills
	if after.Receives-before.Receives != uint64(posted) || posted < 16*rings || posted < senders*each {
		t.Errorf("%d buffers were posted again in %d chains (the context counts %d), want chains of 16 or more", posted, rings, after.Receives-before.Receives)
	}
	if b.chains < 4 || senders*each < b.chains*limit/2 {
		t.Errorf("%d messages took %d chains of receives, want some, with half of the limit or more in each", senders*each, b.chains)
	}
	t.Logf("%d messages: %d chains of the user's receives; %d buffers of the NIC in %d chains", senders*each, b.chains, posted, rings)
}

// controlled sums up the control QPs.
func (c *counted) controlled() (sum countedQP) {
	for _, q := range c.controls {
		sum.doorbells += q.doorbells
		sum.requests += q.requests
		sum.signaled += q.signaled
	}
	return sum
}

// receives sums up everything that has receives.
func (c *counted) receives() (sum countedSRQ) {
	for _, s := range c.srqs {
		sum.refills += s.refills
		sum.receives += s.receives
	}
	for _, q := range slices.Concat(c.controls, c.paths) {
		sum.refills += q.refills
		sum.receives += q.receives
	}
	return sum
}
