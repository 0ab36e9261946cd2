package ibverbx

import (
	"encoding/binary"
	"math"
	"math/bits"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// tally is the default scheme. Each lane that carried data since the last notification sends one record behind that
// data on the same QP, so the data is visible when the record is (InfiniBand o9-20). The receiver completes message n
// when message n-1 is complete and all records of n have arrived.
//
// A record, little-endian:
//
//	0         4          6          8         12        16
//	| msgSeq  |  lanes   |  (zero)  |   imm   |  length  |
//
// An unfragmented message is sent without a record if it follows its predecessor on the same lane and does not cover
// other data: it is a single WRITE_WITH_IMM with the user's immediate. Its number is the lane's previous number plus
// one.
type tally struct {
	setup *setup
	send  *sender
	recv  *receiver

	closing laneSet // lanes that must still send a record of the open message
	seq     uint32  // number of the open message, or of the next one
	open    bool    // a message is open: some of its records are not staged yet

	window ring.Window[messageRecords] // messages from next on
	next   uint32                      // oldest incomplete message
	limit  int32                       // maximum lead of a lane over next before it is starved
	// region holds the arriving records, recvSlots per lane, unless the receives are shared, followed by the records
	// of the send ring.
	region    *Region
	arriving  []byte // arriving records; empty if the receives are shared
	recvSlots int    // Config.NotifyDepth, rounded up to a power of two because entries wrap
}

const (
	recordSize = 16
	noNumber   = -2      // lane.lastRecorded: no message can follow
	noRecord   = 1 << 63 // lane.latest: no number has arrived
)

// records holds one record per slot of the send ring. All lanes share a request's record, which does not change until
// the request is reported. It is in registered memory, because not every device accepts inline data.
type records struct {
	bytes []byte
	addr  uint64          // address of bytes
	flags verbs.SendFlags // SendInline if the lanes accept an inline record
	lkeys [MaxRails]uint32
	// region owns bytes; nil with other schemes.
	region *Region
}

// refresh updates a rail's key, which the region gets once the rail's device recovers.
func (r *records) refresh(rail uint8) {
	if r.region != nil && r.region.registered(rail) {
		r.lkeys[rail] = r.region.lkeys[rail]
	}
}

// put writes a slot's record. n is the number of records of the message.
func (r *records) put(slot int, seq uint32, n int, imm, length uint32) {
	b := (*[recordSize]byte)(r.bytes[slot*recordSize:])
	binary.LittleEndian.PutUint64(b[0:], uint64(seq)|uint64(n)<<32)
	binary.LittleEndian.PutUint64(b[8:], uint64(imm)|uint64(length)<<32)
}

// messageRecords counts the records of a message.
type messageRecords struct {
	got    uint16 // arrived records
	want   uint16 // expected records; valid if got is not 0
	imm    uint32 // valid if got is not 0
	length uint32 // valid if got is not 0
}

func newTally(q *VirtualQP) (*tally, error) {
	u := &q.setup
	t := &tally{setup: u, send: &q.send, recv: &q.recv, closing: newLaneSet(u.cfg.Lanes), recvSlots: ring.CeilPow2(u.cfg.NotifyDepth)}
	arriving := 0
	if u.shared == nil {
		arriving = u.cfg.Lanes * t.recvSlots * recordSize
	}
	var err error
	if t.region, err = u.rails.allocRegion(arriving + u.cfg.SendDepth*recordSize); err != nil {
		return t, err
	}
	t.arriving = t.region.Bytes()[:arriving]
	q.send.records = records{bytes: t.region.Bytes()[arriving:], addr: t.region.addr + uint64(arriving), region: t.region}
	if u.cfg.MaxInline >= recordSize {
		q.send.records.flags = verbs.SendInline
	}
	return t, nil
}

// connected sizes the window. A lane is fed until its latest message is ahead of next by more than the peer's send
// depth or the user's receive depth. The missing record may be behind it on the same lane, if that has taken over
// from another one. After that, the posted receives can still be filled, and the peer's outstanding requests arrive.
func (t *tally) connected(remote *Card) int {
	for _, l := range t.setup.lanes {
		l.latest = noRecord
	}
	t.limit = int32(max(t.setup.cfg.RecvDepth, remote.Limits.SendDepth))
	t.window = ring.NewWindow[messageRecords](initialDepth, int(t.limit)+remote.Limits.SendDepth+t.setup.receives())
	return int(t.window.Limit())
}

func (t *tally) dispatch(s *sendSlot) bool {
	notified := s.op == verbs.OpRDMAWriteWithImm
	if notified && t.stageWithoutRecord(s) {
		return true
	}
	if !t.send.stageFragments(s) {
		return false
	}
	return !notified || t.stageRecords(s)
}

// stageWithoutRecord stages a message without a record if possible. The record is still written: if another lane
// takes over the message, it sends it.
func (t *tally) stageWithoutRecord(s *sendSlot) bool {
	send, p := t.send, &t.send.picker
	if s.started || s.length > s.cut || (!s.plain && s.partial) || p.runLeft == 0 || p.runLane.lastRecorded+1 != int64(t.seq) || send.uncovered.first() >= 0 {
		return false
	}
	l := p.reuseLane(s.length)
	if l == nil {
		return false
	}
	t.writeRecord(send.sends.dispatched, s, 1)
	s.wire = verbs.OpRDMAWriteWithImm
	s.pending++
	l.lastRecorded = int64(t.seq)
	t.seq++
	send.stage(l, entryHead(send.sends.index(send.sends.dispatched), s.dataKind(), s.flags&verbs.SendSolicited)|entryConsumes, 0, s.length, s.imm)
	return true
}

// run builds messages without records. Only the first has one, unless it follows its predecessor on the lane. If the
// lane is too full for that record, run returns an empty chain. It numbers all messages and writes their records,
// like stageWithoutRecord.
func (t *tally) run(l *lane, wrs []SendWR, buf []verbs.SendWR) (c laneChain) {
	send, leads := t.send, l.lastRecorded+1 != int64(t.seq)
	if leads {
		if wrs = wrs[:min(len(wrs), int(l.capacity-l.load())-1)]; len(wrs) == 0 {
			return laneChain{}
		}
	}
	r, all := &send.sends, &send.records
	at, mask, seq := r.posted, r.depth-1, t.seq
	for i := range wrs {
		wr := &wrs[i]
		all.put(int(at&mask), seq, 1, wr.Imm, wr.SGE[0].Length)
		at++
		seq++
	}
	t.seq = seq
	c.taken, c.consuming = len(wrs), uint32(len(wrs))
	if leads {
		c.bytes = t.fillWithRecord(l, wrs[:1], buf[:2])
		c.wrs = buf[:1+len(wrs)]
		wrs, buf = wrs[1:], buf[2:]
	} else {
		c.wrs = buf[:len(wrs)]
	}
	more, _ := send.fill(l, wrs, buf, true)
	c.bytes += more
	l.lastRecorded = int64(t.seq - 1)
	return c
}

// fillWithRecord builds the two requests of a message with a record.
func (t *tally) fillWithRecord(l *lane, wr []SendWR, chain []verbs.SendWR) (bytes uint64) {
	send, seq := t.send, t.send.sends.posted
	bytes, _ = send.fill(l, wr, chain[:1], false)
	s := send.sends.slot(seq)
	s.demote(&chain[0])
	head := entryHead(send.sends.index(seq), kindRecord, s.flags&verbs.SendSolicited) | entryConsumes
	send.recordWR(&chain[1], l, head, l.tail)
	l.put(head, 0, 0, 0)
	return bytes
}

func (t *tally) notifyLimit() (uint32, bool) {
	if t.send.uncovered.first() >= 0 {
		return 0, true // records must cover earlier data
	}
	return math.MaxUint32, true
}

// notifyStripe numbers the requests and writes their records.
func (t *tally) notifyStripe(w stripe) stripe {
	n := min(w.cuts, uint32(len(t.setup.lanes)))
	w.number = t.seq
	for i := range w.count {
		one := t.send.sends.slot(w.from + i)
		one.pending += n
		t.writeRecord(w.from+i, one, int(n))
		t.seq++
	}
	return w
}

// stageRecords stages the records of a message whose data is staged, on every uncovered lane.
func (t *tally) stageRecords(s *sendSlot) bool {
	if !t.open && !t.beginRecords(s) {
		return false
	}
	send, lanes := t.send, t.setup.lanes
	head := entryHead(send.sends.index(send.sends.dispatched), kindRecord, s.flags&verbs.SendSolicited) | entryConsumes
	whole := true
	for i, left := range t.closing { // written out: with first and remove a message takes 10 % longer
		for ; left != 0 && whole; left &= left - 1 {
			l := lanes[i<<6+bits.TrailingZeros64(left)]
			if !l.room() {
				if l = send.substitute(l); l == nil || !l.room() {
					whole = false
					break
				}
			}
			l.lastRecorded = int64(t.seq)
			s.pending++
			send.stage(l, head, 0, 0, 0)
		}
		t.closing[i] = left
	}
	if whole {
		t.open = false
		t.seq++
	}
	return whole
}

// beginRecords opens a message: it determines the lanes that send its record, at least one, and writes the record.
func (t *tally) beginRecords(s *sendSlot) bool {
	n := t.send.uncovered.moveTo(t.closing)
	if n == 0 {
		l := t.send.picker.pick(0, true)
		if l == nil {
			return false
		}
		t.closing.add(l.index)
		n = 1
	}
	t.writeRecord(t.send.sends.dispatched, s, n)
	s.started, t.open = true, true
	return true
}

// writeRecord writes a request's record, of which n will be sent.
func (t *tally) writeRecord(at uint32, s *sendSlot, n int) {
	t.send.records.put(int(t.send.sends.index(at)), t.seq, n, s.imm, s.length)
}

func (t *tally) advance() {}

// beforeMove adds the record of a message without one, because the new lane's previous number differs.
func (t *tally) beforeMove(e *entry) (behind entry, ok bool) {
	if e.kind() > kindData || !e.consumes() {
		return entry{}, false
	}
	s := t.send.sends.of(e)
	s.wire = verbs.OpRDMAWrite
	s.pending++
	e.head, e.imm = entryHead(e.slot(), e.kind(), 0), 0
	return entry{head: entryHead(e.slot(), kindRecord, s.flags&verbs.SendSolicited) | entryConsumes}, true
}

// afterMove stages the lane's missing record of the open message behind the fragments that it covers.
func (t *tally) afterMove(from, to *lane) {
	from.lastRecorded, to.lastRecorded = noNumber, noNumber
	if !t.open || !t.closing.has(from.index) {
		return
	}
	t.closing.remove(from.index)
	r := &t.send.sends
	s := r.slot(r.dispatched)
	s.pending++
	t.send.stage(to, entryHead(r.index(r.dispatched), kindRecord, s.flags&verbs.SendSolicited)|entryConsumes, 0, 0, 0)
}

func (t *tally) tooFarAhead(l *lane) bool {
	return l.latest != noRecord && int32(uint32(l.latest)-t.next) >= t.limit
}

func (t *tally) recvSGEs(l *lane, entry uint32, chain []verbs.RecvWR) {
	slots := uint32(t.recvSlots)
	addr, lkey := t.region.addr+uint64(l.index)*uint64(slots)*recordSize, t.region.lkeys[l.rail]
	for i := range chain {
		r := &chain[i]
		g := &r.SGE[0]
		g.Addr, g.Length, g.LKey = addr+uint64(entry&(slots-1))*recordSize, recordSize, lkey
		r.NumSGE = 1
		entry++
	}
}

// received handles a record, or a message without one. A record that a correct peer cannot have sent fails the
// VirtualQP.
func (t *tally) received(l *lane, wc *verbs.WC, entry uint32) {
	u := t.setup
	if wc.Opcode == verbs.WCRecvRDMAWithImm {
		if l.latest == noRecord {
			t.recv.failProtocol(l, "a message without a record, and the lane had none before it")
			return
		}
		next := uint32(l.latest) + 1
		// The expected message bypasses the window: without this path a notified WRITE in memory takes 3 %
		// longer.
		if next != t.next || t.window.At(next).got > 0 {
			t.count(l, next, messageRecords{want: 1, imm: wc.Imm, length: wc.ByteLen})
			return
		}
		l.latest = uint64(next)
		t.complete(message{imm: wc.Imm, length: wc.ByteLen, flags: WCHasImm | WCHasLength})
		return
	}
	if wc.ByteLen != recordSize || wc.Opcode != verbs.WCRecv {
		t.recv.failProtocol(l, "a record of %d bytes (%s)", wc.ByteLen, wc.Opcode)
		return
	}
	var b []byte
	if u.shared != nil {
		b = u.shared.record(l.rail, entry)
	} else {
		b = t.arriving[(int(l.index)*t.recvSlots+int(entry)&(t.recvSlots-1))*recordSize:][:recordSize]
	}
	t.count(l, binary.LittleEndian.Uint32(b), messageRecords{
		want: binary.LittleEndian.Uint16(b[4:]), imm: binary.LittleEndian.Uint32(b[8:]), length: binary.LittleEndian.Uint32(b[12:]),
	})
}

// count adds a record to its message, and completes messages.
func (t *tally) count(l *lane, seq uint32, got messageRecords) {
	want, ahead := got.want, seq-t.next
	if !t.window.Reach(t.next, ahead) {
		t.recv.failProtocol(l, "record of message %d, %d is expected", seq, t.next)
		return
	}
	m := t.window.At(seq)
	if want == 0 || int(want) > len(t.setup.lanes) || (m.got > 0 && (m.want != want || m.got == want)) {
		t.recv.failProtocol(l, "message %d claims %d records", seq, want)
		return
	}
	l.latest = uint64(seq)
	if got.got = m.got + 1; ahead > 0 || got.got < want {
		*m = got
		return
	}
	*m = messageRecords{}
	t.complete(message{imm: got.imm, length: got.length, flags: WCHasImm | WCHasLength})
}

// complete completes the message at next, which is not in the window, and later messages that waited for it.
func (t *tally) complete(one message) {
	for {
		t.next++
		t.recv.deliverMessage(one)
		m := t.window.At(t.next)
		if m.got == 0 || m.got < m.want {
			return
		}
		one.imm, one.length = m.imm, m.length
		*m = messageRecords{}
	}
}
