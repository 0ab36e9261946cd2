package core

import (
	"testing"

	"pgregory.net/rapid"

	"ibverbx/reliable/wire"
)

// TestFalseAcks: acknowledgements of unsent chunks are counted and ignored.
func TestFalseAcks(t *testing.T) {
	for _, r := range []wire.Record{
		{Type: wire.Ack, Cum: 5, Window: 1},
		{Type: wire.Ack, Cum: 0x7000, Window: 1},
		{Type: wire.Ack, Cum: 0, Window: 1, Words: 1, Bitmap: [wire.MaxAckWords]uint64{1 << 3}},
		{Type: wire.Ack, Cum: 4, Window: 1, Words: 1, Bitmap: [wire.MaxAckWords]uint64{1}},
		{Type: wire.Ack, Cum: 2, Window: 1, Words: 4, Bitmap: [wire.MaxAckWords]uint64{0, 0, 0, 1 << 63}},
		{Type: wire.Fault, Status: 10, CSN: 4},
		{Type: wire.Fault, Status: 10, CSN: 0xffffffff},
		{Type: wire.Offer, Path: 4, Epoch: 1, QPN: 1},
		{Type: wire.Ping, Path: 4},
		{Type: wire.Pong, Path: 4},
		{Type: wire.Ping, Path: 1},
		{Type: wire.Credit, Bytes: 1},
		{Type: wire.CreditRequest, Bytes: 1},
	} {
		c := newConn(t, modest())
		c.Step(1, &Event{Kind: EvPost, Message: Message{Kind: MsgWrite, Length: 64}}) // chunks 0 to 3
		acts := c.Step(2, &Event{Kind: EvRecord, Record: r})
		if len(acts) != 0 || c.flows[0].send.una != 0 || c.flying != 4 || c.window != 64 || c.Stats().BadRecords != 1 {
			t.Fatalf("%+v leads to %d actions, una %d, %d flying, a window of %d, %d bad records; want 0, 0, 4, 64, 1",
				r, len(acts), c.flows[0].send.una, c.flying, c.window, c.Stats().BadRecords)
		}
	}
}

// TestWindowEdge: the last chunk of the window is accepted, the one behind it is not.
func TestWindowEdge(t *testing.T) {
	for _, tt := range []struct {
		csn     uint16
		refused uint64
	}{{63, 0}, {64, 1}, {0x7fff, 1}} {
		c := newConn(t, modest())
		acts := c.Step(1, &Event{Kind: EvData, Imm: wire.Imm{CSN: tt.csn}})
		if len(acts) != 1 || acts[0].Record.Type != wire.Ack || c.Stats().Refused != tt.refused {
			t.Fatalf("chunk %d: %d actions, %d refused, want an acknowledgement and %d", tt.csn, len(acts), c.Stats().Refused, tt.refused)
		}
	}
}

// TestMessagesMustCount refuses chunks of SENDs that do not follow each other.
func TestMessagesMustCount(t *testing.T) {
	for _, h := range []wire.Header{
		{Op: wire.OpEager, Flags: wire.FlagLast, Message: 1},
		{Op: wire.OpEager, Flags: wire.FlagLast, Offset: 8},
		{Op: wire.OpNotify, Flags: wire.FlagLast, Message: 7},
	} {
		c := newConn(t, modest())
		faults := 0
		for _, a := range c.Step(1, &Event{Kind: EvChunk, Imm: wire.Imm{Kind: wire.KindChunk}, Header: h}) {
			if a.Kind == ActDeliver {
				t.Fatalf("%+v is delivered", h)
			}
			if a.Kind == ActFault && a.Status == statusInvalid {
				faults++
			}
		}
		if faults != 1 {
			t.Fatalf("%+v leads to %d faults, want 1", h, faults)
		}
	}
}

