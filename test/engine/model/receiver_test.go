package model_test

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/verbs"
)

// modelReceiver is a VirtualQP that receives, and a peer that sends to it as the schemes
// are described.
type modelReceiver struct {
	*modelEnd
	shared bool
	limit  int // messages that the peer may have outstanding, or numbers

	notes   []*peerMessage // of the scheme
	sends   []*peerMessage
	numbers uint32 // assigned by the peer
	// lastLane is a lane that received the last Tally number, or -1.
	lastLane int
	queues   [][]peerElement

	posted    [2]int // receives: notifications and data
	ended     [2]int
	delivered [2]int // receives completed successfully
	failed    bool
	status    verbs.Status // of the injected receive failure
	victim    int          // the failed receive, -1 for none
}

// peerMessage is a message sent by the peer.
type peerMessage struct {
	imm     uint32
	withImm bool
	length  int
	left    int // undelivered elements
}

// peerElement is one physical request from the peer that consumes a receive.
type peerElement struct {
	message *peerMessage
	number  uint32 // of the message, or DQPLB's own
	wc      verbs.WC
	payload []byte
}

const (
	notes       = 0 // notification receives
	inbox       = 1 // data receives
	inboxSlot   = 256
	modelInbox  = 512
	firstInbox  = 1 << 32 // IDs of data receives
	maxMessages = 400
)

func newModelReceiver(t *rapid.T, scheme ibverbx.Scheme) *modelReceiver {
	cfg := drawModelConfig(t, scheme, drawInt(t, "lanes", 1, 9))
	shared := rapid.SampledFrom([]int{0, 0, 2, 16}).Draw(t, "shared receives")
	end := newModelEnd(t, modelNICs("null", drawInt(t, "rails", 1, 3)), cfg, shared, modelInbox*inboxSlot)
	r := &modelReceiver{modelEnd: end, shared: shared > 0, victim: -1, lastLane: -1}
	card := r.card()
	r.connect(card) // the peer has the depth and the window that this side has
	r.limit = modelDepth(cfg.SendDepth)
	if scheme == ibverbx.DQPLB {
		r.limit = int(card.Window)
	}
	r.queues = make([][]peerElement, len(r.lanes))
	return r
}

// send makes the peer send a message of the scheme.
func (r *modelReceiver) send() {
	if len(r.notes) == maxMessages || r.shared && len(r.notes)-r.posted[notes] >= r.cfg.RecvDepth {
		return // a peer that sends more than is received fails a VirtualQP with shared receives
	}
	k := len(r.notes)
	m := &peerMessage{imm: uint32(k)*3 + 1, length: drawInt(r.t, "bytes", 0, 5000)}
	r.notes = append(r.notes, m)
	switch r.cfg.Scheme {
	case ibverbx.Tally:
		if last := r.lastLane; last >= 0 && oneIn(r.t, "without a record", 3) {
			wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: m.imm, ByteLen: uint32(m.length)}
			r.queue(last, peerElement{message: m, number: uint32(k), wc: wc})
			return
		}
		m.length *= r.cfg.Lanes
		var lanes []int
		for lane := range r.cfg.Lanes {
			if oneIn(r.t, "on this lane", 2) {
				lanes = append(lanes, lane)
			}
		}
		if len(lanes) == 0 {
			lanes = []int{drawOf(r.t, "only lane", r.cfg.Lanes)}
		}
		r.lastLane = lanes[drawOf(r.t, "lane of the next", len(lanes))]
		b := binary.LittleEndian.AppendUint32(nil, uint32(k))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(lanes)))
		b = binary.LittleEndian.AppendUint32(b, m.imm)
		b = binary.LittleEndian.AppendUint32(b, uint32(m.length))
		for _, lane := range lanes {
			r.queue(lane, peerElement{message: m, number: uint32(k), payload: b, wc: verbs.WC{Opcode: verbs.WCRecv, ByteLen: 16}})
		}
	case ibverbx.DQPLB:
		count := drawInt(r.t, "fragments", 1, 5)
		n := m.length
		m.length *= count
		for i := range count {
			imm := r.numbers
			if i == count-1 {
				imm |= 1 << 31
			}
			wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: bits.ReverseBytes32(imm), ByteLen: uint32(n)}
			r.queue(drawOf(r.t, "lane", r.cfg.Lanes), peerElement{message: m, number: r.numbers, wc: wc})
			r.numbers++
		}
	case ibverbx.Spray:
		wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: m.imm}
		r.queue(len(r.lanes)-1, peerElement{message: m, number: uint32(k), wc: wc})
	}
}

