package transfer

import (
	"fmt"

	"ibverbx/internal/ring"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// MaxNotification is the maximum size of a notification body in bytes.
const MaxNotification = 4 << 10

const (
	// mailboxSize is the size of the notification ring in bytes.
	mailboxSize = 16 << 10
	// slotSize is the allocation unit of the ring in bytes.
	slotSize = 64
	// maxNotifications is the maximum number of notifications in the ring.
	maxNotifications = mailboxSize / slotSize
	// notificationHeader is {seq u64, length u16, kind u8, 0...} before the body.
	notificationHeader = 16
	// An immediate of classNotification holds the low bits of the notification's number above its offset in slots.
	placeBits = 12
)

// Kinds of notifications.
const (
	kindBody = 0
	// kindVoid has an empty body. It replaces the notification of a failed batch, so that later ones need not wait.
	kindVoid = 1
)

// notification is an outgoing notification. The Peer's mu guards it.
type notification struct {
	proc *process
	// seq is its number, counted from 0 for each process.
	seq  uint64
	body []byte
	void bool
	// hasSlots is set when the notification has space in the ring: span bytes including padding, with the notification at off.
	hasSlots  bool
	off, span int
	// ready is set when the blocks of its batch have completed, so it may be posted once it has slots.
	ready bool
	// inFlight is set while op is outstanding.
	inFlight bool
	// transfer waits for the notification; nil if none does.
	transfer *Transfer
	op       service.Op
	block    [1]service.Block
	// next links notifications to submit, or free ones.
	next *notification
}

// outbox holds the notifications to one process. Its ring mirrors the peer's mailbox. A notification keeps its slots until the peer's
// program has read it, so it can be resent after a lost session. The peer's hello reports which ones have arrived.
type outbox struct {
	proc *process
	// unread are the unread notifications in order, indexed by sequence number.
	unread ring.Ring[*notification]
	// next is the number of the next notification, unplaced the number of the first one without slots, and read the count read by the
	// peer's program.
	next, unplaced, read uint64
	// tail is the offset of the next free slot, used the number of allocated bytes.
	tail, used int
	free       *notification
}

// add queues a transfer's notification. mu must be held.
func (o *outbox) add(t *Transfer, body []byte) *notification {
	n := o.free
	if n == nil {
		n = &notification{}
	} else {
		o.free = n.next
	}
	*n = notification{proc: o.proc, seq: o.next, body: append(n.body[:0], body...), transfer: t}
	o.next++
	o.unread.Push(n)
	return n
}

// place allocates slots to notifications in order until the ring is full. It returns list extended by the notifications that can be posted. A dead
// process no longer owns the ring.
func (o *outbox) place(list *notification) *notification {
	for o.unplaced < o.next && o.proc.Err == nil {
		n := *o.unread.At(uint32(o.unplaced))
		size := (notificationHeader + len(n.body) + slotSize - 1) &^ (slotSize - 1)
		span, off := size, o.tail
		if o.tail+size > mailboxSize {
			span, off = size+mailboxSize-o.tail, 0
		}
		if o.used+span > mailboxSize {
			break
		}
		n.off, n.span, n.hasSlots = off, span, true
		o.tail = (off + size) % mailboxSize
		o.used += span
		o.unplaced++
		o.write(n)
		list = n.post(list)
	}
	return list
}

// write copies a notification into the ring.
func (o *outbox) write(n *notification) {
	m := &o.proc.peer.mailbox
	b := m.out()[n.off:]
	length, k := len(n.body), byte(kindBody)
	if n.void {
		length, k = 0, kindVoid
	}
	clear(b[:notificationHeader])
	little.PutUint64(b, n.seq)
	little.PutUint16(b[8:], uint16(length))
	b[10] = k
	copy(b[notificationHeader:], n.body[:length])
	n.block[0] = service.Block{
		Local: m.region, Remote: &o.proc.mailbox, LocalOffset: uint64(mailboxSize + n.off), RemoteOffset: uint64(n.off),
		Length: uint64(notificationHeader + length), Opcode: verbs.OpRDMAWrite,
	}
}

// imm returns the immediate of a notification with slots.
func (n *notification) imm() uint32 {
	return service.Immediate(classNotification, uint32(uint16(n.seq))<<placeBits|uint32(n.off/slotSize))
}

// post prepends the notification to the list to submit if it can be posted now.
func (n *notification) post(list *notification) *notification {
	p := n.proc.peer
	if !n.hasSlots || !n.ready || n.inFlight || n.proc.Err != nil || !p.link.Connected() {
		return list
	}
	n.inFlight = true
	p.ops++
	n.op.Blocks, n.op.Notify, n.op.Imm = n.block[:], true, n.imm()
	n.op.Session, n.op.Sink = p.number, n
	n.next = list
	return n
}

// submitNotifications submits the operations of notifications. mu must not be held.
func (p *Peer) submitNotifications(list *notification) {
	for list != nil {
		n := list
		list = n.next // End may use the notification again
		n.next = nil
		p.service.Submit(&n.op)
	}
}

// End implements service.Sink. A failed notification waits for the next session, or is posted again if that has started.
func (n *notification) End(op *service.Op, err error) {
	proc := n.proc
	p := proc.peer
	p.link.Mu.Lock()
	n.inFlight = false
	p.ops--
	var list *notification
	var t *Transfer
	switch {
	case err == nil:
		t = n.detach()
	case proc.Err != nil:
		t, err = n.detach(), proc.Err
	case op.Session != p.number:
		list = n.post(nil)
	}
	list = proc.out.release(list)
	p.link.Mu.Unlock()
	if t != nil {
		t.finish(err)
	}
	p.submitNotifications(list)
}

// detach returns the transfer waiting for the notification, which the caller must finish, or nil.
func (n *notification) detach() *Transfer {
	t := n.transfer
	if t != nil {
		n.transfer, t.notification = nil, nil
	}
	return t
}

// release frees the slots of notifications read by the peer and reallocates them.
func (o *outbox) release(list *notification) *notification {
	for o.unread.Len() > 0 {
		n := *o.unread.Front()
		if n.seq >= o.read || n.inFlight || n.transfer != nil {
			break
		}
		o.used -= n.span
		o.unread.Pop()
		n.next, o.free = o.free, n
	}
	return o.place(list)
}

// drop voids the notification of a failed batch. It must not be in flight. It returns the notifications to post.
func (n *notification) drop() *notification {
	n.detach()
	if n.proc.Err != nil {
		return nil
	}
	n.ready, n.void = true, true
	if n.hasSlots {
		n.proc.out.write(n)
	}
	return n.proc.out.release(n.post(nil))
}

// markRead records that the peer's program has read all notifications before read.
func (o *outbox) markRead(read uint64) (*notification, error) {
	if read > o.unplaced {
		return nil, fmt.Errorf("%w: %d notifications read of %d", errProtocol, read, o.unplaced)
	}
	o.read = max(o.read, read)
	return o.release(nil), nil
}

// resume starts a session from the state reported by the peer. It returns the notifications to send, and the transfers completed by arrived
// notifications.
func (o *outbox) resume(arrived, read uint64) (list *notification, done []*Transfer, err error) {
	if arrived > o.unplaced || read > arrived {
		return nil, nil, fmt.Errorf("%w: %d notifications arrived and %d were read of %d", errProtocol, arrived, read, o.unplaced)
	}
	for i := range o.unread.Len() {
		n := *o.unread.At(o.unread.Head() + uint32(i))
		switch {
		case n.seq >= arrived:
			list = n.post(list)
		case n.ready && !n.inFlight && n.transfer != nil:
			done = append(done, n.detach())
		}
	}
	o.read = max(o.read, read)
	return o.release(list), done, nil
}

// arrived returns the transfers whose notifications have arrived at the peer: those numbered below arrived.
func (o *outbox) arrived(arrived uint64) (done []*Transfer, err error) {
	if arrived > o.unplaced {
		return nil, fmt.Errorf("%w: %d notifications arrived of %d", errProtocol, arrived, o.unplaced)
	}
	for i := range o.unread.Len() {
		if n := *o.unread.At(o.unread.Head() + uint32(i)); n.seq < arrived && n.ready && n.transfer != nil {
			done = append(done, n.detach())
		}
	}
	return done, nil
}

// credited handles an immediate with the low bits of the number of notifications read by the peer's program.
func (p *Peer) credited(s service.Session, arg uint32) error {
	p.link.Mu.Lock()
	var list *notification
	var err error
	if p.link.Session == s && p.link.Proc != nil {
		o := &p.link.Proc.out
		more := int32((arg-uint32(o.read))<<(32-service.ClassShift)) >> (32 - service.ClassShift)
		if more > 0 {
			list, err = o.markRead(o.read + uint64(more))
		}
	}
	p.link.Mu.Unlock()
	p.submitNotifications(list)
	return err
}

// abandon returns the transfers waiting for notifications that cannot be posted because the process is dead. End handles posted ones.
func (o *outbox) abandon() (waiting []*Transfer) {
	for i := range o.unread.Len() {
		n := *o.unread.At(o.unread.Head() + uint32(i))
		if n.ready && !n.inFlight && n.transfer != nil {
			waiting = append(waiting, n.detach())
		}
	}
	return waiting
}
