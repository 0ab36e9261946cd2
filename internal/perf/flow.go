package perf

import (
	"fmt"
	"math"

	"ibverbx"
	"ibverbx/verbs"
)

// endless is a quota that no row reaches.
const endless = math.MaxInt64

// pollBatch is how many completions one poll takes.
const pollBatch = 64

// flow is one direction of a row: QPs of one end that initiate, and their partners. It is
// for one goroutine.
type flow struct {
	plan
	op       Op
	index    int
	grh      int  // bytes that a receive finds before the message
	reliable bool // a message that was sent arrives, or the QP fails
	check    bool // every message is compared, and its immediate
	rolling  rolling

	queues         []queue
	source, target *buffer // where the bytes come from and where they go

	posting   int // queues with something left to post
	inFlight  int // chains, over all queues
	sent      int64
	completed int64 // messages whose chain is complete at the initiator
	received  int64 // messages that the target took a receive for
	lost      int64
}

// queue is one QP of a flow and its partner.
type queue struct {
	qp, partner poster
	chains      [][]ibverbx.SendWR // posted in turn
	next        int                // the chain to post next
	tail        []ibverbx.SendWR   // the chain that ends a quota
	left        int64              // messages of the quota not posted yet
	sent        int64
	received    int64
	checked     int64  // with rolling, messages that were compared
	inFlight    int    // chains
	counter     uint64 // with Check, what an atomic counter held before a burst

	// Receives at the partner, for operations that take them.
	// Invariant: credits + consumed + messages in flight = plan.recvs.
	recvs    [][]ibverbx.RecvWR // posted in turn
	recvNext int
	credits  int // receives that no message was sent for yet
	consumed int // receives that are complete and not posted again yet
}

// The ID of a request says what its completion means:
//
//	  63   | 62           32 | 31         0
//	receive|    messages     |    queue
//
// A send completion stands for so many messages, a receive for one.
const receiveID = 1 << 63

func requestID(queue, messages int) uint64 { return uint64(messages)<<32 | uint64(uint32(queue)) }

func queueOf(id uint64) int { return int(uint32(id)) }

func messagesOf(id uint64) int64 { return int64(id &^ receiveID >> 32) }

// newFlow makes buffers and work requests for the direction that the end of that index
// initiates, and posts the receives.
func (pr *pair) newFlow(index int, c *Config, p *plan) (*flow, error) {
	from, to := pr.ends[index].posters(), pr.ends[1-index].posters()
	f := &flow{plan: *p, op: c.op(), index: index, reliable: c.Connection == verbs.RC, check: c.Check}
	if c.Connection == verbs.UD {
		f.grh = verbs.GRHLen
	}
	local, remote := pr.memory[index].buffer(p, p.slots), pr.memory[1-index].buffer(p, p.targetSlots())
	f.source, f.target = local, remote
	if c.Op == Read {
		f.source, f.target = remote, local
	}
	f.queues = make([]queue, p.qps)
	for i := range f.queues {
		q := &f.queues[i]
		q.qp, q.partner = from[i], to[i]
		q.chains = f.sendChains(i, local, remote)
		if err := f.postRecvs(i, remote); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// sendChains builds the work requests of a queue once; posting only reads them. With
// as many places as requests in flight there is a chain for each of the window,
// otherwise one chain serves for all.
func (f *flow) sendChains(queue int, local, remote *buffer) [][]ibverbx.SendWR {
	count := max(1, f.slots/f.chain)
	chains := make([][]ibverbx.SendWR, count)
	message := int64(0)
	for c := range chains {
		chain := make([]ibverbx.SendWR, f.chain)
		for i := range chain {
			wr := &chain[i]
			wr.WRID = requestID(queue, f.chain)
			wr.Opcode = f.op.opcode()
			wr.SetSGE(local.sge(queue, message, 0))
			switch f.op {
			case Write, WriteImm, Read:
				wr.Remote, wr.RemoteOffset = remote.remote, uint64(remote.offset(queue, message))
			case Atomic: // one counter per queue, and a place for each answer
				wr.Remote, wr.RemoteOffset, wr.CompareAdd = remote.remote, uint64(remote.offset(queue, 0)), 1
			case Send: // the receiver says where it goes
			}
			message++
		}
		chain[len(chain)-1].Flags = verbs.SendSignaled
		chains[c] = chain
	}
	return chains
}

// request is the work request of a message, if every message has a place of its own.
func (q *queue) request(message int64) *ibverbx.SendWR {
	chain := int64(len(q.chains[0]))
	return &q.chains[message/chain%int64(len(q.chains))][message%chain]
}

// postRecvs builds the receives of a queue and posts all of them. Without places they
// wait for notifications.
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
			wr.WRID = requestID(queue, 1) | receiveID
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

// start gives every queue n messages to send. The flow must be idle.
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
		q.tail[rest-1].WRID = requestID(i, rest)
	}
}

