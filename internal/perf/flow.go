package perf

import (
	"fmt"
	"math"

	"ibverbx/verbs"
)

// endless is a quota that no row reaches.
const endless = math.MaxInt64

// pollBatch is how many completions one poll takes.
const pollBatch = 64

// flow is one direction of a row: QPs of one side that initiate, and their partners.
// It is for one goroutine.
type flow struct {
	plan
	op       Op
	index    int
	grh      int  // bytes that a receive finds before the message
	reliable bool // a message that was sent arrives, or the QP fails

	sendCQ, recvCQ verbs.CQ // of the initiator, and of the target
	queues         []queue
	source, target *region // where the bytes come from and where they go
	wcs            [pollBatch]verbs.WC

	posting  int // queues with something left to post
	inFlight int // chains, over all queues
	sent     int64
	received int64 // Send only
	lost     int64
}

// queue is one QP of a flow and its partner.
type queue struct {
	qp, partner verbs.QP
	chains      [][]verbs.SendWR // posted in turn
	next        int              // the chain to post next
	tail        []verbs.SendWR   // the chain that ends a quota
	left        int64            // messages of the quota not posted yet
	sent        int64
	inFlight    int    // chains
	counter     uint64 // with Check, what an atomic counter held before a burst

	// Receives at the partner, for Send.
	// Invariant: credits + consumed + messages in flight = plan.recvs.
	recvs    [][]verbs.RecvWR // posted in turn
	recvNext int
	credits  int // receives that no message was sent for yet
	consumed int // receives that are complete and not posted again yet
}