// TestFutureEpoch: a fragment of a WRITE is refused if its original was sent on a path that never existed.
func TestFutureEpoch(t *testing.T) {
	for _, h := range []wire.Header{
		{Op: wire.OpWrite, Xmit: 1, OrigPath: 2, OrigEpoch: 1},
		{Op: wire.OpWrite, Xmit: 1, OrigPath: 4},
	} {
		c := newConn(t, modest())
		c.Step(1, &Event{Kind: EvChunk, Path: 1, Imm: wire.Imm{Kind: wire.KindChunk}, Header: h})
		if c.Stats().Refused != 1 || c.flows[0].recv.next != 0 {
			t.Fatalf("%+v: %d refused, next %d, want 1 and 0", h, c.Stats().Refused, c.flows[0].recv.next)
		}
	}
}

// TestHostile feeds a connection with arbitrary decodable packets in any order: it must not panic, and its
// actions stay within bounds.
func TestHostile(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := modest()
		cfg.Grants, cfg.PeerGrants = rapid.Bool().Draw(rt, "grants"), rapid.Bool().Draw(rt, "peerGrants")
		cfg.Flows = rapid.IntRange(1, 3).Draw(rt, "flows")
		c := newConn(rt, cfg)
		for k := range cfg.Flows - 1 { // the last one is not open, unless it is the only one
			if err := c.Open(k, FlowConfig{}); err != nil {
				rt.Fatalf("Open(%d) = %v, want none", k, err)
			}
		}
		now := int64(1)
		tokens := uint32(0)
		for range rapid.IntRange(1, 60).Draw(rt, "events") {
			ev := drawEvent(rt)
			if ev.Kind == EvPost {
				if c.flow(ev.Flow) == nil || c.Room(int(ev.Flow)) == 0 {
					continue
				}
				ev.Message.Token = tokens
				tokens++
			}
			now += int64(rapid.IntRange(0, 3_000_000).Draw(rt, "time"))
			for _, a := range c.Step(now, &ev) {
				most, longest := tokens, cfg.ChunkBytes
				switch a.Header.Op {
				case wire.OpFetch:
					longest = wire.FetchLen
				case wire.OpAnswer:
					most = uint32(c.Answers())
				case wire.OpWrite, wire.OpEager, wire.OpNotify:
				}
				if a.Kind == ActSend && (int(a.Path) >= cfg.Paths || c.flow(a.Flow) == nil || a.Token >= most || a.Len > longest) {
					rt.Fatalf("a transmission of %d bytes of message %d on path %d", a.Len, a.Token, a.Path)
				}
			}
			checkBounds(rt, c)
		}
	})
}

// checkBounds checks that the counters of a connection are plausible.
func checkBounds(rt *rapid.T, c *Conn) {
	flying, bytes, lost := 0, 0, 0
	for k, f := range c.flows {
		if f == nil {
			continue
		}
		if f.send.una > f.send.nxt || f.send.nxt-f.send.una > uint64(c.cfg.Window) {
			rt.Fatalf("flow %d: chunks %d to %d", k, f.send.una, f.send.nxt)
		}
		if n := f.answers.taken - f.answers.done; int(n) > c.Answers() || f.answers.taken-f.answers.cut > n {
			rt.Fatalf("flow %d: %d answers, %d of them to be cut, want at most %d", k, n, f.answers.taken-f.answers.cut, c.Answers())
		}
		if n := f.fetches.asked - f.fetches.answered; int(n) > c.cfg.maxFetches() {
			rt.Fatalf("flow %d: %d fetches wait, want at most %d", k, n, c.cfg.maxFetches())
		}
		own, placing := 0, 0
		for i, have := range f.recv.early {
			if have && f.recv.slots[i].status == StatusPlacing {
				placing++
			}
		}
		if placing != f.recv.placement.chunks {
			rt.Fatalf("flow %d: %d chunks are being placed, counted as %d", k, placing, f.recv.placement.chunks)
		}
		for csn := f.send.una; csn < f.send.nxt; csn++ {
			switch ch := f.send.chunk(csn); ch.state {
			case chunkFlying:
				flying++
				bytes += int(ch.len)
			case chunkLost:
				own++
			case chunkAcked:
			}
		}
		if lost += own; own != f.send.lostCount {
			rt.Fatalf("flow %d: %d are lost and %d count as lost", k, own, f.send.lostCount)
		}
	}
	if flying != c.flying || bytes != c.flyingBytes || lost != c.lost {
		rt.Fatalf("%d with %d bytes fly, %d are lost; counted as %d, %d, %d", flying, bytes, lost, c.flying, c.flyingBytes, c.lost)
	}
}

