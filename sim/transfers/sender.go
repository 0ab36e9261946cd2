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

// sender sends batches from a process to a host, one process of it after the other.
type sender struct {
	process *process
	to      int
	rand    *rand.Rand
	// local has a copy of the area, and a place behind it that reads go to.
	local *transfer.Segment

	peer   *transfer.Peer
	box    *transfer.Remote
	source *transfer.Remote
	// life is that of the receiver's process.
	life int
	// under are the batches that have not ended.
	under sync.WaitGroup

	mu sync.Mutex
	// free has the slots that may be written.
	free []int
	// held has the batches that have not ended, or whose answer has not come.
	held map[int]*hold
	// stale says that the receiver's process was killed.
	stale bool
	// changed gets a value when one of the above has changed.
	changed chan struct{}
}

// hold is a batch that has slots.
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

// block is bytes in the box of the receiver that depend on a seed.
type block struct {
	Offset, Length int64
	Seed           uint64
}

func newSender(p *process, to int) *sender {
	seed := p.host.world.plan.Seed
	return &sender{
		process: p, to: to, held: map[int]*hold{}, changed: make(chan struct{}, 1),
		rand: rand.New(rand.NewPCG(seed, uint64(p.host.index<<16|p.life<<8|to))),
	}
}

// fill fills b with bytes that depend on a seed.
func fill(b []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b) // it never fails
}

func sourceSeed(host int) uint64 { return uint64(host) + 0x50 }

// run sends the batches of the plan, and returns when all have ended or the process is killed.
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

// take returns up to n free slots of a process of the receiver, and waits until there is one. It is nil if this process was killed.
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
			s.look() // nothing is under way that would tell of a process that was killed before it answered
		case <-s.process.ctx.Done():
		}
	}
	return nil
}

// probeTime is how long answers may take before a sender asks whether the receiver's process is the same.
const probeTime = 20 * time.Millisecond

// look reads from the receiver, to learn whether its process is the same.
func (s *sender) look() {
	ctx := s.process.ctx
	if err := s.peer.Get(ctx, s.local.Slice(areaBytes, 1), s.source.At(0)).Wait(ctx); err != nil {
		s.judge(err)
		s.mu.Lock()
		s.stale = true
		s.mu.Unlock()
	}
}

// meet opens the memory of the receiver's present process, unless it is open. It reports whether it is.
func (s *sender) meet() bool {
	s.mu.Lock()
	met := s.box != nil && !s.stale
	s.mu.Unlock()
	if met {
		return true
	}
	s.under.Wait() // their memory is used again
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
	s.box, s.source, s.life, s.stale = box, source, int(s.local.Bytes()[areaBytes]), false
	s.free, s.held = s.free[:0], map[int]*hold{}
	for i := range slots {
		s.free = append(s.free, i)
	}
	return true
}

// judge ends the world if an error has no reason in it. A process that was killed is one.
func (s *sender) judge(err error) {
	switch {
	case s.process.ctx.Err() != nil, errors.Is(err, transfer.ErrRestarted), errors.Is(err, transfer.ErrRevoked):
	case errors.Is(err, transfer.ErrNotFound), // the new process has not lent it yet
		// Memory cannot be registered while all NICs have failed.
		!s.process.host.world.plan.spare() && (errors.Is(err, verbs.ErrDeviceFatal) || errors.Is(err, transfer.ErrBusy)):
		s.process.host.world.sleep(time.Millisecond)
	default:
		s.process.host.world.broken("host %d to host %d: %w", s.process.host.index, s.to, err)
	}
}

// submit begins a batch into slots. The result waits for its end.
func (s *sender) submit(batch int, mine []int) (wait func()) {
	p, w := s.process, s.process.host.world
	n := notice{From: p.host.index, FromLife: p.life, To: s.to, ToLife: s.life, Batch: batch}
	l := letter{Notice: n}
	b := s.peer.Batch()
	area := int64(p.life) * areaBytes
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
		for _, slot := range mine { // the memory is the program's again, whatever became of the batch
			clear(s.local.Bytes()[slot*slotBytes:][:slotBytes])
		}
		s.ended(n, t.Err(), cancelAfter >= 0)
	}
}

// ended takes the end of a batch.
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
		s.stale = s.stale || n.ToLife == s.life
		s.mu.Unlock()
	}
	s.over(n, func(h *hold) { h.ended = true })
}

// answered takes the answer to a batch.
func (s *sender) answered(n notice) { s.over(n, func(h *hold) { h.answered = true }) }

// over notes that a batch has ended or was answered. When it has and was, its slots are free again.
func (s *sender) over(n notice, note func(*hold)) {
	s.mu.Lock()
	if h := s.held[n.Batch]; h != nil && n.ToLife == s.life && !s.stale {
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

// receive takes notifications, compares what they announce, and answers.
func (p *process) receive() {
	w := p.host.world
	last := map[[2]int]int{} // by host and life: one more than the last batch
	for n := range p.engine.Notifications(p.ctx) {
		var l letter
		if err := json.Unmarshal(n.Body, &l); err != nil {
			w.broken("host %d has got a notification of %d bytes that nobody sent: %w", p.host.index, len(n.Body), err)
			return
		}
		if l.Answer {
			for _, s := range p.senders {
				if s.to == l.Notice.To && l.Notice.FromLife == p.life {
					s.answered(l.Notice)
				}
			}
			continue
		}
		from := [2]int{l.Notice.From, l.Notice.FromLife}
		switch {
		case l.Notice.To != p.host.index || l.Notice.ToLife != p.life:
			w.broken("host %d, process %d, has got the notification %+v", p.host.index, p.life, l.Notice)
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

// compare compares what a notification announces with the memory.
func (p *process) compare(l *letter) {
	for _, b := range l.Blocks {
		want := make([]byte, b.Length)
		fill(want, b.Seed)
		if !bytes.Equal(p.boxes[l.Notice.From].Bytes()[b.Offset:][:b.Length], want) {
			p.host.world.broken("%d bytes at %d are wrong when the notification %+v is taken", b.Length, b.Offset, l.Notice)
		}
	}
}

// answer tells the sender that a batch was read. A sender that was killed needs no answer.
func (p *process) answer(to *transfer.Peer, l *letter) {
	body, err := json.Marshal(letter{Notice: l.Notice, Answer: true})
	if err != nil {
		p.host.world.broken("%w", err)
	}
	p.work.Go(func() {
		if err := to.Notify(p.ctx, body); err != nil && p.ctx.Err() == nil && !errors.Is(err, transfer.ErrRestarted) {
			p.host.world.broken("answer to %+v: %w", l.Notice, err)
		}
	})
}
