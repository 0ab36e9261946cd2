package reliable_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// party is QPs of side a that send to QPs of side b, which share an SRQ and have one of two receive CQs, on a
// clock of the test. Message k of pair i has the immediate i<<16|k.
type party struct {
	*world
	rng    *rand.Rand
	a, b   *side
	srq    verbs.SRQ
	cqs    [2]verbs.CQ
	qa, qb []verbs.QP
	sent   []int          // messages posted, by pair
	got    []int          // messages received, by pair
	ended  []verbs.Status // of the last request of each pair
	done   []int          // completed requests, by pair
	inSRQ  []bool         // buffers posted and not yet returned
	keep   bool           // receives are not posted again
	path   verbs.PathConfig
}

const partySize = 3000

// newParty connects n pairs, with receives in the SRQ.
func newParty(t *testing.T, seed uint64, loss float64, cfg reliable.Config, n, receives int) *party {
	t.Helper()
	p := &party{world: newWorld(t, softnic.Impairment{Delay: 10 * time.Microsecond, Loss: loss}), rng: rand.New(rand.NewPCG(seed, 5))}
	cfg.ChunkBytes, cfg.MinProbe, cfg.RecvBytes = 512, 50_000, 1024*512
	cfg = p.config(cfg)
	p.a, p.b = newSide(t, p.link, cfg, partySize), newSide(t, p.link, cfg, receives*partySize)
	p.a.fill(1)
	var err error
	for i := range p.cqs {
		p.cqs[i], err = p.b.ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
		must(t, err)
		t.Cleanup(func() { must(t, p.cqs[i].Close()) })
	}
	p.srq, err = p.b.pd.CreateSRQ(verbs.SRQConfig{MaxWR: receives})
	must(t, err)
	t.Cleanup(func() { must(t, p.srq.Close()) })
	for range n {
		p.join(t)
	}
	p.inSRQ = make([]bool, receives)
	for i := range receives {
		p.recv(t, i)
	}
	return p
}

// join connects one more pair.
func (p *party) join(t *testing.T) {
	t.Helper()
	qa, err := p.a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: p.a.cq, RecvCQ: p.a.cq, MaxSendWR: 64, Path: p.path})
	must(t, err)
	t.Cleanup(func() { must(t, qa.Close()) })
	qb, err := p.b.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: p.b.cq, RecvCQ: p.cqs[len(p.qb)%2], MaxSendWR: 4, SRQ: p.srq})
	must(t, err)
	t.Cleanup(func() { must(t, qb.Close()) })
	join(t, qa, qb)
	p.qa, p.qb = append(p.qa, qa), append(p.qb, qb)
	p.sent, p.got, p.done, p.ended = append(p.sent, 0), append(p.got, 0), append(p.done, 0), append(p.ended, 0)
}

// recv posts buffer i.
func (p *party) recv(t *testing.T, i int) {
	t.Helper()
	wr := verbs.RecvWR{WRID: uint64(i)}
	wr.SetSGE(p.b.sge(i*partySize, partySize))
	if n, err := p.srq.PostRecv([]verbs.RecvWR{wr}); n != 1 {
		t.Fatalf("PostRecv = %d, %v, want 1", n, err)
	}
	p.inSRQ[i] = true
}

// send sends the next n messages of pair i in a chain: SENDs, and WRITEs with an immediate of no bytes.
func (p *party) send(t *testing.T, i, n int) {
	t.Helper()
	var chain []verbs.SendWR
	for range n {
		imm := uint32(i<<16 | p.sent[i])
		wr := verbs.SendWR{WRID: uint64(p.sent[i]), Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: imm}
		if n := partyLen(imm); n%7 == 0 {
			wr.Opcode = verbs.OpRDMAWriteWithImm
		} else {
			wr.SetSGE(p.a.sge(0, n))
		}
		chain = append(chain, wr)
		p.sent[i]++
	}
	if k, err := p.qa[i].PostSend(chain); k != n {
		t.Fatalf("PostSend = %d, %v, want %d", k, err, n)
	}
}

// partyLen is the length of a message.
func partyLen(imm uint32) int { return int(imm*2654435761>>8) % partySize }

