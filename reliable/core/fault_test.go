package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// TestFault refuses a retransmitted WRITE, like a receiver whose regions do not allow it: earlier requests
// succeed, the request fails with the status, and the rest is flushed.
func TestFault(t *testing.T) {
	const refused = 10
	l := newLine(t, modest(), modest(), 4096, 1)
	l.ends[1].refuse = refused
	l.Lose = func(from int, p *packet) bool {
		return from == 0 && p.imm.Kind == wire.KindData && p.at >= 64 && p.at < 128
	}
	for i := range 4 {
		l.post(0, Message{Kind: MsgWrite}, bytesOf(64, uint64(i)), 64*i)
	}
	l.finish(t, second, statusSuccess, refused, statusFlush, statusFlush)
	if got := l.ends[1].fault; got != refused {
		t.Fatalf("the receiver ends with %d, want %d", got, refused)
	}
}

// TestFaultIsRepeated loses the first reports of a fault.
func TestFaultIsRepeated(t *testing.T) {
	l := newLine(t, modest(), modest(), 4096, 1)
	l.receive(1, 4)
	left := 3
	l.Lose = func(_ int, p *packet) bool {
		if p.rec.Type != wire.Fault || left == 0 {
			return false
		}
		left--
		return true
	}
	l.post(0, Message{Kind: MsgSend}, bytesOf(5, 1), 0) // longer than the receive
	l.finish(t, second, statusInvalid)
}

// TestInvalidMessage posts a message known to be invalid: everything before it succeeds, including the
// response to a READ, it fails with its status, and the rest is flushed.
func TestInvalidMessage(t *testing.T) {
	l := newLine(t, modest(), modest(), 4096, 1)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 0)
	l.read(0, 0, 0, 500, false)
	l.post(0, Message{Kind: MsgInvalid, Status: 4}, nil, 0)
	l.post(0, Message{Kind: MsgWrite}, bytesOf(64, 1), 64)
	l.finish(t, second, statusSuccess, statusSuccess, 4, statusFlush)
}

// TestEchoAlone: a chunk named only in the echo of an acknowledgement is not acknowledged.
func TestEchoAlone(t *testing.T) {
	c := newConn(t, modest())
	c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 64}})
	c.Step(2, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Ack, Flags: wire.AckEcho, EchoCSN: 2, Window: 64}})
	if c.flows[0].send.chunk(2).state == chunkAcked {
		t.Fatalf("chunk 2 counts as acknowledged by an echo alone")
	}
}

// TestFaultOutOfOrder: a chunk that must be refused arrives before its predecessor. It must not count as
// received.
func TestFaultOutOfOrder(t *testing.T) {
	l := newLine(t, modest(), modest(), 4096, 1)
	l.receive(1, 20)
	l.Extra = func(from int, p *packet) int64 {
		if from == 0 && p.imm.Kind == wire.KindChunk && p.imm.CSN == 0 {
			return 20_000
		}
		return 0
	}
	l.post(0, Message{Kind: MsgSend}, bytesOf(32, 1), 0) // two chunks, the second is too long
	l.finish(t, second, statusInvalid)
}

// TestCreditChanges: the next acknowledgement advertises the reduced number of receives.
func TestCreditChanges(t *testing.T) {
	c := newConn(t, modest())
	c.Step(1, &Event{Kind: EvCredit, Count: 5})
	acts := c.Step(2, &Event{Kind: EvData, Imm: wire.Imm{AckReq: true}})
	if len(acts) != 1 || acts[0].Record.Window != 5 {
		t.Fatalf("actions %+v, want an acknowledgement with a window of 5", acts)
	}
}

// TestRecvPatience: a sender times out if its peer does not post a receive.
func TestRecvPatience(t *testing.T) {
	cfg := modest()
	cfg.RecvPatience = 3_000_000
	l := newLine(t, cfg, cfg, 64, 1)
	l.receive(1, 16)
	l.post(0, Message{Kind: MsgSend}, bytesOf(8, 1), 0)
	l.post(0, Message{Kind: MsgSend}, bytesOf(8, 2), 0)
	l.finish(t, second, 0, statusRNRExc)
	if l.now < 3_000_000 || l.now > 3_500_000 {
		t.Fatalf("gave up after %d ns, want 3 ms", l.now)
	}
}

// TestPeerGoneWithoutReceive: while waiting for a receive, silence from the peer leads to RETRY_EXC, as on
// RC. A peer that responds, however late, is not timed out.
func TestPeerGoneWithoutReceive(t *testing.T) {
	gone := int64(20 * second)
	l := newLine(t, modest(), modest(), 64, 1)
	l.Extra = func(int, *packet) int64 { return 90_000_000 } // longer than the interval between two probes
	l.Lose = func(int, *packet) bool { return l.now > gone }
	l.post(0, Message{Kind: MsgSend}, bytesOf(8, 1), 0)
	l.post(0, Message{Kind: MsgSend}, bytesOf(8, 2), 0)
	if l.run(gone, func() bool { return l.finished(0) }) {
		t.Fatalf("ended with %v at %d ns, while the peer answered", l.ends[0].done, l.now)
	}
	l.finish(t, gone+10*second, statusRetryExc, statusFlush)
}

// TestNoQPForOffer: creating the QP for the peer's offer fails. A QP created later belongs to another epoch
// and is not connected to the offered one.
func TestNoQPForOffer(t *testing.T) {
	c := newConn(t, modest())
	c.Step(1, &Event{Kind: EvRecord, Record: wire.Record{Type: wire.Offer, Path: 1, Epoch: 1, QPN: 77}})
	c.Step(1, &Event{Kind: EvPathFailed, Path: 1, Epoch: 1})
	acts := c.Step(c.Deadline(), &Event{Kind: EvTick})
	if len(acts) != 1 || acts[0].Kind != ActRebuild || acts[0].Epoch != 2 {
		t.Fatalf("%+v after the pause, want one more attempt, of epoch 2", acts)
	}
	for _, a := range c.Step(c.now, &Event{Kind: EvRebuilt, Path: 1, Epoch: 2, QPN: 5}) {
		if a.Kind == ActConnect {
			t.Fatalf("the QP of epoch 2 is connected to %d, which the peer offered for epoch 1", a.QPN)
		}
	}
}
