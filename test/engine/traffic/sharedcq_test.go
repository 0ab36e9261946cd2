package traffic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// sharedQP is one of several VirtualQPs on a VirtualCQ, with its peer on the peer's.
type sharedQP struct {
	cfg                  ibverbx.Config
	a, b                 *ibverbx.VirtualQP
	local, remote        *ibverbx.Region
	posted               int
	completed, delivered int
}

const sharedSlot, sharedMessages = 5000, 120

// sharedPairs returns VirtualQPs of all kinds between two hosts, on one VirtualCQ each.
func sharedPairs(t *testing.T, a, b *enginetest.Host) []*sharedQP {
	t.Helper()
	var all []*sharedQP
	for _, cfg := range []ibverbx.Config{
		{Lanes: 4, Scheme: ibverbx.Tally, FragmentSize: 700},
		{Lanes: 3, Scheme: ibverbx.DQPLB, FragmentSize: 1100},
		{Lanes: 2, Scheme: ibverbx.Spray, FragmentSize: 900},
		{Lanes: 1}, // passes through
		{Lanes: 1, Scheme: ibverbx.DQPLB, Control: enginetest.Deaf{}},
		{Lanes: 5, Scheme: ibverbx.DQPLB, FragmentSize: 600},
	} {
		cfg.SendDepth, cfg.RecvDepth = 32, sharedMessages+1
		s := &sharedQP{cfg: cfg, local: a.Region(sharedMessages * sharedSlot), remote: b.Region(sharedMessages * sharedSlot)}
		s.a, s.b = newPeers(t, a, b, cfg)
		all = append(all, s)
	}
	return all
}

// newPeers creates a VirtualQP on each of two hosts and connects them.
func newPeers(t *testing.T, a, b *enginetest.Host, cfg ibverbx.Config) (qa, qb *ibverbx.VirtualQP) {
	t.Helper()
	qa, qb = a.NewQP(cfg), b.NewQP(cfg)
	enginetest.Connect(t, qa, qb)
	return qa, qb
}

func (s *sharedQP) length(i int) int { return 1 + (i*613+s.cfg.Lanes)%sharedSlot }

// post posts the next message unless the queue is full.
func (s *sharedQP) post(t *testing.T, sender int) {
	t.Helper()
	i := s.posted
	n := s.length(i)
	enginetest.Stamp(s.local.Bytes()[i*sharedSlot:][:n], sender, i)
	wr := ibverbx.SendWR{
		WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i),
		Remote: s.remote.Remote(), RemoteOffset: uint64(i * sharedSlot),
	}
	wr.SetSGE(s.local.SGE(uint64(i*sharedSlot), uint32(n)))
	k, err := s.a.PostSend([]ibverbx.SendWR{wr})
	if k == 0 && err != verbs.ErrQueueFull { //nolint:errorlint // it must not be wrapped
		t.Fatalf("PostSend = %d, %v; want 1 or %v", k, err, verbs.ErrQueueFull)
	}
	s.posted += k
}

// sharedRun sends messages over all pairs selected by live, until each has moved upTo messages.
func sharedRun(t *testing.T, a, b *enginetest.Host, all []*sharedQP, live func(*sharedQP) bool, upTo int) {
	t.Helper()
	byA, byB := make(map[*ibverbx.VirtualQP]int), make(map[*ibverbx.VirtualQP]int)
	for i, s := range all {
		byA[s.a], byB[s.b] = i, i
	}
	rng := rand.New(rand.NewPCG(3, 9))
	var p stallGuard
	for left := true; left; {
		if s := all[rng.IntN(len(all))]; live(s) && s.posted < upTo {
			s.post(t, int(s.a.Num()))
		}
		sent, delivered := a.Poll(), b.Poll()
		for _, wc := range sent {
			s := all[byA[wc.QP]]
			if err := wc.Err(); wc.QP != s.a || err != nil || wc.WRID != uint64(s.completed) {
				t.Fatalf("completion of VirtualQP %d = %+v, %v; want request %d", s.a.Num(), wc, err, s.completed)
			}
			s.completed++
		}
		for _, wc := range delivered {
			s := all[byB[wc.QP]]
			if err := wc.Err(); wc.QP != s.b || err != nil || wc.WRID != uint64(s.delivered) {
				t.Fatalf("receive of VirtualQP %d = %+v, %v; want receive %d", s.b.Num(), wc, err, s.delivered)
			}
			n := s.length(s.delivered)
			if !bytes.Equal(s.remote.Bytes()[s.delivered*sharedSlot:][:n], enginetest.Stamped(n, int(s.a.Num()), s.delivered)) {
				t.Fatalf("message %d of VirtualQP %d did not arrive as it was sent", s.delivered, s.a.Num())
			}
			s.delivered++
		}
		left = false
		for _, s := range all {
			left = left || (live(s) && (s.completed < upTo || s.delivered < upTo))
		}
		if err := p.step(len(sent)+len(delivered) > 0); err != nil {
			t.Fatalf("%v with %d of %d completions on the first VirtualQP", err, all[0].completed, upTo)
		}
	}
}

