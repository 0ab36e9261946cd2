package measure

import (
	"fmt"
	"math"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// endless is an unlimited quota.
const endless = math.MaxInt64

// pollBatch is the maximum number of completions per poll.
const pollBatch = 64

// flow is one direction of a row: the initiating QPs of one side and their partners at the other.
// Fields that belong to another process stay unset. It is not safe for concurrent use.
type flow struct {
	plan
	cfg   *Config
	op    Op
	index int // the side that initiates
	grh   int // bytes of a receive before the message

	queues []queue
	source *buffer // source of the data
	target *buffer // destination of the data

	posting   int   // queues with something left to post
	inFlight  int   // outstanding completions, over all queues
	sent      int64 // posted messages
	completed int64 // messages complete at the initiator
	received  int64 // messages that consumed a receive
	lost      int64 // messages given up as lost

	// now is the clock of the row.
	now func() time.Duration
	// patterns is the time that a rolling check has spent on patterns.
	patterns time.Duration
	// posted holds the posting time of each message in flight, by slot; nil unless SizeRun.timed
	// was called.
	posted []time.Duration
	// times are the times of compared messages, nil if posted is.
	times *samples
}

// queue is one QP of a flow and its partner.
type queue struct {
	qp       poster             // nil if the initiator is in another process
	partner  poster             // nil if the target is in another process
	chains   [][]ibverbx.SendWR // posted round-robin
	next     int                // index of the chain to post next
	oldest   int                // index of the chain to complete next
	tail     []ibverbx.SendWR   // the short chain at the end of a quota
	left     int64              // messages of the quota still to post
	sent     int64              // posted messages
	received int64              // messages that consumed a receive
	checked  int64              // with a rolling check, verified messages
	inFlight int                // outstanding completions
	counter  uint64             // with Check, value of the atomic counter before a burst

	recvs    [][]ibverbx.RecvWR // receives at the remote side, posted round-robin
	recvNext int                // index of the receives to post next
	// credits counts posted receives not yet used by a sent message. Invariant: credits + consumed
	// + messages in flight = plan.recvs.
	credits  int
	consumed int // completed receives not yet reposted
}

// The work request ID describes its completion:
//
//	  63   | 62      42 | 41      21 | 20      0
//	receive|   chain    |  messages  |  queue
//
// A send completion stands for the given number of messages, a receive for one. Chain is the index
// in queue.chains.
const (
	receiveID = 1 << 63
	idBits    = 21
	idMask    = 1<<idBits - 1
)

func requestID(queue, messages, chain int) uint64 {
	return uint64(chain)<<(2*idBits) | uint64(messages)<<idBits | uint64(queue)
}

func queueOf(id uint64) int { return int(id & idMask) }

func messagesOf(id uint64) int64 { return int64(id >> idBits & idMask) }

func chainOf(id uint64) int { return int(id >> (2 * idBits) & idMask) }

// newFlow creates the buffers and work requests of the flow that side index initiates, if they
// belong to this process, and posts the receives.
func (r *SizeRun) newFlow(index int) error {
	f := &flow{plan: r.plan, cfg: r.cfg, op: r.cfg.op(), index: index, now: r.now}
	if r.cfg.Connection == verbs.UD {
		f.grh = verbs.GRHLen
	}
	from, to := r.sides[index], r.sides[1-index]
	local, remote := from.buffer(&r.plan, r.plan.slots), to.buffer(&r.plan, r.plan.targetSlots())
	f.source, f.target = local, remote
	if r.cfg.Op == Read {
		f.source, f.target = remote, local
	}
	f.queues = make([]queue, r.plan.qps)
	from.out, to.in = f, f
	if from.here() {
		r.flows = append(r.flows, f)
		for i, qp := range from.posters() {
			f.queues[i].qp, f.queues[i].chains = qp, f.sendChains(i, local, remote)
		}
	}
	if !to.here() {
		f.recvs = 0 // the other process counts them, and an RC QP waits for them
		return nil
	}
	for i, qp := range to.posters() {
		f.queues[i].partner = qp
		if err := f.postRecvs(i, remote); err != nil {
			return err
		}
	}
	return nil
}

// sendChains builds a queue's work requests once; posting only reads them. It returns one chain per
// window slot if every request in flight has its own message slot, otherwise a single chain.
func (f *flow) sendChains(queue int, local, remote *buffer) [][]ibverbx.SendWR {
	count := max(1, f.slots/f.chain)
	chains := make([][]ibverbx.SendWR, count)
	message := int64(0)
	for c := range chains {
		chain := make([]ibverbx.SendWR, f.chain)
		for i := range chain {
			wr := &chain[i]
			wr.WRID = requestID(queue, f.chain, c)
			wr.Opcode = f.op.opcode()
			wr.SetSGE(local.sge(queue, message, 0))
			switch f.op {
			case Write, WriteImm, Read:
				wr.Remote, wr.RemoteOffset = remote.remote, uint64(remote.offset(queue, message))
			case Atomic: // one counter per queue, and a slot per response
				wr.Remote, wr.RemoteOffset, wr.CompareAdd = remote.remote, uint64(remote.offset(queue, 0)), 1
			case Send: // the receive selects the slot
			}
			message++
		}
		chain[len(chain)-1].Flags = verbs.SendSignaled
		chains[c] = chain
	}
	return chains
}

// request returns a message's work request. Every message must have its own slot.
func (q *queue) request(message int64) *ibverbx.SendWR {
	chain := int64(len(q.chains[0]))
	return &q.chains[message/chain%int64(len(q.chains))][message%chain]
}

// postRecvs builds and posts all receives of a queue. Receives without slots wait for
// notifications.
func (f *flow) postRecvs(queue int, target *buffer) error {
	if f.recvs == 0 {
		return nil
	}
	q := &f.queues[queue]
	q.recvs = make([][]ibverbx.RecvWR, max(1, f.recvSlots/f.chain))
	message := int64(0)
	for c := range q.recvs {
		q.recvs[c] = make([]ibverbx.RecvWR, f.chain)
		for i := range q.recvs[c] {
			wr := &q.recvs[c][i]
			wr.WRID = requestID(queue, 1, 0) | receiveID
			if f.recvSlots > 0 {
				wr.SetSGE(target.sge(queue, message, f.grh))
			}
			message++
		}
	}
	for range f.recvs / f.chain {
		if err := f.replenish(q); err != nil {
			return err
		}
	}
	return nil
}

// replenish posts the next chain of receives.
func (f *flow) replenish(q *queue) error {
	chain := q.recvs[q.recvNext]
	if n, err := q.partner.PostRecv(chain); err != nil {
		return fmt.Errorf("receive %d of a chain of %d: %w", n, len(chain), err)
	}
	if q.recvNext++; q.recvNext == len(q.recvs) {
		q.recvNext = 0
	}
	q.credits += len(chain)
	return nil
}

// start assigns n messages to every queue. The flow must be idle.
func (f *flow) start(n int64) {
	f.posting = len(f.queues)
	for i := range f.queues {
		q := &f.queues[i]
		q.left = n
		rest := int(n % int64(f.chain))
		if n == endless || rest == 0 {
			continue
		}
		last := (q.next + int(n/int64(f.chain)%int64(len(q.chains)))) % len(q.chains)
		q.tail = append(q.tail[:0], q.chains[last][:rest]...)
		q.tail[rest-1].Flags = verbs.SendSignaled
		q.tail[rest-1].WRID = requestID(i, rest, last)
	}
}

// stop stops posting; messages in flight are not affected.
func (f *flow) stop() {
	for i := range f.queues {
		f.queues[i].left = 0
	}
	f.posting = 0
}

// idle reports whether everything posted is complete and, if receives are counted here, received.
func (f *flow) idle() bool {
	return f.posting == 0 && f.inFlight == 0 && (f.recvs == 0 || f.received+f.lost >= f.sent)
}

// done returns the number of delivered messages: received ones or, if receives are not counted
// here, those complete at the initiator.
func (f *flow) done() int64 {
	if f.recvs > 0 {
		return f.received
	}
	return f.completed
}

// postAll posts at most plan.round chains per queue.
func (f *flow) postAll() error {
	if f.posting == 0 {
		return nil
	}
	for i := range f.queues {
		q := &f.queues[i]
		for n := max(1, f.round); n > 0 && q.left > 0 && q.inFlight < f.window; n-- {
			if err := f.post(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// post posts the next chain of a queue, unless its partner lacks receives or a rolling check has
// not compared its slots.
func (f *flow) post(q *queue) error {
	chain := q.chains[q.next]
	if q.left < int64(len(chain)) {
		chain = q.tail
	}
	if f.recvs > 0 && q.credits < len(chain) {
		return nil
	}
	if f.rolling() {
		if ready, err := f.renew(queueOf(chain[0].WRID), len(chain)); !ready {
			return err
		}
	}
	if f.recvs > 0 {
		q.credits -= len(chain)
	}
	if q.left -= int64(len(chain)); q.left == 0 {
		f.posting--
	}
	return f.postChain(q, chain)
}

// postChain posts requests of a queue's next chain. Only the chain's last request is signaled.
func (f *flow) postChain(q *queue, chain []ibverbx.SendWR) error {
	if n, err := q.qp.PostSend(chain); err != nil {
		return fmt.Errorf("request %d of a chain of %d: %w", n, len(chain), err)
	}
	q.sent += int64(len(chain))
	f.sent += int64(len(chain))
	if chain[len(chain)-1].Flags&verbs.SendSignaled == 0 {
		return nil
	}
	if q.next++; q.next == len(q.chains) {
		q.next = 0
	}
	q.inFlight++
	f.inFlight++
	return nil
}

// completedSend handles the completion of a chain. Chains complete in posting order.
func (f *flow) completedSend(wc *ibverbx.WC) error {
	q := &f.queues[queueOf(wc.WRID)]
	if got := chainOf(wc.WRID); got != q.oldest {
		return fmt.Errorf("completions are out of order: chain %d of QP %d completed before chain %d", got, queueOf(wc.WRID), q.oldest)
	}
	if q.oldest++; q.oldest == len(q.chains) {
		q.oldest = 0
	}
	q.inFlight--
	f.inFlight--
	f.completed += messagesOf(wc.WRID)
	if f.recvs == 0 && f.rolling() {
		return f.compareNext(queueOf(wc.WRID), messagesOf(wc.WRID))
	}
	return nil
}

// completedRecv accepts a message or a notification and reposts receives, a chain at a time. It
// checks the fields of the completion that the scheme sets.
func (f *flow) completedRecv(wc *ibverbx.WC) error {
	q := &f.queues[queueOf(wc.WRID)]
	if wc.Flags&ibverbx.WCHasLength != 0 && int(wc.ByteLen) != f.size+f.grh {
		return fmt.Errorf("a message of %d bytes arrived with %d", f.size, int(wc.ByteLen)-f.grh)
	}
	if wc.Flags&ibverbx.WCHasImm != 0 && f.cfg.Check && wc.Imm != uint32(q.received) {
		return f.mismatch("the immediate", queueOf(wc.WRID), q.received, uint64(wc.Imm), uint64(uint32(q.received)))
	}
	q.received++
	f.received++
	if f.rolling() {
		if err := f.compareNext(queueOf(wc.WRID), 1); err != nil {
			return err
		}
	}
	if q.consumed++; q.consumed == f.chain {
		q.consumed = 0
		return f.replenish(q)
	}
	return nil
}

// writeOff counts missing messages as lost and turns their receives, which are still posted, into
// credits. All sends must be complete. A message that arrives later counts both as received and as
// lost, and the next one may miss a receive. Transports that lose messages tolerate that.
func (f *flow) writeOff() {
	f.lost = f.sent - f.received
	for i := range f.queues {
		q := &f.queues[i]
		q.credits = f.recvs - q.consumed
	}
}