// poll checks completions. Messages of a pair arrive in order and intact, each in a receive posted once.
// Flushed receives are returned.
func (p *party) poll(t *testing.T) {
	t.Helper()
	for more := true; more; {
		more = p.take(t, p.cqs[0], p.received)
		more = p.take(t, p.cqs[1], p.received) || more
		more = p.take(t, p.a.cq, p.end) || more
	}
}

// take passes completions of a CQ to f, and reports whether it found any.
func (p *party) take(t *testing.T, cq verbs.CQ, f func(*testing.T, *verbs.WC)) bool {
	t.Helper()
	var wcs [16]verbs.WC
	n, err := cq.Poll(wcs[:])
	must(t, err)
	for i := range wcs[:n] {
		f(t, &wcs[i])
	}
	return n > 0
}

// end checks the completion of a request.
func (p *party) end(t *testing.T, wc *verbs.WC) {
	t.Helper()
	i := slices.IndexFunc(p.qa, func(q verbs.QP) bool { return q.Num() == wc.QPN })
	if int(wc.WRID) != p.done[i] {
		t.Fatalf("request %d of pair %d ends, want %d", wc.WRID, i, p.done[i])
	}
	if p.ended[i] == verbs.StatusSuccess {
		p.ended[i] = wc.Status
	}
	p.done[i]++
}

// received checks the completion of a receive.
func (p *party) received(t *testing.T, wc *verbs.WC) {
	t.Helper()
	slot := int(wc.WRID)
	if !p.inSRQ[slot] {
		t.Fatalf("receive %d ends, which was not posted: %+v", slot, wc)
	}
	p.inSRQ[slot] = false
	if wc.Status == verbs.StatusSuccess {
		i, k := int(wc.Imm>>16), int(wc.Imm&0xffff)
		if p.qb[i].Num() != wc.QPN || k != p.got[i] {
			t.Fatalf("message %d of pair %d arrives at QP %d, want message %d at %d", k, i, wc.QPN, p.got[i], p.qb[i].Num())
		}
		p.got[i]++
		if n := partyLen(wc.Imm); wc.Opcode == verbs.WCRecv && !bytes.Equal(p.b.mem.Bytes()[slot*partySize:][:n], p.a.mem.Bytes()[:n]) {
			t.Fatalf("message %d of pair %d has wrong bytes", k, i)
		}
	} else if wc.Status != verbs.StatusWRFlushErr {
		t.Fatalf("a receive ends with %v, want success or a flush", wc.Status)
	}
	if !p.keep {
		p.recv(t, slot)
	}
}

// run runs until stop returns true.
func (p *party) run(t *testing.T, what string, stop func() bool) {
	t.Helper()
	for limit := p.now + int64(10*time.Second); !stop(); p.poll(t) {
		if p.now >= limit {
			t.Fatalf("%s: not after 10 s: %v of %v messages are received, %v have ended", what, p.got, p.sent, p.done)
		}
		p.step(limit, []*side{p.a, p.b})
	}
}

func sum(of []int) (n int) {
	for _, v := range of {
		n += v
	}
	return n
}

// TestSRQRandomTraffic: QPs share a few receives on lossy networks with failing paths and shared paths, while
// QPs are closed at either end. Every message arrives once and in order, and no pair starves.
func TestSRQRandomTraffic(t *testing.T) {
	const pairs, each = 5, 40
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			pick := func(of ...int) int { return of[rng.IntN(len(of))] }
			cfg := reliable.Config{Paths: pick(1, 2, 4), Flows: pick(1, 1, 3), Window: pick(4, 32, 256), NoCredits: pick(0, 1) == 1}
			p := newParty(t, seed, float64(pick(0, 1, 5))/100, cfg, pairs, pick(1, 2, 7, 64))
			closing := seed%3 == 2
			for sum(p.sent) < pairs*each {
				if i := p.rng.IntN(pairs); p.sent[i] < each && p.sent[i]-p.done[i] < 60 {
					p.send(t, i, 1)
				}
				for limit := p.now + p.rng.Int64N(5_000); p.now < limit; p.poll(t) {
					p.step(limit, []*side{p.a, p.b})
				}
				if paths := p.qa[p.rng.IntN(pairs)].(reliable.StatsReader).Paths(); p.rng.IntN(50) == 0 && len(paths) > 0 && paths[0].QPN != 0 {
					must(t, p.a.nic.FailQP(paths[0].QPN))
				}
			}
			if closing {
				must(t, p.qb[0].Close())
				p.sent[0] = p.got[0]
			}
			p.run(t, "all messages", func() bool { return sum(p.got) == sum(p.sent) && sum(p.done[1:]) == (pairs-1)*each })
			for i := 1; i < pairs; i++ {
				if p.ended[i] != verbs.StatusSuccess {
					t.Errorf("a request of pair %d ended with %v", i, p.ended[i])
				}
			}
		})
	}
}

