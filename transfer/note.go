package transfer

import (
	"fmt"

	"ibverbx/internal/ring"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

// MaxNotification is how many bytes a notification has at most.
const MaxNotification = 4 << 10

const (
	// mailboxSize is the size of the ring that notifications are written to, in bytes.
	mailboxSize = 16 << 10
	// slotSize is the unit of places in the ring, in bytes.
	slotSize = 64
	// maxNotes is how many notifications fit.
	maxNotes = mailboxSize / slotSize
	// noteHeader is {seq u64, length u16, kind u8, 0...} before the body.
	noteHeader = 16
	// An immediate of classNote has the lower bits of the number of the notification, and its place in slots below them.
	placeBits = 12
)

// Kinds of notifications.
const (
	noteBody = 0
	// noteVoid has no body. It takes the place of one whose batch has failed, so that those behind it do not wait.
	noteVoid = 1
)

// note is a notification on its way. The Peer's mu guards it.
type note struct {
	proc *process
	// seq is its number, counted from 0 for each process.
	seq  uint64
	body []byte
	void bool
	// placed says that it has a place in the ring: span bytes in all, of which the last ones begin at off.
	placed    bool
	off, span int
	// ready says that it may be posted as soon as it has a place: the blocks of its batch have ended.
	ready bool
	// flying says that op is under way.
	flying bool
	// transfer waits for it, and is nil if none does.
	transfer *Transfer
	op       service.Op
	block    [1]service.Block
	// next links notes that are to be submitted, or free ones.
	next *note
}

// outbox has the notifications to one process. Its ring is a copy of the peer's mailbox. A notification keeps its place until the
// peer's program has taken it, so it can be sent again if a session was lost. The peer's hello says what has arrived.
type outbox struct {
	proc *process
	// notes are those that the peer's program has not taken, in order. The ring's sequence numbers are theirs.
	notes ring.Ring[*note]
	// next is the number of the next notification, unplaced that of the first one without a place, and taken is how many the
	// peer's program has taken.
	next, unplaced, taken uint64
	// tail is where the next place begins, and used how many bytes are taken.
	tail, used int
	free       *note
}

// add queues a notification of a transfer. mu must be held.
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

// place gives places to notifications, in order, as long as there are any. It returns those that can be posted. The ring is no longer that
// of a dead process.
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

// write puts a notification into the ring.
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

// imm is the immediate of a notification that has a place.
func (n *note) imm() uint32 {
	return service.Immediate(classNote, uint32(uint16(n.seq))<<placeBits|uint32(n.off/slotSize))
}

// post adds a notification to the list of those to submit, if it can be posted now.
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

// submitNotes submits the operations of notifications. It must be called without mu.
func (p *Peer) submitNotes(list *note) {
	for list != nil {
		n := list
		list = n.next // End may use the note again
		n.next = nil
		p.service.Submit(&n.op)
	}
}

// End implements service.Sink. A notification that has failed waits for the next session, if that is not there already.
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

// detach returns the transfer that waits for the notification, which the caller must finish, or nil.
func (n *note) detach() *Transfer {
	t := n.transfer
	if t != nil {
		n.transfer, t.note = nil, nil
	}
	return t
}

// release frees the places of the notifications that the peer has taken, and gives them to others.
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

// drop makes a notification void whose batch has failed and that is not under way. It returns what can be posted.
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

// take notes that the peer's program has taken all notifications before a number.
func (o *outbox) take(taken uint64) (*note, error) {
	if taken > o.unplaced {
		return nil, fmt.Errorf("%w: %d notifications taken of %d", errProtocol, taken, o.unplaced)
	}
	o.taken = max(o.taken, taken)
	return o.release(nil), nil
}

// resume begins a session, in which the peer says what it has. It returns the notifications to be sent, and the transfers that have ended
// because theirs has arrived.
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

// arrived returns the transfers whose notifications are among the first so many, which have arrived at the peer.
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

// credited handles an immediate with the lower bits of the number of notifications that the peer's program has taken.
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

// abandon returns the transfers that wait for notifications which will not be posted, because the process is dead. Those that are under way
// end in End.
func (o *outbox) abandon() (waiting []*Transfer) {
	for i := range o.notes.Len() {
		n := *o.notes.At(o.notes.Head() + uint32(i))
		if n.ready && !n.flying && n.transfer != nil {
			waiting = append(waiting, n.detach())
		}
	}
	return waiting
}
