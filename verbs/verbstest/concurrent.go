package verbstest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"ibverbx/verbs"
)

var concurrentTests = []test{
	{"QPEach", concurrentQPEach},
	{"OneSendQueue", concurrentOneSendQueue},
	{"PostHerePollThere", concurrentPostPoll},
	{"OneCQ", concurrentOneCQ},
	{"BothDirections", concurrentBothDirections},
	{"Churn", concurrentChurn},
	{"CloseUnderTraffic", concurrentClose},
}

// All methods are safe for concurrent use (package verbs, Concurrency). Functions on
// other goroutines return errors, because only the test's goroutine may abort it.

// runParallel runs all functions concurrently and reports their errors.
func (e *env) runParallel(run ...func() error) {
	e.Helper()
	errs := make(chan error, len(run))
	for _, f := range run {
		go func() { errs <- f() }()
	}
	for range run {
		if err := <-errs; err != nil {
			e.Errorf("%v", err)
		}
	}
}

// postAll posts sends one by one, and waits while the queue is full.
func postAll(q *end, wrs ...verbs.SendWR) error {
	for i := range wrs {
		for d := newDeadline(); ; {
			n, err := q.PostSend(wrs[i : i+1])
			if n == 1 && err == nil {
				break
			}
			if !errors.Is(err, verbs.ErrQueueFull) || !d.wait() {
				return fmt.Errorf("PostSend of wr_id %#x = %d, %w", wrs[i].WRID, n, err)
			}
		}
	}
	return nil
}

// cqDepthFor returns the depth of a CQ whose poller may lag by n sends. The send queue's depth
// does not bound the unpolled completions: a NIC may free a request's slot when it completes,
// before the completion is polled (Soft-RoCE does).
func cqDepthFor(n int) int { return n + 64 }

