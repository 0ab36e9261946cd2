package core

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"ibverbx/reliable/wire"
)

// isAnswer reports whether a packet is a fragment of a response.
func isAnswer(p *packet) bool { return p.imm.Kind == wire.KindChunk && p.hdr.Op == wire.OpAnswer }

// TestEveryLossOfRead loses each packet of a READ of 20 chunks, an atomic and a WRITE in sequence, and each
// pair of packets of a shorter one. All data arrives, without a long delay.
func TestEveryLossOfRead(t *testing.T) {
	play := func(size int, lost ...int) (sent int) {
		l := newLine(t, modest(), modest(), 4096, 1)
		l.Lose = func(int, *packet) bool { return slices.Contains(lost, l.sent-1) }
		l.read(0, 0, 3, size, false)
		l.add(0, 0, false)
		l.post(0, Message{Kind: MsgWrite}, bytesOf(40, 1), 0)
		l.finish(t, 20*second, statusSuccess, statusSuccess, statusSuccess)
		if l.now > 10_000_000 {
			t.Fatalf("without packets %v it takes %d ns, want less than 10 ms", lost, l.now)
		}
		if l.ends[1].word != 1 {
			t.Fatalf("without packets %v the atomic is carried out %d times, want once", lost, l.ends[1].word)
		}
		return l.sent
	}
	for i := range play(320) {
		play(320, i)
	}
	n := play(64)
	for i := range n {
		for k := range i {
			play(64, i, k)
		}
	}
}

// TestLateAnswer delays the first transmission of each response fragment until long after the READ has
// completed. The rig fails if it is placed then.
func TestLateAnswer(t *testing.T) {
	for slow := range 4 {
		cfg := modest()
		cfg.MinReorder = 1000
		l := newLine(t, cfg, cfg, 64, 1)
		held := 0
		l.Extra = func(_ int, p *packet) int64 {
			if isAnswer(p) && p.hdr.Xmit == 0 && int(p.route-RoutePath) == slow {
				held++
				return 50_000_000
			}
			return 0
		}
		l.read(0, 0, 0, 640, false)
		l.finish(t, 20*second, statusSuccess)
		if l.now > 10_000_000 || held == 0 {
			t.Fatalf("path %d holds %d pieces and the READ ends at %d ns, want some and less than 10 ms", slow, held, l.now)
		}
		l.run(l.now+second/10, func() bool { return false })
	}
}

// TestDeadPathOfAnswers cuts one path from the responder. A READ moves to the others.
func TestDeadPathOfAnswers(t *testing.T) {
	l := newLine(t, modest(), modest(), 64, 1)
	l.Lose = func(from int, p *packet) bool { return from == 1 && p.route == RoutePath+1 }
	for range 8 {
		l.read(0, 0, 0, 1600, false)
	}
	l.finish(t, 20*second, make([]uint8, 8)...)
	if n := l.ends[1].conn.Stats().PathsDown; n == 0 || l.now > 20_000_000 {
		t.Fatalf("%d paths are down at the responder and the READs end at %d ns, want some and less than 20 ms", n, l.now)
	}
}

// TestFetchLimit posts more READs than may be outstanding. The limit holds, and all succeed.
func TestFetchLimit(t *testing.T) {
	l := newLine(t, modest(), modest(), 64, 1)
	most := uint32(0)
	l.Extra = func(int, *packet) int64 {
		q := &l.ends[0].conn.flows[0].fetches
		most = max(most, q.asked-q.answered)
		return 0
	}
	want := make([]uint8, 100)
	for i := range want {
		l.read(0, 0, i, 100, false)
	}
	l.finish(t, 20*second, want...)
	if limit := uint32(l.ends[0].conn.cfg.maxFetches()); most != limit {
		t.Fatalf("at most %d READs wait, want %d", most, limit)
	}
}

