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
	// maxNotes is the maximum number of notifications in the ring.
	maxNotes = mailboxSize / slotSize
	// noteHeader is {seq u64, length u16, kind u8, 0...} before the body.
	noteHeader = 16
	// An immediate of classNote holds the low bits of the notification's number above its offset in slots.
	placeBits = 12
)

// Kinds of notifications.
const (
	noteBody = 0
	// noteVoid has an empty body. It replaces the notification of a failed batch, so that later ones need not wait.
	noteVoid = 1
)

// note is an outgoing notification. The Peer's mu guards it.
type note struct {
	proc *process
	// seq is its number, counted from 0 for each process.
	seq  uint64
	body []byte
	void bool
	// placed is set when the note has space in the ring: span bytes including padding, with the note at off.
	placed    bool
	off, span int
	// ready is set when the blocks of its batch have completed, so it may be posted once placed.
	ready bool
	// flying is set while op is outstanding.
	flying bool
	// transfer waits for the note; nil if none does.
	transfer *Transfer
	op       service.Op
	block    [1]service.Block
	// next links notes to submit, or free ones.
	next *note
}

// outbox holds the notifications to one process. Its ring mirrors the peer's mailbox. A notification keeps its slots until the peer's
// program has read it, so it can be resent after a lost session. The peer's hello reports which ones have arrived.
type outbox struct {
	proc *process
	// notes are the unread notifications in order, indexed by sequence number.
	notes ring.Ring[*note]
	// next is the number of the next notification, unplaced the number of the first one without slots, and taken the count read by the
	// peer's program.
	next, unplaced, taken uint64
	// tail is the offset of the next free slot, used the number of allocated bytes.
	tail, used int
	free       *note
}

// add queues a transfer's notification. mu must be held.
func (o *outbox) add(t *Transfer, body []byte) *note {
	n := o.free
	if n == nil {
		n = &note{}
	} else {
		o.free = n.next
	}
	*n = note{proc: o.proc, seq: o.next, body: append(n.body[:0], body...), transfer: t}
	o.next++
	o.notes.Push(n)
	return n
}

// place allocates slots to notifications in order until the ring is full. It returns list extended by the notes that can be posted. A dead
// process no longer owns the ring.
func (o *outbox) place(list *note) *note {
	for o.unplaced < o.next && o.proc.Err == nil {
		n := *o.notes.At(uint32(o.unplaced))
		size := (noteHeader + len(n.body) + slotSize - 1) &^ (slotSize - 1)
		span, off := size, o.tail
		if o.tail+size > mailboxSize {
			span, off = size+mailboxSize-o.tail, 0
		}
		if o.used+span > mailboxSize {
			break
		}
		n.off, n.span, n.placed = off, span, true
		o.tail = (off + size) % mailboxSize
		o.used += span
		o.unplaced++
		o.write(n)
		list = n.post(list)
	}
	return list
}

// write copies a notification into the ring.
func (o *outbox) write(n *note) {
	m := &o.proc.peer.mailbox
	b := m.out()[n.off:]
	length, k := len(n.body), byte(noteBody)
	if n.void {
		length, k = 0, noteVoid
	}
	clear(b[:noteHeader])
	little.PutUint64(b, n.seq)
	little.PutUint16(b[8:], uint16(length))
	b[10] = k
	copy(b[noteHeader:], n.body[:length])
	n.block[0] = service.Block{
		Local: m.region, Remote: &o.proc.mailbox, LocalOffset: uint64(mailboxSize + n.off), RemoteOffset: uint64(n.off),
		Length: uint64(noteHeader + length), Opcode: verbs.OpRDMAWrite,
	}
}

// imm returns the immediate of a placed notification.
func (n *note) imm() uint32 {
	return service.Immediate(classNote, uint32(uint16(n.seq))<<placeBits|uint32(n.off/slotSize))
}

// post prepends the notification to the list of notes to submit if it can be posted now.
func (n *note) post(list *note) *note {
	p := n.proc.peer
	if !n.placed || !n.ready || n.flying || n.proc.Err != nil || !p.link.Connected() {
		return list
	}
	n.flying = true
	p.ops++
	n.op.Blocks, n.op.Notify, n.op.Imm = n.block[:], true, n.imm()
	n.op.Session, n.op.Sink = p.number, n
	n.next = list
	return n
}