// newFlow makes buffers and work requests for the direction from one side to the
// other, and posts the receives.
func (pr *pair) newFlow(index int, c *Config, p *plan) (*flow, error) {
	from, to := &pr.sides[index], &pr.sides[1-index]
	f := &flow{plan: *p, op: c.Op, index: index, reliable: c.Connection == verbs.RC, sendCQ: from.sendCQ, recvCQ: to.recvCQ}
	if c.Connection == verbs.UD {
		f.grh = verbs.GRHLen
	}
	local, err := pr.newRegion(from, p, p.slots)
	if err != nil {
		return nil, err
	}
	remote, err := pr.newRegion(to, p, max(p.recvSlots, p.slots))
	if err != nil {
		return nil, err
	}
	f.source, f.target = local, remote
	if c.Op == Read {
		f.source, f.target = remote, local
	}
	f.queues = make([]queue, p.qps)
	for i := range f.queues {
		q := &f.queues[i]
		q.qp, q.partner = from.qps[i], to.qps[i]
		q.chains = f.sendChains(i, local, remote)
		if c.Connection == verbs.UD {
			address(q.chains, from.ah, &to.ends[i])
		}
		if err := f.postRecvs(i, remote); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// sendChains builds the work requests of a queue once; posting only reads them. With
// as many places as requests in flight there is a chain for each of the window,
// otherwise one chain serves for all.
func (f *flow) sendChains(queue int, local, remote *region) [][]verbs.SendWR {
	count := max(1, f.slots/f.chain)
	chains := make([][]verbs.SendWR, count)
	message := int64(0)
	for c := range chains {
		chain := make([]verbs.SendWR, f.chain)
		for i := range chain {
			wr := &chain[i]
			wr.WRID = wrid(queue, f.chain)
			wr.Opcode = f.op.opcode()
			wr.SetSGE(local.sge(queue, message, 0))
			switch f.op {
			case Write, Read:
				wr.RemoteAddr, wr.RKey = remote.sge(queue, message, 0).Addr, remote.rkey
			case Atomic: // one counter per queue, and a place for each answer
				wr.RemoteAddr, wr.RKey, wr.CompareAdd = remote.sge(queue, 0, 0).Addr, remote.rkey, 1
			case Send: // the receiver says where it goes
			}
			message++
		}
		chain[len(chain)-1].Flags = verbs.SendSignaled
		chains[c] = chain
	}
	return chains
}

// wrid says which queue a completion belongs to and how many messages it stands for.
func wrid(queue, messages int) uint64 { return uint64(messages)<<32 | uint64(uint32(queue)) }

// address makes UD requests go to a QP.
func address(chains [][]verbs.SendWR, ah verbs.AHHandle, to *verbs.Endpoint) {
	for _, chain := range chains {
		for i := range chain {
			chain[i].AH, chain[i].RemoteQPN, chain[i].RemoteQKey = ah, to.QPN, to.QKey
		}
	}
}

// postRecvs builds the receives of a queue and posts all of them.
func (f *flow) postRecvs(queue int, target *region) error {
	if f.recvs == 0 {
		return nil
	}
	q := &f.queues[queue]
	q.recvs = make([][]verbs.RecvWR, max(1, f.recvSlots/f.chain))
	message := int64(0)
	for c := range q.recvs {
		q.recvs[c] = make([]verbs.RecvWR, f.chain)
		for i := range q.recvs[c] {
			wr := &q.recvs[c][i]
			wr.WRID = wrid(queue, 1)
			wr.SetSGE(target.sge(queue, message, f.grh))
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
		q.tail[rest-1].WRID = wrid(i, rest)
	}
}

// stop ends posting; what is in flight stays there.
func (f *flow) stop() {
	for i := range f.queues {
		f.queues[i].left = 0
	}
	f.posting = 0
}

// idle reports whether everything posted is complete and, for Send, received.
func (f *flow) idle() bool {
	return f.posting == 0 && f.inFlight == 0 && (f.recvs == 0 || f.received+f.lost >= f.sent)
}

// step posts at most one chain per queue, polls, and returns how many messages were
// completed; for Send, received.
func (f *flow) step() (done int, err error) {
	if f.posting > 0 {
		for i := range f.queues {
			if q := &f.queues[i]; q.left > 0 && q.inFlight < f.window {
				if err := f.post(q); err != nil {
					return 0, err
				}
			}
		}
	}
	done, err = f.pollSends()
	if err == nil && f.recvs > 0 {
		done, err = f.pollRecvs()
	}
	return done, err
}

// post posts the next chain of a queue, unless its partner lacks receives.
func (f *flow) post(q *queue) error {
	chain := q.chains[q.next]
	if q.left < int64(len(chain)) {
		chain = q.tail
	}
	if f.recvs > 0 {
		if q.credits < len(chain) {
			return nil
		}
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

// pollSends takes completions of chains and returns how many messages they stand for.
func (f *flow) pollSends() (done int, err error) {
	for {
		n, err := f.sendCQ.Poll(f.wcs[:])
		if err != nil {
			return done, err
		}
		for i := range n {
			wc := &f.wcs[i]
			if wc.Status != verbs.StatusSuccess {
				return done, wc.Err()
			}
			f.queues[uint32(wc.WRID)].inFlight--
			f.inFlight--
			done += int(wc.WRID >> 32)
		}
		if n < len(f.wcs) {
			return done, nil
		}
	}
}

// pollRecvs takes received messages and posts their receives again, a chain at a time.
func (f *flow) pollRecvs() (done int, err error) {
	for {
		n, err := f.recvCQ.Poll(f.wcs[:])
		if err != nil {
			return done, err
		}
		for i := range n {
			wc := &f.wcs[i]
			if wc.Status != verbs.StatusSuccess {
				return done, wc.Err()
			}
			if int(wc.ByteLen) != f.size+f.grh {
				return done, fmt.Errorf("a message of %d bytes arrived with %d", f.size, int(wc.ByteLen)-f.grh)
			}
			q := &f.queues[uint32(wc.WRID)]
			if q.consumed++; q.consumed == f.chain {
				q.consumed = 0
				if err := f.replenish(q); err != nil {
					return done, err
				}
			}
		}
		f.received += int64(n)
		done += n
		if n < len(f.wcs) {
			return done, nil
		}
	}
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