// TestSRQGrantsOnce: if the last card of a handshake is late, messages are in progress when it ends. Their receives
// are not advertised again: the peer would send messages without a receive, which are refused.
func TestSRQGrantsOnce(t *testing.T) {
	const pairs, each = 4, 100
	for _, carrier := range []verbs.QPType{verbs.UC, verbs.UD} {
		for _, loss := range []float64{0.05, 0.07, 0.08, 0.1} {
			t.Run(fmt.Sprintf("%v/loss=%v", carrier, loss), func(t *testing.T) {
				if carrier == verbs.UC {
					reliable.OverUC(t, "UC QPs")
				}
				p := newParty(t, 1, loss, reliable.Config{Carrier: carrier, Paths: 2, Flows: 3}, 0, 3)
				p.path.AckTimeout = 8 // 1 ms
				for range pairs {
					p.join(t)
				}
				p.run(t, "all messages", func() bool {
					for i := range pairs {
						if p.sent[i] < each && p.sent[i]-p.done[i] < 40 {
							p.send(t, i, 1)
						}
					}
					return sum(p.done) == pairs*each
				})
				if n := p.b.ctx.(reliable.StatsReader).Stats().Refused; n != 0 {
					t.Errorf("the receiver refused %d chunks, want 0", n)
				}
			})
		}
	}
}

// TestSRQServesInTurn: one pair has many messages, and others start later with a few. Receives are scarce and
// returned one by one. The late pairs do not wait for all messages of the first.
func TestSRQServesInTurn(t *testing.T) {
	p := newParty(t, 1, 0, reliable.Config{Paths: 2}, 4, 4)
	p.keep = true
	p.send(t, 0, 60)
	p.run(t, "the first messages", func() bool { return p.got[0] == 4 })
	for i := 1; i < 4; i++ {
		p.send(t, i, 2)
	}
	for limit := p.now + 1_000_000; p.now < limit; {
		p.step(limit, []*side{p.a, p.b}) // they request credit
	}
	for n := 4; n < 20; n++ {
		p.recv(t, slices.Index(p.inSRQ, false))
		p.run(t, "one more", func() bool { return sum(p.got) > n })
	}
	for i := 1; i < 4; i++ {
		if p.got[i] != 2 {
			t.Errorf("of 20 messages %v are of each pair, want both of pair %d", p.got, i)
		}
	}
}

// TestSRQReceivesReturn closes QPs whose messages have receives or were granted some. All receives become
// available to the others.
func TestSRQReceivesReturn(t *testing.T) {
	for name, end := range map[string]func(p *party) error{
		"close": func(p *party) error { return p.qb[0].Close() },
		"error": func(p *party) error { return p.qb[0].Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState) },
		"reset": func(p *party) error { return p.qb[0].Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState) },
	} {
		t.Run(name, func(t *testing.T) {
			for steps := range 24 {
				const receives = 8
				p := newParty(t, 1, 0, reliable.Config{Paths: 2}, 2, receives)
				p.keep = true
				p.send(t, 0, 20)
				for range steps {
					p.step(p.now+1_000, []*side{p.a, p.b})
				}
				must(t, end(p))
				p.poll(t) // consumes earlier completions
				left := 0
				for i := range p.inSRQ {
					if p.inSRQ[i] {
						left++
					}
				}
				p.send(t, 1, left)
				p.run(t, fmt.Sprintf("%d receives after %d steps", left, steps), func() bool { return p.got[1] == left })
			}
		})
	}
}