func drawEvent(rt *rapid.T) Event {
	u16 := func(name string, top uint16) uint16 { return rapid.Uint16Range(0, top).Draw(rt, name) }
	ev := Event{
		Kind: EventKind(rapid.IntRange(0, int(EvClose)).Draw(rt, "kind")), Flow: u16("flow", 3), Path: u16("path", 5), Epoch: u16("epoch", 2),
		Count: rapid.IntRange(0, 300).Draw(rt, "count"), Status: rapid.SampledFrom([]uint8{0, 0, 0, 9, StatusNoRecv, StatusPlacing}).Draw(rt, "status"),
		QPN: 1, Route: Route(u16("route", 7)),
	}
	ev.Imm = wire.Imm{Flow: u16("immFlow", 3), CSN: rapid.OneOf(rapid.Uint16Range(0, 70), rapid.Uint16()).Draw(rt, "csn"), AckReq: true}
	if ev.Kind == EvPlaced && ev.Status == StatusPlacing {
		ev.Status = statusSuccess
	}
	ev.Message = Message{Kind: MessageKind(u16("message", 4)), Length: rapid.Uint32Range(0, 300).Draw(rt, "length"), Answer: 16, Status: 4}
	if ev.Message.Kind == MsgFetch {
		ev.Message.Length = wire.FetchLen
	}
	ev.Header = wire.Header{
		Op: wire.Op(1 + u16("op", 4)), Xmit: uint8(u16("xmit", 3)), OrigPath: u16("origPath", 5), OrigEpoch: u16("origEpoch", 2),
		Flags: wire.HeaderFlags(u16("flags", 7)), Message: rapid.Uint32Range(0, 3).Draw(rt, "number"), Len: 16,
		Offset: 16 * uint32(u16("offset", 1)),
	}
	ev.Record = wire.Record{
		Type: wire.Type(1 + u16("type", 7)), Flow: u16("recordFlow", 3), Flags: uint8(u16("recordFlags", 7)), Status: 10, Cum: rapid.OneOf(rapid.Uint32Range(0, 30), rapid.Uint32()).Draw(rt, "cum"),
		Words: uint8(u16("words", 4)), Window: u16("window", 9), EchoCSN: u16("echo", 30), EchoXmit: uint8(u16("echoXmit", 3)),
		RxDelay: rapid.Uint32().Draw(rt, "rxDelay"), RecvLimit: rapid.Uint32Range(0, 9).Draw(rt, "limit"), Nonce: rapid.Uint32Range(0, 3).Draw(rt, "nonce"),
		Path: u16("recordPath", 5), Epoch: u16("recordEpoch", 3), QPN: 5, CSN: uint32(u16("faultCSN", 30)), Bytes: rapid.Uint64().Draw(rt, "bytes"),
	}
	for i := range int(ev.Record.Words) {
		ev.Record.Bitmap[i] = rapid.Uint64().Draw(rt, "bitmap")
	}
	if w := ev.Record.Words; w > 0 && ev.Record.Bitmap[w-1] == 0 {
		ev.Record.Bitmap[w-1] = 1
	}
	return ev
}

// TestWrongKeysBeforeGap: chunks with wrong keys are reported although an earlier chunk is missing, each once.
func TestWrongKeysBeforeGap(t *testing.T) {
	c := newConn(t, modest())
	for _, tt := range []struct {
		csn  uint16
		want int
	}{{3, 1}, {4, 1}, {3, 0}, {64, 0}} {
		h := wire.Header{Op: wire.OpWrite, Xmit: 1, Len: 8}
		acts := c.Step(1, &Event{Kind: EvChunk, Status: statusRemAccess, Imm: wire.Imm{Kind: wire.KindChunk, CSN: tt.csn}, Header: h})
		if got := count(acts, ActWrongKey); got != tt.want || count(acts, ActFault) != 0 {
			t.Errorf("chunk %d: %d wrong keys are reported, and %d faults, want %d and none", tt.csn, got, count(acts, ActFault), tt.want)
		}
	}
}