// sendMessage makes the peer post a SEND.
func (r *modelReceiver) sendMessage() {
	if len(r.sends) == modelInbox {
		return
	}
	k := len(r.sends)
	m := &peerMessage{imm: uint32(k) * 7, withImm: oneIn(r.t, "with an immediate", 2), length: drawInt(r.t, "bytes", 0, inboxSlot)}
	r.sends = append(r.sends, m)
	wc := verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(m.length), Imm: 0xdead}
	if m.withImm {
		wc.Imm, wc.Flags = m.imm, verbs.WCWithImm
	}
	b := make([]byte, m.length)
	for i := range b {
		b[i] = modelByte(k, i)
	}
	r.queue(r.cfg.Lanes, peerElement{message: m, number: uint32(k), wc: wc, payload: b})
}

func (r *modelReceiver) queue(lane int, e peerElement) {
	e.message.left++
	r.queues[lane] = append(r.queues[lane], e)
}

// oldest is the first number, of a message or DQPLB's own, that was not wholly delivered.
func (r *modelReceiver) oldest() uint32 {
	oldest := ^uint32(0)
	for lane, q := range r.queues {
		if len(q) > 0 && r.roles[lane] != "message" {
			oldest = min(oldest, q[0].number)
		}
	}
	return oldest
}

// deliver brings the next element of a lane, if the peer may have sent it and the NIC has a
// receive for it. It reports whether it did.
func (r *modelReceiver) deliver(lane int) bool {
	q, l := r.queues[lane], r.lanes[lane]
	if len(q) == 0 || l.State() != verbs.StateRTS {
		return false
	}
	if r.roles[lane] != "message" && int(q[0].number-r.oldest()) >= r.limit {
		return false
	}
	if !l.Deliver(q[0].wc, q[0].payload) {
		return false
	}
	q[0].message.left--
	r.queues[lane] = q[1:]
	return true
}

// post posts receives of one kind.
func (r *modelReceiver) post(kind, count int) {
	wrs := make([]ibverbx.RecvWR, count)
	for i := range wrs {
		k := r.posted[kind] + i
		wrs[i].WRID = uint64(k)
		if kind == inbox {
			wrs[i].WRID += firstInbox
			at := uint64(k % modelInbox * inboxSlot)
			wrs[i].SetSGE(r.region.SGE(at, 100), r.region.SGE(at+100, inboxSlot-100))
		}
	}
	n, err := r.qp.PostRecv(wrs)
	outstanding := r.posted[0] - r.ended[0] + r.posted[1] - r.ended[1]
	if n < count && (!errors.Is(err, verbs.ErrQueueFull) || outstanding+n < r.cfg.RecvDepth) || n == count && err != nil {
		r.t.Fatalf("PostRecv = %d of %d, %v with %d outstanding, RecvDepth is %d", n, count, err, outstanding, r.cfg.RecvDepth)
	}
	r.posted[kind] += n
}