// TestAnswersPassWaitingMessages fills the queues of both sides with READs and with messages that wait for a
// receive. The READs must complete: a response does not wait behind such a message.
func TestAnswersPassWaitingMessages(t *testing.T) {
	for _, kind := range []MessageKind{MsgSend, MsgWriteImm} {
		l := newLine(t, modest(), modest(), 4096, 1)
		const reads, waiting = 40, 30
		for i := range l.ends {
			for range reads {
				l.read(i, 0, i, 500, false)
			}
			for k := range waiting {
				l.post(i, Message{Kind: kind}, bytesOf(40, uint64(k)), 40*k)
			}
		}
		if !l.run(second, func() bool { return len(l.ends[0].done) == reads && len(l.ends[1].done) == reads }) {
			t.Fatalf("%d and %d requests have ended at %d ns while messages wait for receives, want %d READs each", len(l.ends[0].done), len(l.ends[1].done), l.now, reads)
		}
		for i := range l.ends { // behind the messages: they are requested, and wait
			l.read(i, 0, i, 500, false)
			for range waiting {
				l.receive(i, 40)
			}
		}
		if !l.run(2*second, func() bool { return l.finished(0) && l.finished(1) }) {
			t.Fatalf("stuck at %d ns with receives for all: %v and %v", l.now, l.ends[0].done, l.ends[1].done)
		}
	}
}

// TestAnswersTakeTurns: a responder with its own long WRITE still responds to a READ.
func TestAnswersTakeTurns(t *testing.T) {
	l := newLine(t, modest(), modest(), 1<<16, 1)
	l.post(1, Message{Kind: MsgWrite}, bytesOf(1<<16, 1), 0)
	l.read(0, 0, 0, 1600, false)
	l.finish(t, 20*second, statusSuccess)
	if l.finished(1) {
		t.Fatalf("the READ of 1600 bytes ends behind the WRITE of 65536, want turns")
	}
}

// TestRequestsBeforeFaultSucceed: READs before an invalid one have their data, and the invalid one fails with
// its status.
func TestRequestsBeforeFaultSucceed(t *testing.T) {
	l := newLine(t, modest(), modest(), 4096, 1)
	l.read(0, 0, 0, 2000, false)
	l.add(0, 0, false)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(100, 1), 0)
	l.read(0, 0, 2000, 100, false) // the store has 2048 bytes
	l.add(0, 0, false)
	l.finish(t, 20*second, statusSuccess, statusSuccess, statusSuccess, statusAccess, statusFlush)
	l.run(l.now+second/10, func() bool { return l.ends[1].fault != 0 })
	if l.ends[1].word != 1 || l.ends[1].fault != statusAccess {
		t.Fatalf("%d atomics are carried out and the responder ends with %d, want the one before the fault and %d", l.ends[1].word, l.ends[1].fault, statusAccess)
	}
}

// TestAnswerNeverComes: a READ fails after GiveUp if its response does not arrive, whether the peer does not
// send it or it is lost.
func TestAnswerNeverComes(t *testing.T) {
	cfg := modest()
	cfg.GiveUp = 100_000_000
	for _, tt := range []struct {
		name string
		lose func(int, *packet) bool
	}{
		{"all lost", func(_ int, p *packet) bool { return isAnswer(p) }},
		{"a silent peer", func(from int, p *packet) bool { return from == 1 && p.rec.Type != wire.Ack }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLine(t, cfg, cfg, 64, 1)
			l.Lose = tt.lose
			l.read(0, 0, 0, 100, false)
			l.post(0, Message{Kind: MsgWrite}, bytesOf(32, 1), 0)
			l.finish(t, 20*second, statusRetryExc, statusFlush)
			if l.now > 3*cfg.GiveUp {
				t.Fatalf("the READ ends at %d ns, want about %d", l.now, cfg.GiveUp)
			}
		})
	}
}

// TestResponderFails closes the flow of a responder with pending responses. The requester is notified
// immediately instead of timing out.
func TestResponderFails(t *testing.T) {
	l := newLine(t, modest(), modest(), 64, 1)
	l.Lose = func(_ int, p *packet) bool { return isAnswer(p) }
	l.read(0, 0, 0, 100, false)
	l.run(50_000, func() bool { return false })
	l.step(1, Event{Kind: EvClose, Status: statusFlush})
	l.finish(t, 20*second, statusRetryExc)
	if l.now > 10_000_000 {
		t.Fatalf("the READ ends at %d ns, want less than 10 ms", l.now)
	}
	// The responder's own flow has failed, too: the next message gets the reason.
	l = newLine(t, modest(), modest(), 64, 1)
	l.read(1, 0, 0, 100, false)
	l.Lose = func(from int, _ *packet) bool { return from == 1 }
	l.run(20*second, func() bool { return l.ends[0].conn.Failed(0) })
	l.post(0, Message{Kind: MsgWrite}, bytesOf(32, 1), 0)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(32, 1), 32)
	l.finish(t, 20*second, statusRetryExc, statusFlush)
}

