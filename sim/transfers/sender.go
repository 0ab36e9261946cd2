package transfers

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"ibverbx/transfer"
	"ibverbx/verbs"
)

// sender sends batches from a process to the successive processes of a host.
type sender struct {
	process *process
	to      int
	rand    *rand.Rand
	// local holds a copy of the area, followed by the destination of reads.
	local *transfer.Segment

	peer   *transfer.Peer
	box    *transfer.Remote
	source *transfer.Remote
	// incarnation is the incarnation of the receiver's process.
	incarnation int
	// under counts the batches in progress.
	under sync.WaitGroup

	mu sync.Mutex
	// free holds the slots that may be written.
	free []int
	// held holds the batches that have not completed or are unanswered.
	held map[int]*hold
	// stale is set once the receiver's process was killed.
	stale bool
	// changed receives a value when one of the above has changed.
	changed chan struct{}
}

// hold is a batch that occupies slots.
type hold struct {
	slots           []int
	ended, answered bool
}

// letter is the body of a notification: it announces a batch, or answers that it was read.
type letter struct {
	Notice notice
	Answer bool    `json:",omitempty"`
	Blocks []block `json:",omitempty"`
}

// block is a range of the receiver's box, filled from a seed.
type block struct {
	Offset, Length int64
	Seed           uint64
}

func newSender(p *process, to int) *sender {
	seed := p.host.world.plan.Seed
	return &sender{
		process: p, to: to, held: map[int]*hold{}, changed: make(chan struct{}, 1),
		rand: rand.New(rand.NewPCG(seed, uint64(p.host.index<<16|p.incarnation<<8|to))),
	}
}

// fill fills b with bytes derived from a seed.
func fill(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b) // it never fails
}

func sourceSeed(host int) uint64 { return uint64(host) + 0x50 }

// run sends the batches of the plan. It returns when all have completed or the process is killed.
func (s *sender) run() {
	var err error
	if s.local, err = s.process.engine.Alloc("", areaBytes+sourceBytes, transfer.SegmentConfig{Local: true}); err != nil {
		s.judge(err)
		return
	}
	defer s.under.Wait()
	for batch := range s.process.host.world.plan.Batches {
		mine := s.take(1 + s.rand.IntN(4))
		if mine == nil {
			return
		}
		s.under.Go(s.submit(batch, mine))
		if s.rand.IntN(8) == 0 {
			s.read()
		}
	}
}

// take returns up to n free slots of the receiver's process. It blocks until a slot is free, and returns nil once this process is killed.
func (s *sender) take(n int) (mine []int) {
	for s.process.ctx.Err() == nil {
		if !s.meet() {
			continue
		}
		s.mu.Lock()
		n := min(n, len(s.free))
		mine = append(mine, s.free[:n]...)
		s.free = s.free[n:]
		s.mu.Unlock()
		if n > 0 {
			return mine
		}
		select {
		case <-s.changed:
		case <-time.After(probeTime):
			s.look() // without a transfer, the death of an unanswering process would go unnoticed
		case <-s.process.ctx.Done():
		}
	}
	return nil
}

// probeTime is the wait for answers before a sender probes the receiver's process.
const probeTime = 20 * time.Millisecond

// look probes the receiver with a read, which fails if its process was replaced.
func (s *sender) look() {
	ctx := s.process.ctx
	if err := s.peer.Get(ctx, s.local.Slice(areaBytes, 1), s.source.At(0)).Wait(ctx); err != nil {
		s.judge(err)
		s.mu.Lock()
		s.stale = true
		s.mu.Unlock()
	}
}