// stop ends posting; what is in flight stays there.
func (f *flow) stop() {
	for i := range f.queues {
		f.queues[i].left = 0
	}
	f.posting = 0
}

// idle reports whether everything posted is complete and, where receives are taken,
// received.
func (f *flow) idle() bool {
	return f.posting == 0 && f.inFlight == 0 && (f.recvs == 0 || f.received+f.lost >= f.sent)
}

// done counts the messages that came through: those received, or complete at the
// initiator of an operation that takes no receives.
func (f *flow) done() int64 {
	if f.recvs > 0 {
		return f.received
	}
	return f.completed
}

// postAll posts at most one chain per queue.
func (f *flow) postAll() error {
	if f.posting == 0 {
		return nil
	}
	for i := range f.queues {
		if q := &f.queues[i]; q.left > 0 && q.inFlight < f.window {
			if err := f.post(q); err != nil {
				return err
			}
		}
	}
	return nil
}

// post posts the next chain of a queue, unless its partner lacks receives.
func (f *flow) post(q *queue) error {
	chain := q.chains[q.next]
	if q.left < int64(len(chain)) {
		chain = q.tail
	}
	if f.recvs > 0 && q.credits < len(chain) {
		return nil
	}
	if f.rolling.on && !f.renew(queueOf(chain[0].WRID), len(chain)) {
		return nil
	}
	if f.recvs > 0 {
		q.credits -= len(chain)
	}
	if n, err := q.qp.PostSend(chain); err != nil {
		return fmt.Errorf("request %d of a chain of %d: %w", n, len(chain), err)
	}
	if q.next++; q.next == len(q.chains) {
		q.next = 0
	}
	q.inFlight++
	f.inFlight++
	n := int64(len(chain))
	q.sent += n
	f.sent += n
	if q.left -= n; q.left == 0 {
		f.posting--
	}
	return nil
}

// completedSend takes a completion of a chain.
func (f *flow) completedSend(wc *ibverbx.WC) error {
	f.queues[queueOf(wc.WRID)].inFlight--
	f.inFlight--
	f.completed += messagesOf(wc.WRID)
	if f.rolling.on && f.recvs == 0 {
		return f.compare(queueOf(wc.WRID), messagesOf(wc.WRID))
	}
	return nil
}

// completedRecv takes a message or a notification and posts receives again, a chain at a
// time. Schemes differ in what the completion says of the message; what it says must be
// right.
func (f *flow) completedRecv(wc *ibverbx.WC) error {
	q := &f.queues[queueOf(wc.WRID)]
	if wc.Flags&ibverbx.WCHasLength != 0 && int(wc.ByteLen) != f.size+f.grh {
		return fmt.Errorf("a message of %d bytes arrived with %d", f.size, int(wc.ByteLen)-f.grh)
	}
	if f.check && wc.Flags&ibverbx.WCHasImm != 0 && wc.Imm != uint32(q.received) {
		return &ImmediateError{Device: f.target.device, Message: q.received, Got: wc.Imm}
	}
	q.received++
	f.received++
	if f.rolling.on {
		if err := f.compare(queueOf(wc.WRID), 1); err != nil {
			return err
		}
	}
	if q.consumed++; q.consumed == f.chain {
		q.consumed = 0
		return f.replenish(q)
	}
	return nil
}

// writeOff counts messages that did not arrive as lost and takes their receives, which
// are still posted, back as credits. The sends must be complete. If one of them arrives
// after all it is received and lost at once, and the next message may find no receive:
// transports that lose messages allow that.
func (f *flow) writeOff() {
	f.lost = f.sent - f.received
	for i := range f.queues {
		q := &f.queues[i]
		q.credits = f.recvs - q.consumed
	}
}