// fail fails a receive, once.
func (r *modelReceiver) fail() {
	lane := drawOf(r.t, "lane", len(r.lanes))
	l := r.lanes[lane]
	if r.failed || len(l.Waiting()) == 0 {
		return
	}
	r.failed = true
	r.status = rapid.SampledFrom([]verbs.Status{verbs.StatusLocLenErr, verbs.StatusLocProtErr}).Draw(r.t, "status")
	if r.roles[lane] == "message" {
		r.victim = r.posted[inbox] - len(l.Waiting())
	}
	l.FailRecv(r.status)
}

// poll checks completions.
func (r *modelReceiver) poll(wcs []ibverbx.WC) int {
	for i := range wcs {
		wc := &wcs[i]
		kind, id := notes, wc.WRID
		if id >= firstInbox {
			kind, id = inbox, id-firstInbox
		}
		if id != uint64(r.ended[kind]) || wc.QP != r.qp || r.ended[kind] >= r.posted[kind] {
			r.t.Fatalf("completion %s out of turn, want receive %d of kind %d", describeWC(wc), r.ended[kind], kind)
		}
		r.ended[kind]++
		switch {
		case wc.Status != verbs.StatusSuccess:
			want := verbs.StatusWRFlushErr
			if kind == inbox && int(id) == r.victim {
				want = r.status
			}
			if !r.failed || wc.Status != want {
				r.t.Fatalf("receive %d of kind %d: %v, want %v; a receive was made to fail: %v", id, kind, wc.Err(), want, r.failed)
			}
		case r.delivered[kind] != int(id):
			r.t.Fatalf("receive %d of kind %d has succeeded behind one that was flushed", id, kind)
		case kind == notes:
			r.delivered[notes]++
			r.checkNote(wc, int(id))
		default:
			r.delivered[inbox]++
			r.checkInbox(wc, int(id))
		}
	}
	return len(wcs)
}

func (r *modelReceiver) checkNote(wc *ibverbx.WC, k int) {
	if k >= len(r.notes) || r.notes[k].left > 0 {
		r.t.Fatalf("message %d was delivered before it arrived", k)
	}
	m, carries := r.notes[k], schemeCarries(r.cfg.Scheme)
	switch {
	case wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Flags != carries:
		r.t.Fatalf("notification %d is a %s with the flags %d, want %s and %d", k, wc.Opcode, wc.Flags, verbs.WCRecvRDMAWithImm, carries)
	case carries&ibverbx.WCHasImm != 0 && wc.Imm != m.imm:
		r.t.Fatalf("notification %d has the immediate %d, want %d", k, wc.Imm, m.imm)
	case carries&ibverbx.WCHasLength != 0 && int(wc.ByteLen) != m.length:
		r.t.Fatalf("notification %d has the length %d, want %d", k, wc.ByteLen, m.length)
	}
}

func (r *modelReceiver) checkInbox(wc *ibverbx.WC, k int) {
	if k >= len(r.sends) || r.sends[k].left > 0 {
		r.t.Fatalf("received message %d, which has not arrived", k)
	}
	m := r.sends[k]
	if wc.Opcode != verbs.WCRecv || int(wc.ByteLen) != m.length || wc.Flags&ibverbx.WCHasLength == 0 {
		r.t.Fatalf("receive %d is a %s of %d bytes, want RECV of %d", k, wc.Opcode, wc.ByteLen, m.length)
	}
	if has := wc.Flags&ibverbx.WCHasImm != 0; has != m.withImm || has && wc.Imm != m.imm {
		r.t.Fatalf("receive %d: immediate %d (%v), want %d (%v)", k, wc.Imm, has, m.imm, m.withImm)
	}
	for i, b := range r.memory.Bytes()[k%modelInbox*inboxSlot:][:m.length] {
		if b != modelByte(k, i) {
			r.t.Fatalf("byte %d of receive %d is %d, want %d", i, k, b, modelByte(k, i))
		}
	}
}

// arrived counts the messages of a kind that have fully arrived along with all earlier ones.
func arrived(messages []*peerMessage) (n int) {
	for n < len(messages) && messages[n].left == 0 {
		n++
	}
	return n
}