// meet opens the memory of the receiver's current process, unless it is open. It reports whether the memory is open.
func (s *sender) meet() bool {
	s.mu.Lock()
	met := s.box != nil && !s.stale
	s.mu.Unlock()
	if met {
		return true
	}
	s.under.Wait() // their memory is reused
	ctx := s.process.ctx
	var err error
	if s.peer == nil {
		if s.peer, err = s.process.engine.Peer(ctx, s.process.host.world.hosts[s.to].relay.addr()); err != nil {
			// The first attempt to connect may meet a process that is being started, or a NIC that has failed.
			s.process.host.world.sleep(5 * time.Millisecond)
			return false
		}
	}
	var box, source *transfer.Remote
	if err == nil {
		box, err = s.peer.Open(ctx, boxName(s.process.host.index), transfer.Read|transfer.Write)
	}
	if err == nil {
		source, err = s.peer.Open(ctx, sourceName, transfer.Read)
	}
	view := s.local.Slice(areaBytes, 1)
	if err == nil {
		err = s.peer.Get(ctx, view, source.At(0)).Wait(ctx)
	}
	if err != nil {
		s.judge(err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.box, s.source, s.incarnation, s.stale = box, source, int(s.local.Bytes()[areaBytes]), false
	s.free, s.held = s.free[:0], map[int]*hold{}
	for i := range slots {
		s.free = append(s.free, i)
	}
	return true
}

// judge ends the world if an error is not explained by a killed process or a failed NIC.
func (s *sender) judge(err error) {
	w := s.process.host.world
	switch {
	case s.process.ctx.Err() != nil, w.plan.restarted(err, transfer.ErrRestarted, transfer.ErrRevoked):
	case w.plan.restarted(err, transfer.ErrNotFound), // the new process has not allocated it yet
		// Memory cannot be registered while all NICs have failed.
		!w.plan.spare() && (errors.Is(err, verbs.ErrDeviceFatal) || errors.Is(err, transfer.ErrBusy)):
		w.sleep(time.Millisecond)
	default:
		w.broken("host %d to host %d: %w", s.process.host.index, s.to, err)
	}
}

// submit starts a batch into slots. The returned function waits for its completion.
func (s *sender) submit(batch int, mine []int) (wait func()) {
	p, w := s.process, s.process.host.world
	n := notice{From: p.host.index, FromIncarnation: p.incarnation, To: s.to, ToIncarnation: s.incarnation, Batch: batch}
	l := letter{Notice: n}
	b := s.peer.Batch()
	area := int64(p.incarnation) * areaBytes
	for _, slot := range mine {
		at, length := int64(slot)*slotBytes, 1+s.rand.Int64N(slotBytes)
		seed := s.rand.Uint64()
		fill(s.local.Bytes()[at:at+length], seed)
		l.Blocks = append(l.Blocks, block{Offset: area + at, Length: length, Seed: seed})
		b.Put(s.box.At(area+at), s.local.Slice(at, length))
	}
	if s.rand.IntN(8) == 0 {
		b.Verify()
	}
	body, err := json.Marshal(l)
	if err != nil {
		w.broken("%w", err)
	}
	cancelAfter := time.Duration(-1)
	if s.rand.IntN(16) == 0 {
		cancelAfter = time.Duration(s.rand.Int64N(int64(2 * time.Millisecond)))
	}
	s.mu.Lock()
	s.held[batch] = &hold{slots: mine}
	s.mu.Unlock()
	t := b.Notify(body).Submit(p.ctx)
	return func() {
		if cancelAfter >= 0 {
			w.sleep(cancelAfter)
			t.Cancel()
		}
		<-t.Done()
		for _, slot := range mine { // the program owns the memory again, even after an error
			clear(s.local.Bytes()[slot*slotBytes:][:slotBytes])
		}
		s.ended(n, t.Err(), cancelAfter >= 0)
	}
}

// ended handles the completion of a batch.
func (s *sender) ended(n notice, err error, canceled bool) {
	w := s.process.host.world
	switch {
	case err == nil:
		w.owe(n)
		w.mu.Lock()
		w.sum.Batches++
		w.mu.Unlock()
	case canceled && errors.Is(err, transfer.ErrCanceled):
		// Its notification may have been sent, so its slots are used again only after an answer.
		w.mu.Lock()
		w.sum.Canceled++
		w.mu.Unlock()
	default:
		s.judge(err)
		w.mu.Lock()
		w.sum.Lost++
		w.mu.Unlock()
		s.mu.Lock()
		s.stale = s.stale || n.ToIncarnation == s.incarnation
		s.mu.Unlock()
	}
	s.over(n, func(h *hold) { h.ended = true })
}

// answered handles the answer to a batch.
func (s *sender) answered(n notice) { s.over(n, func(h *hold) { h.answered = true }) }

// over records the completion of a batch, or its answer. After both, its slots are free.
func (s *sender) over(n notice, note func(*hold)) {
	s.mu.Lock()
	if h := s.held[n.Batch]; h != nil && n.ToIncarnation == s.incarnation && !s.stale {
		if note(h); h.ended && h.answered {
			s.free = append(s.free, h.slots...)
			delete(s.held, n.Batch)
		}
	}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// read reads the source of the receiver, with or without Verify, and compares it.
func (s *sender) read() {
	length := 1 + s.rand.Int64N(sourceBytes-1)
	b := s.peer.Batch().Get(s.local.Slice(areaBytes+1, length-1), s.source.At(1))
	if length == 1 {
		return
	}
	if s.rand.IntN(2) == 0 {
		b.Verify()
	}
	ctx := s.process.ctx
	if err := b.Do(ctx); err != nil {
		s.judge(err)
		s.mu.Lock()
		s.stale = true
		s.mu.Unlock()
		return
	}
	want := make([]byte, length)
	fill(want, sourceSeed(s.to))
	w := s.process.host.world
	if !bytes.Equal(s.local.Bytes()[areaBytes+1:areaBytes+length], want[1:]) {
		w.broken("host %d has read wrong bytes of host %d", s.process.host.index, s.to)
	}
	w.mu.Lock()
	w.sum.Gets++
	w.mu.Unlock()
}

// receive consumes notifications, verifies the announced blocks, and answers.
func (p *process) receive() {
	w := p.host.world
	last := map[[2]int]int{} // by host and incarnation: one more than the last batch
	for n := range p.engine.Notifications(p.ctx) {
		var l letter
		if err := json.Unmarshal(n.Body, &l); err != nil {
			w.broken("host %d has got a notification of %d bytes that nobody sent: %w", p.host.index, len(n.Body), err)
			return
		}
		if l.Answer {
			for _, s := range p.senders {
				if s.to == l.Notice.To && l.Notice.FromIncarnation == p.incarnation {
					s.answered(l.Notice)
				}
			}
			continue
		}
		from := [2]int{l.Notice.From, l.Notice.FromIncarnation}
		switch {
		case l.Notice.To != p.host.index || l.Notice.ToIncarnation != p.incarnation:
			w.broken("host %d, process %d, has got the notification %+v", p.host.index, p.incarnation, l.Notice)
		case !w.arrived(l.Notice):
			w.broken("the notification %+v has come twice", l.Notice)
		case l.Notice.Batch < last[from]:
			w.broken("the notification %+v has come after that of batch %d", l.Notice, last[from]-1)
		}
		last[from] = l.Notice.Batch + 1
		p.compare(&l)
		p.answer(n.Peer, &l)
	}
}

// compare compares the announced blocks with the memory.
func (p *process) compare(l *letter) {
	for _, b := range l.Blocks {
		want := make([]byte, b.Length)
		fill(want, b.Seed)
		if !bytes.Equal(p.boxes[l.Notice.From].Bytes()[b.Offset:][:b.Length], want) {
			p.host.world.broken("%d bytes at %d are wrong when the notification %+v is taken", b.Length, b.Offset, l.Notice)
		}
	}
}

// answer notifies the sender that a batch was read, unless it was killed.
func (p *process) answer(to *transfer.Peer, l *letter) {
	body, err := json.Marshal(letter{Notice: l.Notice, Answer: true})
	if err != nil {
		p.host.world.broken("%w", err)
	}
	p.work.Go(func() {
		if err := to.Notify(p.ctx, body); err != nil && p.ctx.Err() == nil && !p.host.world.plan.restarted(err, transfer.ErrRestarted) {
			p.host.world.broken("answer to %+v: %w", l.Notice, err)
		}
	})
}