// submitNotes submits the operations of notifications. mu must not be held.
func (p *Peer) submitNotes(list *note) {
	for list != nil {
		n := list
		list = n.next // End may use the note again
		n.next = nil
		p.service.Submit(&n.op)
	}
}

// End implements service.Sink. A failed notification waits for the next session, or is posted again if that has started.
func (n *note) End(op *service.Op, err error) {
	proc := n.proc
	p := proc.peer
	p.link.Mu.Lock()
	n.flying = false
	p.ops--
	var list *note
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
	p.submitNotes(list)
}

// detach returns the transfer waiting for the notification, which the caller must finish, or nil.
func (n *note) detach() *Transfer {
	t := n.transfer
	if t != nil {
		n.transfer, t.note = nil, nil
	}
	return t
}

// release frees the slots of notifications read by the peer and reallocates them.
func (o *outbox) release(list *note) *note {
	for o.notes.Len() > 0 {
		n := *o.notes.Front()
		if n.seq >= o.taken || n.flying || n.transfer != nil {
			break
		}
		o.used -= n.span
		o.notes.Pop()
		n.next, o.free = o.free, n
	}
	return o.place(list)
}

// drop voids the notification of a failed batch. It must not be flying. It returns the notes to post.
func (n *note) drop() *note {
	n.detach()
	if n.proc.Err != nil {
		return nil
	}
	n.ready, n.void = true, true
	if n.placed {
		n.proc.out.write(n)
	}
	return n.proc.out.release(n.post(nil))
}

// take records that the peer's program has read all notifications before taken.
func (o *outbox) take(taken uint64) (*note, error) {
	if taken > o.unplaced {
		return nil, fmt.Errorf("%w: %d notifications taken of %d", errProtocol, taken, o.unplaced)
	}
	o.taken = max(o.taken, taken)
	return o.release(nil), nil
}

// resume starts a session from the state reported by the peer. It returns the notifications to send, and the transfers completed by arrived
// notifications.
func (o *outbox) resume(arrived, taken uint64) (list *note, done []*Transfer, err error) {
	if arrived > o.unplaced || taken > arrived {
		return nil, nil, fmt.Errorf("%w: %d notifications arrived and %d were taken of %d", errProtocol, arrived, taken, o.unplaced)
	}
	for i := range o.notes.Len() {
		n := *o.notes.At(o.notes.Head() + uint32(i))
		switch {
		case n.seq >= arrived:
			list = n.post(list)
		case n.ready && !n.flying && n.transfer != nil:
			done = append(done, n.detach())
		}
	}
	o.taken = max(o.taken, taken)
	return o.release(list), done, nil
}

// arrived returns the transfers whose notifications have arrived at the peer: those numbered below arrived.
func (o *outbox) arrived(arrived uint64) (done []*Transfer, err error) {
	if arrived > o.unplaced {
		return nil, fmt.Errorf("%w: %d notifications arrived of %d", errProtocol, arrived, o.unplaced)
	}
	for i := range o.notes.Len() {
		if n := *o.notes.At(o.notes.Head() + uint32(i)); n.seq < arrived && n.ready && n.transfer != nil {
			done = append(done, n.detach())
		}
	}
	return done, nil
}

// credited handles an immediate with the low bits of the number of notifications read by the peer's program.
func (p *Peer) credited(s service.Session, arg uint32) error {
	p.link.Mu.Lock()
	var list *note
	var err error
	if p.link.Session == s && p.link.Proc != nil {
		o := &p.link.Proc.out
		more := int32((arg-uint32(o.taken))<<(32-service.ClassShift)) >> (32 - service.ClassShift)
		if more > 0 {
			list, err = o.take(o.taken + uint64(more))
		}
	}
	p.link.Mu.Unlock()
	p.submitNotes(list)
	return err
}

// abandon returns the transfers waiting for notifications that cannot be posted because the process is dead. End handles posted ones.
func (o *outbox) abandon() (waiting []*Transfer) {
	for i := range o.notes.Len() {
		n := *o.notes.At(o.notes.Head() + uint32(i))
		if n.ready && !n.flying && n.transfer != nil {
			waiting = append(waiting, n.detach())
		}
	}
	return waiting
}