// TestSRQSlotsAreFreedWhenPolled fills an SRQ. A receive keeps its slot until its completion is polled, so
// that a CQ as deep as the SRQ cannot overrun. Closing a QP frees the slots of its completions.
func TestSRQSlotsAreFreedWhenPolled(t *testing.T) {
	const receives = 4
	p := newParty(t, 1, 0, reliable.Config{Paths: 2}, 1, receives)
	full := func(want int) {
		t.Helper()
		if n, err := p.srq.PostRecv(make([]verbs.RecvWR, receives+1)); n != want || !errors.Is(err, verbs.ErrQueueFull) {
			t.Fatalf("PostRecv = %d, %v, want %d and ErrQueueFull", n, err, want)
		}
	}
	full(0)
	p.send(t, 0, receives)
	for limit := p.now + 1_000_000; p.now < limit; {
		p.step(limit, []*side{p.a, p.b}) // the messages arrive unpolled
	}
	full(0)
	p.keep = true
	n, err := p.cqs[0].Poll(make([]verbs.WC, 1))
	if must(t, err); n != 1 {
		t.Fatalf("Poll = %d, want 1", n)
	}
	full(1)
	must(t, p.qb[0].Close())
	full(receives - 1)
}

// TestSRQPatience sends to an empty SRQ: with RNRRetry 7 the sender waits for a receive, with 0 it fails with
// RNR_RETRY_EXC. A peer that is slow to advertise its receives does not cause a failure.
func TestSRQPatience(t *testing.T) {
	for _, tt := range []struct {
		name  string
		retry int8
		empty bool
		want  verbs.Status
	}{
		{"wait", 7, true, verbs.StatusSuccess},
		{"give up", verbs.ExplicitZero, true, verbs.StatusRNRRetryExcErr},
		{"slow peer", verbs.ExplicitZero, false, verbs.StatusSuccess},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newParty(t, 1, 0, reliable.Config{Paths: 2}, 0, 1)
			p.keep, p.path = true, verbs.PathConfig{RNRRetry: tt.retry, MinRNRTimer: 1}
			p.join(t)
			if tt.empty {
				p.send(t, 0, 1)
				p.run(t, "the only receive", func() bool { return p.got[0] == 1 })
			}
			p.send(t, 0, 1)
			for limit := p.now + 100_000_000; !tt.empty && p.now < limit; {
				p.step(limit, []*side{p.a}) // b is busy elsewhere
			}
			for limit := p.now + 100_000_000; tt.empty && p.now < limit; p.poll(t) {
				p.step(limit, []*side{p.a, p.b})
			}
			if tt.retry == 7 {
				p.recv(t, 0)
			}
			p.run(t, "its end", func() bool { return p.done[0] == p.sent[0] })
			if p.ended[0] != tt.want {
				t.Fatalf("ends with %v, want %v", p.ended[0], tt.want)
			}
		})
	}
}

// TestSRQLimitOfSilentPeer: a peer requests receives and never sends. They count as consumed, so the limit
// event is raised and the user posts more.
func TestSRQLimitOfSilentPeer(t *testing.T) {
	p := newParty(t, 1, 0, reliable.Config{Paths: 2}, 2, 8)
	must(t, p.srq.SetLimit(5))
	p.send(t, 0, 20)
	for limit := p.now + 100_000; p.now < limit; {
		p.step(limit, []*side{p.b}) // the credit request arrives, and a has exited
	}
	var evs [4]verbs.Event
	n, err := p.b.ctx.Events(evs[:])
	must(t, err)
	if n != 1 || evs[0].Type != verbs.EventSRQLimitReached || evs[0].SRQ != p.srq {
		t.Fatalf("events %+v, want the limit event", evs[:n])
	}
}

// TestSRQAfterReset resets the NIC under traffic. The QPs fail. New ones use the same SRQ, and every receive
// was returned or serves them.
func TestSRQAfterReset(t *testing.T) {
	p := newParty(t, 1, 0, reliable.Config{Paths: 2}, 3, 8)
	for i := range 30 {
		p.send(t, i%3, 1)
	}
	p.run(t, "a few messages", func() bool { return sum(p.got) > 5 })
	p.b.nic.Reset()
	p.run(t, "the end of the QPs", func() bool {
		return !slices.ContainsFunc(p.qb, func(q verbs.QP) bool { return q.State() != verbs.StateErr })
	})
	if slices.Contains(p.inSRQ, false) {
		t.Fatalf("receives %v were not posted again, want all", p.inSRQ)
	}
	p.join(t)
	p.join(t)
	for i := range 40 {
		p.send(t, 3+i%2, 1)
	}
	p.run(t, "messages of new QPs", func() bool { return p.got[3] == 20 && p.got[4] == 20 })
}