// checkBound checks that the engine buffers a bounded number of messages without posted receives.
func (r *modelReceiver) checkBound() {
	held := arrived(r.notes) - r.delivered[notes]
	if bound := 4*r.cfg.RecvDepth + 4*r.limit + 4*(r.cfg.Lanes+1)*r.cfg.NotifyDepth; !r.shared && held > bound+r.posted[notes]-r.ended[notes] {
		r.t.Fatalf("%d messages are held, want at most %d", held, bound)
	}
}

// drain delivers every element, posts receives for them and polls until the receiver is idle.
func (r *modelReceiver) drain() {
	idle := 0
	for range 20_000 {
		busy := false
		for lane := range r.lanes {
			for r.deliver(lane) {
				busy = true
			}
		}
		r.post(notes, min(max(len(r.notes)+2-r.posted[notes], 0), 8))
		r.post(inbox, min(max(len(r.sends)+2-r.posted[inbox], 0), 8))
		if n := r.poll(r.pollAll(8)); n > 0 || busy {
			idle = 0
		} else if idle++; idle == 4 {
			return
		}
	}
	r.t.Fatal("the receiver does not come to rest")
}

func (r *modelReceiver) verify() {
	if (r.qp.Err() != nil) != r.failed {
		r.t.Fatalf("Err = %v; a receive was made to fail: %v", r.qp.Err(), r.failed)
	}
	if n := arrived(r.notes); r.delivered[notes] != min(n, r.posted[notes]) {
		r.t.Fatalf("%d messages have arrived, %d were delivered, and the user had posted %d receives", n, r.delivered[notes], r.posted[notes])
	}
	if n := arrived(r.sends); r.delivered[inbox] != n {
		r.t.Fatalf("%d SENDs have arrived, the user has got %d", n, r.delivered[inbox])
	}
	if r.failed && r.ended != r.posted {
		r.t.Fatalf("%v receives were posted and %v have ended after a failure", r.posted, r.ended)
	}
	if !r.failed && (r.delivered[notes] != len(r.notes) || r.delivered[inbox] != len(r.sends)) {
		r.t.Fatalf("the user has got %v messages, want %d and %d", r.delivered, len(r.notes), len(r.sends))
	}
}

// TestModelReceiver simulates a peer that sends SENDs and messages of a scheme. Fragments arrive in any order
// the lanes allow, while receives are posted early or late. It checks that receives of either kind complete
// in order with the sent data, and only after the whole message has arrived; that early messages are buffered
// within bounds; that receive failures do not lose messages; and that the receiver makes progress.
func TestModelReceiver(t *testing.T) {
	forSchemes(t, func(rt *rapid.T, scheme ibverbx.Scheme) {
		r := newModelReceiver(rt, scheme)
		trouble := oneIn(rt, "with a failure", 3) && r.cfg.Control == nil
		deliver := func() {
			lane := drawOf(rt, "lane", len(r.lanes))
			for range drawInt(rt, "count", 1, 6) {
				r.deliver(lane)
			}
		}
		poll := func() { r.poll(r.pollSome(drawInt(rt, "room", 0, 6))); r.checkBound() }
		modelSteps(rt, map[string]func(){
			"deliver": deliver, "deliver again": deliver, "deliver once more": deliver,
			"fail": func() {
				if trouble && oneIn(rt, "now", 4) {
					r.fail()
				}
			},
			"poll": poll, "poll again": poll,
			"post notes": func() { r.post(notes, drawInt(rt, "count", 1, 5)) },
			"post inbox": func() { r.post(inbox, min(drawInt(rt, "count", 1, 3), modelInbox-r.posted[inbox])) },
			"send": func() {
				for range drawInt(rt, "messages", 1, 4) {
					r.send()
				}
			},
			"send message": r.sendMessage,
			"take in":      r.takeIn,
		})
		r.drain()
		r.verify()
	})
}