// TestSeveralQPsOnOneCQ: VirtualQPs of every scheme share a VirtualCQ on either side. Each
// completion names its VirtualQP, each VirtualQP has its own order, and when one fails and another
// is closed, the rest continue.
func TestSeveralQPsOnOneCQ(t *testing.T) {
	for _, rails := range []int{1, 2} {
		t.Run(fmt.Sprintf("rails=%d", rails), func(t *testing.T) { severalQPs(t, rails) })
	}
}

func severalQPs(t *testing.T, rails int) {
	links := enginetest.MemoryLinks(rails)
	a, b := enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2}), enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2})
	all := sharedPairs(t, a, b)
	for _, s := range all {
		recvs := make([]ibverbx.RecvWR, sharedMessages)
		for i := range recvs {
			recvs[i].WRID = uint64(i)
		}
		if n, err := s.b.PostRecv(recvs); n != len(recvs) || err != nil {
			t.Fatalf("PostRecv = %d, %v; want %d", n, err, len(recvs))
		}
	}
	everyone := func(*sharedQP) bool { return true }
	sharedRun(t, a, b, all, everyone, sharedMessages/3)

	failed, closed := all[1], all[2]
	failQP(t, a, failed)
	for _, wc := range b.Wait(sharedMessages - failed.delivered) {
		if wc.QP != failed.b || wc.Status != verbs.StatusWRFlushErr {
			t.Fatalf("receive = %+v, want one of VirtualQP %d, flushed", wc, failed.b.Num())
		}
	}
	rest := func(s *sharedQP) bool { return s != failed }
	sharedRun(t, a, b, all, rest, 2*sharedMessages/3)
	enginetest.Must(t, closed.a.Close())
	enginetest.Must(t, closed.b.Close())
	sharedRun(t, a, b, all, func(s *sharedQP) bool { return s != failed && s != closed }, sharedMessages)
	if n, err := a.CQ.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
		t.Errorf("Poll at the end = %d, %v; want nothing", n, err)
	}
}

// failQP posts a request with invalid keys, and polls its completion.
func failQP(t *testing.T, h *enginetest.Host, s *sharedQP) {
	t.Helper()
	bad := s.remote.Remote()
	for i := range bad.RKeys {
		bad.RKeys[i] ^= 0x10000
	}
	wr := ibverbx.SendWR{WRID: 77, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: bad}
	wr.SetSGE(s.local.SGE(0, 64))
	if n, err := s.a.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v; want 1", n, err)
	}
	wc := h.Wait(1)[0]
	if wc.QP != s.a || wc.WRID != 77 || wc.Status != verbs.StatusRemAccessErr || s.a.Err() == nil {
		t.Fatalf("completion = %+v, Err = %v; want a remote access error of VirtualQP %d", wc, s.a.Err(), s.a.Num())
	}
}

// TestNumbers: VirtualCQ numbers are unique within Rails, even if several goroutines create them. VirtualQP
// numbers are unique within their VirtualCQ and never reused.
func TestNumbers(t *testing.T) {
	h := enginetest.NewRails(t, enginetest.MemoryLinks(1))
	const makers, each = 4, 8
	cqs := make([]*ibverbx.VirtualCQ, makers*each)
	var wg sync.WaitGroup
	for m := range makers {
		wg.Go(func() {
			for i := range each {
				cq, err := h.Rails.NewCQ(ibverbx.CQConfig{Depth: 1024})
				if err != nil {
					t.Error(err)
					return
				}
				cqs[m*each+i] = cq
			}
		})
	}
	wg.Wait()
	seen := map[uint32]bool{0: true}
	for _, cq := range cqs {
		if cq == nil || seen[cq.Num()] {
			t.Fatalf("a VirtualCQ has the number of another, or 0: %v", seen)
		}
		seen[cq.Num()] = true
		numbers := map[uint32]bool{}
		for range 3 {
			q, err := cq.NewQP(ibverbx.Config{Lanes: 1})
			enginetest.Must(t, err)
			numbers[q.Num()] = true
			enginetest.Must(t, q.Close())
		}
		if len(numbers) != 3 {
			t.Errorf("the numbers of three VirtualQPs are %v", numbers)
		}
		enginetest.Must(t, cq.Close())
	}
}
