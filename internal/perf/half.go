package perf

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

const (
	// noteRounds is how many rounds go by between two looks at the partner's notes.
	noteRounds = 64
	// passiveSleep is how long an end sleeps that only lends its memory, and quietSleep one
	// that waits for a word: the core is better used by who works on it.
	passiveSleep = 2 * time.Millisecond
	quietSleep   = 200 * time.Microsecond
	// progressEvery is how often an end says that it is still at it, and newsAfter how
	// long it waits for such a word.
	progressEvery = time.Second
	newsAfter     = 90 * time.Second
	// remotePeakSpan is the shortest time over which a peak counts between processes, where
	// completions come in larger heaps.
	remotePeakSpan = 10 * time.Millisecond
	// lastWordsAfter is how long the result of a partner that has gone may take, and
	// reasonAfter its reason.
	lastWordsAfter = 10 * time.Second
	reasonAfter    = 3 * time.Second
)

// half is one end of a row whose other end is in another process. It is for one goroutine.
type half struct {
	plan
	ctx      context.Context // of what this end says and hears
	stop     context.Context // ends when the user has had enough
	cfg      *Config
	side     int // 0 is the client, who initiates
	link     *Link
	partner  Partner
	notes    *notes
	out, in  *flow // this end initiates out, the other in; nil if there is none
	wcs      [pollBatch]ibverbx.WC
	epoch    time.Time
	round    int
	moved    bool // something was complete in the last round
	quiet    bool // it is the partner's turn
	timer    *time.Timer
	before   []ibverbx.LaneStats
	progress func(float64)
	every    time.Duration // between two words that this end is at it
	spoke    time.Duration // when it last said so
	news     time.Duration // when the partner last said something

	started, peerDone bool
	parted            bool // it has said its last word of the row
	peerSent          int64
	pending           *note // a compare that waits for messages
	asked, answer     *note // what this end has asked for, and the answer
	theirs            *over
}

// openHalf lays out the buffers as the partner does and posts receives.
func openHalf(ctx context.Context, c *Config, p plan, side int, link *Link, partner Partner, device string) (*half, error) {
	h := &half{plan: p, ctx: ctx, cfg: c, side: side, link: link, partner: partner, epoch: time.Now(), every: progressEvery, progress: func(float64) {}, timer: time.NewTimer(time.Hour)}
	var memories [2]memory
	memories[side] = memory{bytes: link.Local.Bytes(), region: link.Local, device: device}
	memories[1-side] = memory{remote: link.Remote}
	if need := uint64(p.endBytes(1 - side)); link.Remote.Length < need {
		return nil, fmt.Errorf("the partner lends %d bytes, and this row needs %d", link.Remote.Length, need)
	}
	clear(link.Local.Bytes())
	for i := range p.directions {
		f, err := h.newFlow(i, &memories)
		if err != nil {
			return nil, err
		}
		if i == side {
			h.out = f
		} else {
			h.in = f
		}
	}
	return h, nil
}

// newFlow is this end's half of a direction.
func (h *half) newFlow(index int, memories *[2]memory) (*flow, error) {
	f := &flow{plan: h.plan, op: h.cfg.op(), index: index, reliable: true, check: h.cfg.Check}
	local, remote := memories[index].buffer(&h.plan, h.slots), memories[1-index].buffer(&h.plan, h.targetSlots())
	f.source, f.target = local, remote
	if h.cfg.Op == Read {
		f.source, f.target = remote, local
	}
	f.queues = make([]queue, 1)
	q := &f.queues[0]
	if index == h.side {
		q.qp, q.chains = h.link.QP, f.sendChains(0, local, remote)
		f.recvs = 0 // they are the other end's business, and RC waits for them
		return f, nil
	}
	q.partner = h.link.QP
	return f, f.postRecvs(0, remote)
}

func (h *half) now() time.Duration { return time.Since(h.epoch) }

// turn posts what there is room for, takes what is complete, and listens to the partner.
func (h *half) turn() error {
	if h.out != nil {
		if err := h.out.postAll(); err != nil {
			return h.failure(err)
		}
	}
	if err := h.poll(); err != nil {
		return err
	}
	h.round++
	if h.round%noteRounds != 0 && h.moved {
		return nil
	}
	if err := h.listen(); err != nil {
		return err
	}
	if h.round%noteRounds == 0 { // also if there is always something complete
		if err := h.speak(); err != nil {
			return err
		}
	}
	if h.moved {
		return nil
	}
	if h.quiet || h.passive() {
		return h.nap()
	}
	runtime.Gosched()
	return nil
}

// passive reports whether nothing ever completes at this end.
func (h *half) passive() bool { return h.out == nil && h.in.recvs == 0 }

// speak says now and then that this end is still at it, and notices if the other is not.
func (h *half) speak() error {
	now := h.now()
	if now-h.spoke >= h.every && !h.parted {
		h.spoke = now
		if err := h.say(&note{Kind: noteProgress}); err != nil {
			return err
		}
	}
	if now-h.news > newsAfter {
		return fmt.Errorf("the partner has said nothing about the test for %v", newsAfter)
	}
	return nil
}