// TestFalseAnswers: a response without a fetch, or that does not match it, is not placed and fails the flow.
func TestFalseAnswers(t *testing.T) {
	for _, h := range []wire.Header{
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Message: 1, Len: 16},         // no such fetch
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Message: 1<<32 - 1, Len: 16}, // already completed
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Offset: 16, Len: 32},         // too long
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Offset: 48},                  // beyond the end
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Len: 16},                     // too short
		{Op: wire.OpAnswer, Offset: 16, Len: 16},                               // no end
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Offset: 1<<32 - 16, Len: 15}, // overflows
		{Op: wire.OpAnswer, Flags: wire.FlagLast, Message: 1 << 31, Len: 32},   // far away
	} {
		t.Run(fmt.Sprintf("%+v", h), func(t *testing.T) {
			c := newConn(t, modest())
			c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgFetch, Length: wire.FetchLen, Answer: 32}})
			acts := c.Step(2, &Event{Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk}, Header: h})
			if count(acts, ActPlace) != 0 || count(acts, ActFault) != 1 {
				t.Fatalf("leads to %d places and %d faults, want none and one", count(acts, ActPlace), count(acts, ActFault))
			}
		})
	}
}

// TestAnswerTwice: a second response to a READ, in new chunks, is not placed.
func TestAnswerTwice(t *testing.T) {
	c := newConn(t, modest())
	path := c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgFetch, Length: wire.FetchLen, Answer: 16}})[0].Path
	c.Step(1, &Event{Kind: EvSent, Path: path, Count: 1})
	answer := Event{Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk}, Header: wire.Header{Op: wire.OpAnswer, Flags: wire.FlagLast, Len: 16}}
	acts := c.Step(2, &answer)
	if count(acts, ActPlace) != 1 || count(acts, ActComplete) != 1 {
		t.Fatalf("an answer leads to %d places and %d completions, want one each", count(acts, ActPlace), count(acts, ActComplete))
	}
	answer.Imm.CSN = 1
	acts = c.Step(3, &answer)
	if count(acts, ActPlace) != 0 || count(acts, ActFault) != 1 {
		t.Fatalf("a second answer leads to %d places and %d faults, want none and one", count(acts, ActPlace), count(acts, ActFault))
	}
}

// TestFalseFetches: fetches with impossible numbers are never executed twice, and the number kept is bounded.
func TestFalseFetches(t *testing.T) {
	fetch := func(c *Conn, csn uint16, number uint32) []Action {
		return c.Step(int64(csn)+1, &Event{
			Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk, CSN: csn},
			Header: wire.Header{Op: wire.OpFetch, Flags: wire.FlagLast, Message: number, Offset: 8, Len: wire.FetchLen},
		})
	}
	for _, tt := range []struct {
		name             string
		numbers          []uint32 // of the chunks from 0 on
		answers, refused int
	}{
		{"again", []uint32{0, 0}, 1, 0},
		{"one is left out", []uint32{1}, 0, 0},
		{"back", []uint32{0, 1<<32 - 1}, 1, 0},
		{"far ahead", []uint32{64}, 0, 1},
	} {
		c := newConn(t, modest())
		answers := 0
		for csn, number := range tt.numbers {
			answers += count(fetch(c, uint16(csn), number), ActAnswer)
		}
		if answers != tt.answers || int(c.Stats().Refused) != tt.refused {
			t.Errorf("%s: %d answers, %d refused, want %d and %d", tt.name, answers, c.Stats().Refused, tt.answers, tt.refused)
		}
	}
	c := newConn(t, modest()) // out of order, twice the same number
	if n := count(fetch(c, 1, 1), ActAnswer) + count(fetch(c, 2, 1), ActAnswer) + count(fetch(c, 0, 0), ActAnswer); n != 2 {
		t.Errorf("%d answers to fetches 0, 1 and 1, want 2", n)
	}
	c = newConn(t, modest()) // a requester that never acknowledges a response
	answers := 0
	for i := range 100 {
		answers += count(fetch(c, uint16(i), uint32(i)), ActAnswer)
	}
	if answers != c.Answers() {
		t.Errorf("%d answers to 100 fetches, none of them acknowledged, want %d", answers, c.Answers())
	}
}

