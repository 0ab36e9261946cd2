package transfer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"ibverbx"
	"ibverbx/internal/broadcast"
	"ibverbx/internal/ring"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// Notification is a message that a peer sent with Batch.Notify or Peer.Notify.
type Notification struct {
	// Peer is the sender.
	Peer *Peer
	// Body is the message, at most MaxNotification bytes. The receiver owns it.
	Body []byte
	// Seq numbers the notifications of one peer process, starting at 0. A failed batch leaves a gap.
	Seq uint64
}

// maxQueued limits the unread notifications of a peer's earlier processes, in bytes, when a new process connects.
const maxQueued = 4 * mailboxSize

// mailbox is the ring that the peer writes its notifications to, followed by the ring for outgoing ones. The peer can write to both, but
// overwriting the second changes only the data it receives itself. Each Peer has one mailbox.
type mailbox struct {
	mem    *verbs.Memory
	memory service.Memory
	region *ibverbx.Region
}

// make allocates the memory if necessary. Only hello calls it, and calls of hello are serialized.
func (m *mailbox) make(p *Peer) error {
	if m.region != nil {
		return nil
	}
	mem, err := p.engine.service.Alloc(2*mailboxSize, nil)
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

// remote returns the region granted to the peer.
func (m *mailbox) remote() ibverbx.RemoteRegion {
	r := *m.region.Remote()
	r.Length = mailboxSize
	return r
}

// out returns the ring for outgoing notifications.
func (m *mailbox) out() []byte { return m.mem.Bytes()[mailboxSize:] }

// free releases the memory. The peer's keys must be revoked before.
func (m *mailbox) free() error {
	if m.region == nil {
		return nil
	}
	m.region = nil
	return errors.Join(m.memory.Close(), m.mem.Free())
}

// arrivals tracks the notifications received from one process. The Peer's mu guards it.
type arrivals struct {
	// arrived is the number of the first missing notification; early holds later ones.
	arrived uint64
	early   map[uint64]arrival
	// queued is the size of the unread notifications in bytes.
	queued int
	// read is the number of notifications the program has read, unreported the number of read bytes not yet reported to the peer.
	read       uint64
	unreported int
	// credit is the operation that reports reads to the peer; inFlight is set while it is outstanding.
	credit   credit
	inFlight bool
}

// arrival is a notification, or a void one.
type arrival struct {
	Notification
	proc *process
	void bool
}

// size returns the notification's size in the ring in bytes, without padding at the end of the ring.
func (a *arrival) size() int {
	return (notificationHeader + len(a.Body) + slotSize - 1) &^ (slotSize - 1)
}

// notificationArrived copies a notification out of the mailbox. It is called with the shard's lock held. An error closes the session.
func (p *Peer) notificationArrived(s service.Session, arg, length uint32) error {
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
	if _, ok := in.early[seq]; ok {
		return nil
	}
	off := int(arg&(1<<placeBits-1)) * slotSize
	if ahead >= maxNotifications || length < notificationHeader || length > notificationHeader+MaxNotification || off+int(length) > mailboxSize {
		return fmt.Errorf("%w: notification %d of %d bytes at %d, after %d", errProtocol, seq, length, off, in.arrived)
	}
	b := make([]byte, length)
	copy(b, p.mailbox.mem.Bytes()[off:mailboxSize]) // the peer can change the mailbox at any time
	a, err := decodeNotification(b, seq)
	if err != nil {
		return err
	}
	a.Peer, a.proc = p, proc
	if in.queued+a.size() > mailboxSize || p.queued+a.size() > maxQueued+mailboxSize {
		return fmt.Errorf("%w: notification %d exceeds the mailbox", errProtocol, seq)
	}
	p.counts.notifications.Add(1)
	p.queued += a.size()
	in.queued += a.size()
	if seq != in.arrived {
		if in.early == nil {
			in.early = map[uint64]arrival{}
		}
		in.early[seq] = a
		return nil
	}
	for ok := true; ok; {
		p.engine.inbox.push(a)
		in.arrived++
		if a, ok = in.early[in.arrived]; ok {
			delete(in.early, in.arrived)
		}
	}
	return nil
}

// decodeNotification decodes the notification with number seq.
func decodeNotification(b []byte, seq uint64) (arrival, error) {
	if len(b) < notificationHeader {
		return arrival{}, fmt.Errorf("%w: notification of %d bytes", errProtocol, len(b))
	}
	got, length, k := little.Uint64(b), int(little.Uint16(b[8:])), b[10]
	rest := b[11] | b[12] | b[13] | b[14] | b[15]
	if got != seq || length != len(b)-notificationHeader || length > MaxNotification || k > kindVoid || k == kindVoid && length != 0 || rest != 0 {
		return arrival{}, fmt.Errorf("%w: notification %d says that it is %d, of kind %d with %d bytes", errProtocol, seq, got, k, length)
	}
	return arrival{Notification: Notification{Body: b[notificationHeader:], Seq: seq}, void: k == kindVoid}, nil
}

// markRead records that the program has read a notification, and notifies the peer now and then.
func (a *arrival) markRead() {
	p, in := a.Peer, &a.proc.in
	p.link.Mu.Lock()
	p.queued -= a.size()
	in.queued -= a.size()
	in.read++
	in.unreported += a.size()
	c := a.proc.credit()
	p.link.Mu.Unlock()
	if c != nil {
		p.service.Submit(&c.op)
	}
}

// credit reports to the peer the number of notifications read. If it is lost, the next hello repeats it.
type credit struct {
	proc  *process
	op    service.Op
	block [1]service.Block
}

// credit returns the operation to submit, or nil. The Peer's mu must be held.
func (proc *process) credit() *credit {
	in, p := &proc.in, proc.peer
	if in.inFlight || in.unreported < mailboxSize/4 || proc.Err != nil || !p.link.Connected() {
		return nil
	}
	c := &in.credit
	in.inFlight, in.unreported = true, 0
	p.ops++
	c.proc = proc
	c.block[0] = service.Block{Local: p.mailbox.region, Remote: &proc.mailbox, Opcode: verbs.OpRDMAWrite}
	c.op.Blocks, c.op.Notify, c.op.Imm = c.block[:], true, service.Immediate(classCredit, uint32(in.read))
	c.op.Session, c.op.Sink = p.number, c
	return c
}

// End implements service.Sink.
func (c *credit) End(*service.Op, error) {
	proc := c.proc
	p := proc.peer
	p.link.Mu.Lock()
	proc.in.inFlight = false
	p.ops--
	next := proc.credit()
	p.link.Mu.Unlock()
	if next != nil {
		p.service.Submit(&next.op)
	}
}

// inbox queues the notifications of all peers in arrival order. Each peer limits its own share.
type inbox struct {
	// more wakes one waiting goroutine.
	more chan struct{}
	mu   sync.Mutex
	list ring.Ring[arrival]
}

func (b *inbox) push(a arrival) {
	b.mu.Lock()
	b.list.Push(a)
	b.mu.Unlock()
	broadcast.Wake(b.more)
}

// pop removes the oldest notification; ok is false if the inbox is empty.
func (b *inbox) pop() (a arrival, ok bool) {
	b.mu.Lock()
	left := b.list.Len()
	if left > 0 {
		a = b.list.Pop()
	}
	b.mu.Unlock()
	if left > 1 {
		broadcast.Wake(b.more)
	}
	return a, left > 0
}

// Recv returns the next notification from any peer, and blocks until one arrives or ctx is done. All blocks of its batch are in memory.
// Several goroutines may call Recv; each notification is delivered to one of them. Unread notifications delay only later notifications from
// the same peer, not data. Once the inbox is empty, Recv returns ErrClosed after Close, or the cause of ctx.
func (e *Engine) Recv(ctx context.Context) (Notification, error) {
	if !e.isOpen() {
		return Notification{}, newError("receive", nil, "", ErrClosed)
	}
	if err := checkContext(ctx); err != nil {
		return Notification{}, newError("receive", nil, "", err)
	}
	for {
		a, ok := e.inbox.pop()
		if ok {
			a.markRead()
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

// Notifications returns an iterator over the notifications from all peers. It stops when ctx is done or the Engine is closed; check ctx.Err
// to distinguish the two. It consumes the same queue as Recv.
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