// poll takes completions: sends of out, receives of in.
func (h *half) poll() error {
	n, err := h.link.CQ.Poll(h.wcs[:])
	h.moved = n > 0
	if err != nil {
		return h.failure(err)
	}
	for i := range n {
		wc := &h.wcs[i]
		switch {
		case wc.Status != verbs.StatusSuccess:
			err = wc.Err()
		case wc.WRID&receiveID == 0:
			err = h.out.completedSend(wc)
		default:
			err = h.in.completedRecv(wc)
		}
		if err != nil {
			return h.failure(err)
		}
	}
	return nil
}

// failure says which lane ended the VirtualQP, if one has.
func (h *half) failure(err error) error {
	if cause := h.link.QP.Err(); cause != nil {
		return &laneError{cause: cause, seen: err}
	}
	return err
}

// listen takes one note, if there is one, and does what it asks for when it can.
func (h *half) listen() error {
	select {
	case n := <-h.notes.ch:
		if err := h.heard(&n); err != nil {
			return err
		}
	default:
	}
	if p := h.pending; p != nil && (h.in.recvs == 0 || h.in.received >= p.First+p.N) {
		h.pending = nil
		return h.say(&note{Kind: noteAnswer, Text: brief(errorText(h.compare(p)))})
	}
	return nil
}

// nap waits a little for a note. Who spins instead keeps Go's scheduler from looking at the
// network: notes would take ten milliseconds. The CQs are armed, as before any sleep, so that
// a NIC in software looks after itself meanwhile.
func (h *half) nap() error {
	for rail := range h.link.Rails {
		// An error shows in the next poll.
		_ = h.link.CQ.CQ(rail).Arm(false)
	}
	if h.passive() {
		h.timer.Reset(passiveSleep)
	} else {
		h.timer.Reset(quietSleep)
	}
	select {
	case n := <-h.notes.ch:
		return h.heard(&n)
	case <-h.timer.C:
		return nil
	}
}

// heard takes what the partner said, or that it says no more.
func (h *half) heard(n *heard) error {
	if n.err != nil {
		return n.err
	}
	h.news = h.now()
	return h.hear(&n.note)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// hear takes a note. What the partner says out of turn ends the row.
func (h *half) hear(n *note) error {
	switch n.Kind {
	case noteStart:
		h.started = true
	case noteProgress:
	case noteFill, noteCompare:
		if h.in == nil || !h.cfg.Check || h.pending != nil || n.N > int64(h.depth()) || (n.Kind == noteFill) != (h.cfg.Op == Read && n.N > 0) {
			return fmt.Errorf("the partner asks for %s of %d messages, which makes no sense here", n.Kind, n.N)
		}
		if n.Kind == noteFill {
			h.in.fill(0, n.First, n.First+n.N)
			return h.say(&note{Kind: noteAnswer})
		}
		h.pending = n
	case noteAnswer:
		h.answer = n
	case noteDone:
		h.peerDone, h.peerSent = true, n.N
	case noteOver:
		h.theirs = n.Over
	}
	return nil
}

func (h *half) say(n *note) error { return say(h.ctx, h.partner, n) }

// until goes on until a condition holds that is for the partner to meet.
func (h *half) until(ok func() bool) error {
	h.quiet = true
	defer func() { h.quiet = false }()
	for !ok() {
		if err := h.turn(); err != nil {
			return err
		}
	}
	return nil
}

// ask has the partner fill or compare messages and waits for its answer.
func (h *half) ask(kind noteKind, first, n int64) error {
	if err := h.begin(kind, first, n); err != nil {
		return err
	}
	return h.answered()
}

// begin asks the partner for something, and does not wait.
func (h *half) begin(kind noteKind, first, n int64) error {
	h.answer, h.asked = nil, &note{Kind: kind, First: first, N: n}
	return h.say(h.asked)
}

// answered waits for the answer to what begin asked for, if there was something.
func (h *half) answered() error {
	if h.asked == nil {
		return nil
	}
	if err := h.until(func() bool { return h.answer != nil }); err != nil {
		return err
	}
	h.asked = nil
	if h.answer.Text != "" {
		return fmt.Errorf("the partner found %q", h.answer.Text)
	}
	return nil
}

// mark says that what counts begins now, behind the warm-up.
func (h *half) mark() { h.before = h.link.QP.Stats().Lanes }

// carried is what the lanes of this end did since mark.
func (h *half) carried() []Lane {
	lanes := []Lane{}
	if h.out == nil || h.before == nil {
		return lanes
	}
	for i, now := range h.link.QP.Stats().Lanes {
		before := &h.before[i]
		lanes = append(lanes, Lane{Lane: now.Lane, Rail: now.Rail, QPN: now.QPN, Role: now.Role, Deaths: now.Deaths - before.Deaths, Carried: Carried{
			Fragments: now.Fragments - before.Fragments, Bytes: now.Bytes - before.Bytes, Doorbells: now.Doorbells - before.Doorbells,
			CQEs: now.CQEs - before.CQEs, Refusals: now.Refusals - before.Refusals,
		}})
	}
	return lanes
}
