package transfer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"ibverbx"
	"ibverbx/internal/ring"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Notification is what a peer sent with Batch.Notify.
type Notification struct {
	Peer *Peer
	// Body is the caller's.
	Body []byte
	// Seq counts the notifications of one process of the peer from 0. Those whose batch failed leave a gap.
	Seq uint64
}

// maxQueued is how many bytes of notifications of earlier processes of a peer may wait for the program when another one comes.
const maxQueued = 4 * mailboxSize

// mailbox is the memory that a peer writes its notifications to, and behind it the ring that those to the peer are sent from. The peer can
// write to the latter too, and change what it gets itself. It is made once for each Peer.
type mailbox struct {
	mem    *verbs.Memory
	memory service.Memory
	region *ibverbx.Region
}

// make makes the memory if there is none. Only Up calls it, and a Peer has one session at a time.
func (m *mailbox) make(p *Peer) error {
	if m.region != nil {
		return nil
	}
	mem, err := verbs.AllocMemory(2*mailboxSize, nil)
	if err != nil {
		return err
	}
	memory := p.engine.service.Register(mem)
	region, err := memory.Region(p.service, Write.verbs())
	if err != nil {
		return errors.Join(err, memory.Close(), mem.Free())
	}
	m.mem, m.memory, m.region = mem, memory, region
	return nil
}

// remote is what the peer is lent.
func (m *mailbox) remote() ibverbx.RemoteRegion {
	r := *m.region.Remote()
	r.Length = mailboxSize
	return r
}

// out is the ring that notifications to the peer are sent from.
func (m *mailbox) out() []byte { return m.mem.Bytes()[mailboxSize:] }

// free frees the memory. No peer may have its key.
func (m *mailbox) free() error {
	if m.region == nil {
		return nil
	}
	m.region = nil
	return errors.Join(m.memory.Close(), m.mem.Free())
}

// arrivals are the notifications of one process that have come. The Peer's mu guards them.
type arrivals struct {
	// arrived is the number of the first notification that has not come, and held are those behind it.
	arrived uint64
	held    map[uint64]arrival
	// queued is how many bytes have come that the program has not taken.
	queued int
	// taken is how many the program has taken, and owed how many bytes of those the peer was not told.
	taken uint64
	owed  int
	// credit is the operation that tells the peer, and flying says that it is under way.
	credit credit
	flying bool
}

// arrival is a notification, or a void one.
type arrival struct {
	Notification
	proc *process
	void bool
}

// size is how many bytes of the ring the notification has, without those that were skipped at its end.
func (a *arrival) size() int { return (noteHeader + len(a.Body) + slotSize - 1) &^ (slotSize - 1) }

// noteArrived takes a notification out of the mailbox. It is called with the shard's lock. An error ends the session.
func (p *Peer) noteArrived(s service.Session, arg, length uint32) error {
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	proc := p.link.Proc
	if p.link.Session != s || proc == nil {
		return nil
	}
	in := &proc.in
	ahead := int16(uint16(arg>>placeBits) - uint16(in.arrived))
	if ahead < 0 {
		return nil // sent again after a session was lost
	}
	seq := in.arrived + uint64(ahead)
	if _, ok := in.held[seq]; ok {
		return nil
	}
	off := int(arg&(1<<placeBits-1)) * slotSize
	if ahead >= maxNotes || length < noteHeader || length > noteHeader+MaxNotification || off+int(length) > mailboxSize {
		return fmt.Errorf("%w: notification %d of %d bytes at %d, after %d", errProtocol, seq, length, off, in.arrived)
	}
	b := make([]byte, length)
	copy(b, p.mailbox.mem.Bytes()[off:mailboxSize]) // the peer can change the mailbox at any time
	a, err := decodeNote(b, seq)
	if err != nil {
		return err
	}
	a.Peer, a.proc = p, proc
	if in.queued+a.size() > mailboxSize || p.queued+a.size() > maxQueued+mailboxSize {
		return fmt.Errorf("%w: notification %d without room", errProtocol, seq)
	}
	p.queued += a.size()
	in.queued += a.size()
	if seq != in.arrived {
		if in.held == nil {
			in.held = map[uint64]arrival{}
		}
		in.held[seq] = a
		return nil
	}
	for ok := true; ok; {
		p.engine.inbox.push(a)
		in.arrived++
		if a, ok = in.held[in.arrived]; ok {
			delete(in.held, in.arrived)
		}
	}
	return nil
}