// takeAll takes n completions, all successes, and gives each to use.
func takeAll(cq verbs.CQ, n int, use func(wc verbs.WC) error) error {
	for range n {
		wcs, err := pollN(cq, 1)
		if err == nil {
			err = wcs[0].Err()
		}
		if err == nil {
			err = use(wcs[0])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func byID(wc verbs.WC) uint64  { return wc.WRID }
func byImm(wc verbs.WC) uint64 { return uint64(wc.Imm) }

// counted checks that the completions' numbers increase from 0.
func counted(number func(wc verbs.WC) uint64) func(wc verbs.WC) error {
	next := uint64(0)
	return func(wc verbs.WC) error {
		if got := number(wc); got != next {
			return fmt.Errorf("number %d came on QP %#x when it was the turn of %d", got, wc.QPN, next)
		}
		next++
		return nil
	}
}

// receiveAll takes n receives on q, and posts a new receive for each, so that the number posted
// stays the same.
func receiveAll(q *end, n int, use func(wc verbs.WC) error) error {
	return takeAll(q.cq, n, func(wc verbs.WC) error {
		if k, err := q.PostRecv([]verbs.RecvWR{recv(wc.WRID)}); k != 1 {
			return fmt.Errorf("PostRecv = %d, %w", k, err)
		}
		return use(wc)
	})
}

// exchange writes over c, sends a message, and checks that both arrive.
func exchange(c *conn, src, dst *buf, rounds int) error {
	size := src.mem.Len()
	for i := range rounds {
		want := payload(uint64(c.a.Num())<<32|uint64(i), size)
		src.put(0, want)
		if n, err := c.b.PostRecv([]verbs.RecvWR{recv(uint64(i))}); n != 1 {
			return fmt.Errorf("round %d: PostRecv = %d, %w", i, n, err)
		}
		if err := postAll(c.a, silent(write(1, dst, 0, src.sge(0, size))), sendImm(2, uint32(i))); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		ids := []uint64{uint64(i), 2}
		for k, q := range []*end{c.b, c.a} {
			wcs, err := pollN(q.cq, 1)
			if err != nil || wcs[0].Err() != nil || wcs[0].QPN != q.Num() || wcs[0].WRID != ids[k] {
				return fmt.Errorf("round %d: completion of QP %#x wr_id %d is due, got %s, %s", i, q.Num(), ids[k], describe(wcs), fmt.Sprint(err))
			}
			if !bytes.Equal(dst.bytes(), want) {
				return fmt.Errorf("round %d: the WRITE before the message is not there whole", i)
			}
		}
	}
	return nil
}

// Goroutines with separate QPs do not disturb each other.
func concurrentQPEach(e *env) {
	const workers, size = 8, 5000
	var run []func() error
	for range workers {
		c, src, dst := e.rc(), e.buf(e.a, size), e.buf(e.b, size)
		run = append(run, func() error { return exchange(c, src, dst, e.rounds(200)) })
	}
	e.runParallel(run...)
}

// Several goroutines may post to one send queue while another polls: each request is executed once,
// in order per goroutine, and the peer sees the same order as the sender's completions.
func concurrentOneSendQueue(e *env) {
	const workers = 6
	each := e.rounds(300)
	c := e.conn(connConfig{cqA: e.newCQ(e.a, cqDepthFor(workers*each), nil)})
	e.stock(c.b, 32)
	var run []func() error
	for g := range uint32(workers) {
		wrs := chain(each, func(i int) verbs.SendWR {
			return sendImm(uint64(g)<<32|uint64(i), g<<24|uint32(i))
		})
		run = append(run, func() error { return postAll(c.a, wrs...) })
	}
	var sent, received []uint64
	run = append(run,
		func() error {
			return takeAll(c.a.cq, workers*each, func(wc verbs.WC) error {
				sent = append(sent, wc.WRID)
				return nil
			})
		},
		func() error {
			return receiveAll(c.b, workers*each, func(wc verbs.WC) error {
				received = append(received, uint64(wc.Imm>>24)<<32|uint64(wc.Imm&0xffffff))
				return nil
			})
		})
	e.runParallel(run...)
	if e.Failed() {
		return
	}
	next := [workers]uint64{}
	for k, id := range sent {
		g := id >> 32
		if g >= workers || id&0xffffffff != next[g] {
			e.Fatalf("completion %d is of wr_id %#x, but the turn of that goroutine is %v", k, id, next)
		}
		next[g]++
		if received[k] != id {
			e.Fatalf("message %d is %#x, but completion %d is of wr_id %#x", k, received[k], k, id)
		}
	}
	e.expectEmpty(c.a.cq)
}

// One goroutine may post and another poll, at both ends, with the data in place when the completion
// is polled.
func concurrentPostPoll(e *env) {
	const size = 300
	rounds := e.rounds(1000)
	c := e.conn(connConfig{cqA: e.newCQ(e.a, cqDepthFor(rounds), nil)})
	src, dst := e.buf(e.a, rounds*size), e.buf(e.b, rounds*size)
	e.stock(c.b, 32)
	want := payload(1, rounds*size)
	src.put(0, want)
	wrs := chain(rounds, func(i int) verbs.SendWR {
		return writeImm(uint64(i), uint32(i), dst, i*size, src.sge(i*size, size))
	})
	inOrder := counted(byImm)
	e.runParallel(
		func() error { return postAll(c.a, wrs...) },
		func() error { return takeAll(c.a.cq, rounds, counted(byID)) },
		func() error {
			return receiveAll(c.b, rounds, func(wc verbs.WC) error {
				if err := inOrder(wc); err != nil {
					return err
				}
				if at := int(wc.Imm) * size; !bytes.Equal(dst.bytes()[at:at+size], want[at:at+size]) {
					return fmt.Errorf("message %d came before what it follows was there", wc.Imm)
				}
				return nil
			})
		})
}

// Several goroutines may poll one queue: each completion is returned to exactly one of them.
func concurrentOneCQ(e *env) {
	const pollers, batch = 4, 3
	rounds := e.rounds(170) // polls of each poller
	total := pollers * batch * rounds
	c := e.conn(connConfig{cqA: e.newCQ(e.a, cqDepthFor(total), nil)})
	src, dst := e.buf(e.a, 8), e.buf(e.b, 8)
	var wrs []verbs.SendWR
	for id := range uint64(total) {
		wrs = append(wrs, write(id, dst, 0, src.sge(0, 8)))
	}
	times := make([]atomic.Int32, total)
	poll := func() error {
		for range rounds {
			wcs, err := pollN(c.a.cq, batch)
			if err != nil {
				return err
			}
			for _, wc := range wcs {
				if wc.Status == verbs.StatusSuccess && wc.WRID < uint64(total) {
					times[wc.WRID].Add(1)
				}
			}
		}
		return nil
	}
	run := []func() error{func() error { return postAll(c.a, wrs...) }}
	e.runParallel(append(run, slices.Repeat([]func() error{poll}, pollers)...)...)
	for id := range times {
		if n := times[id].Load(); n != 1 {
			e.Fatalf("wr_id %d succeeded and was polled %d times, want once", id, n)
		}
	}
	e.expectEmpty(c.a.cq)
}

// Both ends of a connection can post, poll and receive, each from its own goroutines.
func concurrentBothDirections(e *env) {
	rounds := e.rounds(1000)
	cfg := verbs.QPConfig{Type: verbs.RC, MaxSendWR: 32, MaxRecvWR: 64}
	var ends [2]*end
	for i, s := range []*side{e.a, e.b} {
		cfg.SendCQ = e.newCQ(s, cqDepthFor(rounds), nil)
		ends[i] = e.newQP(s, cfg)
	}
	e.connect(&conn{a: ends[0], b: ends[1]}, connConfig{})
	wrs := chain(rounds, func(i int) verbs.SendWR {
		return sendImm(uint64(i), uint32(i))
	})
	var run []func() error
	for _, q := range ends {
		e.stock(q, 32)
		run = append(run,
			func() error { return postAll(q, wrs...) },
			func() error { return takeAll(q.sendCQ, rounds, counted(byID)) },
			func() error { return receiveAll(q, rounds, counted(byImm)) })
	}
	e.runParallel(run...)
}

// runConnection registers memory, creates and connects QPs, writes, and closes everything.
func runConnection(sides [2]*side, mems [2]*verbs.Memory, cqs [2]verbs.CQ) (failure error) {
	var ends [2]*end
	var bufs [2]*buf
	for i, s := range sides {
		mr, err := s.pd.RegisterMemory(mems[i], verbs.AccessAll)
		if err != nil {
			return err
		}
		defer func() { failure = errors.Join(failure, mr.Close()) }()
		bufs[i] = &buf{mem: mems[i], mr: mr}
		qp, err := s.pd.CreateQP(verbs.QPConfig{
			Type: verbs.RC, SendCQ: cqs[i], RecvCQ: cqs[i], MaxSendWR: 4, MaxRecvWR: 4, Port: s.port, GID: s.gid,
		})
		if err != nil {
			return err
		}
		defer func() { failure = errors.Join(failure, qp.Close()) }()
		ends[i] = &end{QP: qp, side: s, cq: cqs[i], sendCQ: cqs[i]}
	}
	for i, q := range ends {
		remote, err := ends[1-i].Endpoint()
		if err == nil {
			err = q.Connect(remote)
		}
		if err != nil {
			return err
		}
	}
	return exchange(&conn{a: ends[0], b: ends[1]}, bufs[0], bufs[1], 2)
}

// Memory can be registered, and QPs created and closed, while others are busy.
func concurrentChurn(e *env) {
	const workers = 3
	busy, src, dst := e.rc(), e.buf(e.a, 3000), e.buf(e.b, 3000)
	var left atomic.Int32
	left.Store(workers)
	run := []func() error{func() error {
		for left.Load() > 0 {
			if err := exchange(busy, src, dst, 1); err != nil {
				return fmt.Errorf("the connection that stays: %w", err)
			}
		}
		return nil
	}}
	for g := range workers {
		mems := [2]*verbs.Memory{e.memory(600), e.memory(600)}
		cqs := [2]verbs.CQ{e.newCQ(e.a, 8, nil), e.newCQ(e.b, 8, nil)}
		run = append(run, func() error {
			defer left.Add(-1)
			for i := range e.rounds(100) {
				if err := runConnection([2]*side{e.a, e.b}, mems, cqs); err != nil {
					return fmt.Errorf("connection %d of worker %d: %w", i, g, err)
				}
			}
			return nil
		})
	}
	e.runParallel(run...)
	e.exchange(busy, 100)
}

// A QP may be closed while goroutines post to it and poll its queue: posting returns ErrClosed, and
// the QP's completions are never polled later.
func concurrentClose(e *env) {
	for range e.rounds(40) {
		// The poller may be slow and the QP closed late, so the queue holds every completion that may be
		// unpolled.
		const ahead = 200
		c, src, dst := e.conn(connConfig{cqA: e.newCQ(e.a, cqDepthFor(ahead), nil)}), e.buf(e.a, 64), e.buf(e.b, 64)
		var posted, polled atomic.Int32
		var closed atomic.Bool
		post := func() error {
			for {
				if posted.Load()-polled.Load() >= ahead && !closed.Load() {
					runtime.Gosched()
					continue
				}
				switch err := postAll(c.a, write(1, dst, 0, src.sge(0, 64))); {
				case errors.Is(err, verbs.ErrClosed):
					return nil
				case err != nil:
					return err
				}
				posted.Add(1)
			}
		}
		poll := func() error {
			wcs := make([]verbs.WC, 4)
			for !closed.Load() {
				n, err := c.a.cq.Poll(wcs)
				if err != nil || n > 0 && wcs[0].Err() != nil {
					return fmt.Errorf("polled %d, %s with %s", n, fmt.Sprint(err), describe(wcs[:n]))
				}
				polled.Add(int32(n))
			}
			return nil
		}
		destroy := func() error {
			defer closed.Store(true)
			for d := newDeadline(); posted.Load() < 8 && d.wait(); {
			}
			return c.a.Close()
		}
		e.runParallel(post, poll, destroy)
		e.expectEmpty(c.a.cq)
		e.inState(c.b, verbs.StateRTS)
	}
}