// TestWriteBehindRead sends a WRITE behind a READ when the WRITE before the READ is acknowledged. It does
// not wait for the READ.
func TestWriteBehindRead(t *testing.T) {
	c := newConn(t, modest())
	for _, m := range []Message{{Kind: MsgWrite, Length: 16}, {Kind: MsgFetch, Length: wire.FetchLen, Answer: 8}} {
		if n := count(c.Step(1, &Event{Kind: EvPost, Message: m}), ActSend); n != 1 {
			t.Fatalf("%d transmissions of %+v, want 1", n, m)
		}
	}
	if n := count(c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 16}}), ActSend); n != 0 {
		t.Fatalf("%d transmissions of a WRITE behind a READ behind a WRITE without acknowledgement, want 0", n)
	}
	if n := count(ackUpTo(c, 2, 1), ActSend); n != 1 {
		t.Fatalf("%d transmissions when the first WRITE is acknowledged, want 1", n)
	}
}

// TestNoMemoryForAnswer: a READ fails if its memory is no longer registered when the response arrives. The
// message before it, acknowledged later, does not fail.
func TestNoMemoryForAnswer(t *testing.T) {
	c := newConn(t, modest())
	for i, m := range []Message{{Kind: MsgWrite, Length: 16}, {Kind: MsgFetch, Length: wire.FetchLen, Answer: 8}, {Kind: MsgWrite, Length: 16}} {
		m.Token = uint32(i)
		for _, a := range c.Step(1, &Event{Kind: EvPost, Message: m}) {
			if a.Kind == ActSend {
				c.Step(1, &Event{Kind: EvSent, Path: a.Path, Count: 1})
			}
		}
	}
	h := wire.Header{Op: wire.OpAnswer, Flags: wire.FlagLast, Len: 8}
	if n := count(c.Step(2, &Event{Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk}, Header: h, Status: 4}), ActComplete); n != 0 {
		t.Fatalf("%d completions before the first WRITE is acknowledged, want none", n)
	}
	var got []uint8
	for _, a := range ackUpTo(c, 3, 2) {
		if a.Kind == ActComplete {
			got = append(got, a.Status)
		}
	}
	if want := []uint8{statusSuccess, 4, statusFlush}; !slices.Equal(got, want) {
		t.Fatalf("messages end with %v, want %v", got, want)
	}
}

// TestMessagesTakeTurns: a side with a long response to send still sends a WRITE.
func TestMessagesTakeTurns(t *testing.T) {
	l := newLine(t, modest(), modest(), 1<<16, 1)
	for range 20 {
		l.read(0, 0, 0, 2000, false)
	}
	l.run(second, func() bool { return l.ends[1].conn.flows[0].answers.taken > 10 })
	l.post(1, Message{Kind: MsgWrite}, bytesOf(160, 1), 0)
	l.run(second, func() bool { return l.finished(1) })
	if l.finished(0) {
		t.Fatalf("the WRITE of 160 bytes ends behind all answers of 40000, want turns")
	}
}

// TestAnswerMakesRoom: all acknowledgements are lost, on a path limited to two transmissions. A response
// implies that its fetch has arrived, and so frees a slot for the next message.
func TestAnswerMakesRoom(t *testing.T) {
	cfg := modest()
	cfg.Paths, cfg.PathDepth = 1, 2
	l := newLine(t, cfg, cfg, 64, 1)
	l.Lose = func(from int, p *packet) bool { return from == 1 && p.rec.Type == wire.Ack && l.now < 1_000_000 }
	l.read(0, 0, 0, 8, false)
	l.read(0, 0, 0, 8, false)
	l.run(100_000, func() bool { return l.finished(0) })
	l.post(0, Message{Kind: MsgWrite}, bytesOf(16, 1), 0)
	l.finish(t, 20*second, statusSuccess, statusSuccess, statusSuccess)
}

// checkAnswer checks the result of a fetch by end i. No two atomics fetch the same value.
func (r *rig) checkAnswer(i int, m *modelMessage) {
	if m.Kind != MsgFetch {
		return
	}
	f, err := wire.DecodeFetch(m.data)
	if err != nil {
		violatef("end %d: %v", i, err)
	}
	e, peer := &r.ends[i], &r.ends[1-i]
	if f.Kind == wire.FetchRead {
		if want := peer.store[f.Addr : f.Addr+uint64(m.Answer)]; !bytes.Equal(m.got, want) {
			violatef("end %d: a READ has got %x, want %x", i, m.got, want)
		}
		return
	}
	old := binary.BigEndian.Uint64(m.got)
	if old >= peer.word || e.sums>>(old%64)&1 != 0 {
		violatef("end %d: an atomic has fetched %d, which another one has or none stored; the word is %d", i, old, peer.word)
	}
	e.sums |= 1 << (old % 64)
}