// decodeNote decodes a notification of which the number is known.
func decodeNote(b []byte, seq uint64) (arrival, error) {
	if len(b) < noteHeader {
		return arrival{}, fmt.Errorf("%w: notification of %d bytes", errProtocol, len(b))
	}
	got, length, k := little.Uint64(b), int(little.Uint16(b[8:])), b[10]
	rest := b[11] | b[12] | b[13] | b[14] | b[15]
	if got != seq || length != len(b)-noteHeader || length > MaxNotification || k > noteVoid || k == noteVoid && length != 0 || rest != 0 {
		return arrival{}, fmt.Errorf("%w: notification %d says that it is %d, of kind %d with %d bytes", errProtocol, seq, got, k, length)
	}
	return arrival{Notification: Notification{Body: b[noteHeader:], Seq: seq}, void: k == noteVoid}, nil
}

// took notes that the program has taken a notification, and tells the peer now and then.
func (a *arrival) took() {
	p, in := a.Peer, &a.proc.in
	p.link.Mu.Lock()
	p.queued -= a.size()
	in.queued -= a.size()
	in.taken++
	in.owed += a.size()
	c := a.proc.credit()
	p.link.Mu.Unlock()
	if c != nil {
		p.service.Submit(&c.op)
	}
}

// credit is an operation that tells the peer how many notifications were taken. If it is lost, the next hello does.
type credit struct {
	proc  *process
	op    service.Op
	block [1]service.Block
}

// credit returns the operation to be submitted, nil if there is none. The Peer's mu must be held.
func (proc *process) credit() *credit {
	in, p := &proc.in, proc.peer
	if in.flying || in.owed < mailboxSize/4 || proc.Err != nil || !p.link.Connected() {
		return nil
	}
	c := &in.credit
	in.flying, in.owed = true, 0
	p.ops++
	c.proc = proc
	c.block[0] = service.Block{Local: p.mailbox.region, Remote: &proc.mailbox, Opcode: verbs.OpRDMAWrite}
	c.op.Blocks, c.op.Notify, c.op.Imm = c.block[:], true, service.Immediate(classCredit, uint32(in.taken))
	c.op.Session, c.op.Sink = p.number, c
	return c
}

// End implements service.Sink.
func (c *credit) End(*service.Op, error) {
	proc := c.proc
	p := proc.peer
	p.link.Mu.Lock()
	proc.in.flying = false
	p.ops--
	next := proc.credit()
	p.link.Mu.Unlock()
	if next != nil {
		p.service.Submit(&next.op)
	}
}

// inbox has the notifications of all peers, in the order in which they came. Each peer bounds how many of its own there are.
type inbox struct {
	// more has a token if a goroutine that waits should look again.
	more chan struct{}
	mu   sync.Mutex
	list ring.Ring[arrival]
}

func (b *inbox) push(a arrival) {
	b.mu.Lock()
	b.list.Push(a)
	b.mu.Unlock()
	signal(b.more)
}

// pop takes the oldest notification, if there is one.
func (b *inbox) pop() (a arrival, ok bool) {
	b.mu.Lock()
	left := b.list.Len()
	if left > 0 {
		a = b.list.Pop()
	}
	b.mu.Unlock()
	if left > 1 {
		signal(b.more)
	}
	return a, left > 0
}

// signal wakes one goroutine that waits for a token.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Recv returns the next notification of any peer, and waits for one until ctx ends. All blocks of its batch are in memory. Each
// goroutine that calls it gets other ones. A peer's notifications that nobody takes hold up those that it sends later, but no data.
func (e *Engine) Recv(ctx context.Context) (Notification, error) {
	for {
		a, ok := e.inbox.pop()
		if ok {
			a.took()
			if a.void {
				continue
			}
			return a.Notification, nil
		}
		select {
		case <-e.inbox.more:
		case <-e.done:
			return Notification{}, newError("receive", nil, "", ErrClosed)
		case <-ctx.Done():
			return Notification{}, newError("receive", nil, "", context.Cause(ctx))
		}
	}
}

// Notifications returns the notifications of all peers, until ctx ends or the Engine is closed. Recv says which of the two it was.
func (e *Engine) Notifications(ctx context.Context) iter.Seq[Notification] {
	return func(yield func(Notification) bool) {
		for {
			n, err := e.Recv(ctx)
			if err != nil || !yield(n) {
				return
			}
		}
	}
}
