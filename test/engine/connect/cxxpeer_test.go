package connect_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestBusinessCardBytes compares business cards with the bytes that the C++ original writes and
// reads.
func TestBusinessCardBytes(t *testing.T) {
	card := &ibverbx.CxxCard{QPNums: []uint32{17, 0xffffff}, NotifyQPNum: 20}
	const want = `{"qpNums":["0000000017","0016777215"],"notifyQpNum":"0000000020"}`
	got, err := json.Marshal(card)
	if err != nil || string(got) != want {
		t.Errorf("card = %s, %v; want %s", got, err, want)
	}
	for _, text := range []string{want, `{"notifyQpNum": "20", "qpNums": ["17","16777215"]}`} {
		c, err := ibverbx.DecodeCxxCard([]byte(text))
		if err != nil || fmt.Sprint(*c) != fmt.Sprint(*card) {
			t.Errorf("DecodeCxxCard(%s) = %+v, %v; want %+v", text, c, err, *card)
		}
	}
}

// TestBinaryCardBytes: the binary form of a card, byte by byte.
func TestBinaryCardBytes(t *testing.T) {
	for want, card := range map[string]ibverbx.CxxCard{
		"02000000130000001100000012000000": {QPNums: []uint32{17, 18}, NotifyQPNum: 19},
		"0100000000000000ffffff00":         {QPNums: []uint32{0xffffff}},
	} {
		got, err := card.MarshalBinary()
		if err != nil || hex.EncodeToString(got) != want {
			t.Errorf("MarshalBinary = %x, %v; want %s", got, err, want)
		}
		if c, err := ibverbx.DecodeCxxCard(got); err != nil || fmt.Sprint(*c) != fmt.Sprint(card) {
			t.Errorf("DecodeCxxCard(%x) = %+v, %v; want %+v", got, c, err, card)
		}
	}
	brace := ibverbx.CxxCard{NotifyQPNum: 9} // its first byte is that of '{'
	for i := range uint32('{') {
		brace.QPNums = append(brace.QPNums, i+1)
	}
	b, err := brace.MarshalBinary()
	enginetest.Must(t, err)
	if c, err := ibverbx.DecodeCxxCard(b); err != nil || fmt.Sprint(*c) != fmt.Sprint(brace) {
		t.Errorf("DecodeCxxCard of %d QPs = %+v, %v", '{', c, err)
	}
	if _, err := (&ibverbx.CxxCard{QPNums: make([]uint32, 4096)}).MarshalBinary(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("MarshalBinary of 4096 QPs = %v, want %v", err, verbs.ErrInvalid)
	}
}

// TestBinaryCardRefusals: each error names the fault.
func TestBinaryCardRefusals(t *testing.T) {
	for _, c := range []struct{ card, want string }{
		{"00", "binary card of 1 bytes: want at least 12"},
		{"0000000000000000", "binary card with 0 QPs: want 1 to 4095"},
		{"0010000000000000", "binary card with 4096 QPs: want 1 to 4095"},
		{"010000000000000011", "binary card of 9 bytes: want 12 for 1 QPs"},
		{"01000000000000001100000000", "binary card of 13 bytes: want 12 for 1 QPs"},
		{"010000000000000000000000", "QP 0: 0 is not a QP number"},
		{"010000000000000000000001", "QP 0: 16777216 is not a QP number"},
		{"010000000000000111000000", "notify QP: 16777216 is not a QP number"},
		{"02000000000000001100000012000000", "2 QPs and no notify QP"},
	} {
		b, err := hex.DecodeString(c.card)
		enginetest.Must(t, err)
		if card, err := ibverbx.DecodeCxxCard(b); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("DecodeCxxCard(%s) = %+v, %v; want %q", c.card, card, err, c.want)
		}
	}
}

// TestBusinessCardRefusals: numbers that the original misreads, and one that ends its process,
// are errors here.
func TestBusinessCardRefusals(t *testing.T) {
	for name, text := range map[string]string{
		"empty":              ``,
		"not an object":      `[]`,
		"no QPs":             `{"qpNums":[],"notifyQpNum":"0000000020"}`,
		"no field":           `{"notifyQpNum":"0000000020"}`,
		"trailing letters":   `{"qpNums":["12abc"]}`,
		"leading space":      `{"qpNums":[" 7"]}`,
		"negative":           `{"qpNums":["-1"]}`,
		"plus":               `{"qpNums":["+1"]}`,
		"beyond 32 bits":     `{"qpNums":["4294967297"]}`,
		"beyond 24 bits":     `{"qpNums":["16777216"]}`,
		"zero":               `{"qpNums":["0000000000"]}`,
		"no digits":          `{"qpNums":[""]}`,
		"a number":           `{"qpNums":[17]}`,
		"notify is a number": `{"qpNums":["17","18"],"notifyQpNum":20}`,
		"notify is missing":  `{"qpNums":["17","18"]}`,
		"notify is 0":        `{"qpNums":["17","18"],"notifyQpNum":"0"}`,
		"unknown field":      `{"qpNums":["17"],"psn":"5"}`,
		"another case":       `{"QPNUMS":["17"]}`,
		"field twice":        `{"qpNums":["17"],"qpNums":["18"]}`,
		"something follows":  `{"qpNums":["17"]} {}`,
	} {
		if c, err := ibverbx.DecodeCxxCard([]byte(text)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: DecodeCxxCard = %+v, %v; want %v", name, c, err, verbs.ErrInvalid)
		}
	}
}

// TestCxxPeer connects both sides with business cards, checks the received data in both schemes, and that
// requests unsupported by the original are refused.
func TestCxxPeer(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, lanes := range []int{1, 4} {
			for _, rails := range []int{1, 2} {
				if lanes == 1 && rails == 2 {
					continue
				}
				t.Run(fmt.Sprintf("%s/lanes=%d/rails=%d", scheme, lanes, rails), func(t *testing.T) {
					testCxxPeer(t, ibverbx.Config{Scheme: scheme, Lanes: lanes, CxxPeer: true, FragmentSize: 4096}, rails)
				})
			}
		}
	}
}

// The two encodings of a card.
func asJSON(c *ibverbx.CxxCard) ([]byte, error)   { return json.Marshal(c) }
func asBinary(c *ibverbx.CxxCard) ([]byte, error) { return c.MarshalBinary() }

// meetByBusinessCard connects a to b with only what a C++ peer sends.
func meetByBusinessCard(t *testing.T, a, b *enginetest.Host, encode func(*ibverbx.CxxCard) ([]byte, error)) {
	t.Helper()
	lanes, err := b.QP.Paths()
	enginetest.Must(t, err)
	paths := make([]verbs.Endpoint, b.Rails.Len())
	for _, l := range lanes {
		paths[l.Rail] = l.Endpoint
	}
	own, err := b.QP.CxxCard()
	enginetest.Must(t, err)
	form, err := encode(own)
	enginetest.Must(t, err)
	card, err := ibverbx.DecodeCxxCard(form)
	enginetest.Must(t, err)
	enginetest.Must(t, a.QP.ConnectCxxPeer(card, paths))
}

func testCxxPeer(t *testing.T, cfg ibverbx.Config, rails int) {
	links := enginetest.MemoryLinks(rails)
	a, b := enginetest.NewHost(t, links, cfg), enginetest.NewHost(t, links, cfg)
	meetByBusinessCard(t, a, b, asJSON)
	meetByBusinessCard(t, b, a, asBinary)
	const size = 50_000
	local, remote := a.Region(size), b.Region(size)
	for i := range local.Bytes() {
		local.Bytes()[i] = byte(i * 7)
	}
	recv := ibverbx.RecvWR{WRID: 5}
	b.PostRecv(recv)
	write := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: 0x01020304, Remote: remote.Remote()}
	write.SetSGE(local.SGE(0, size))
	a.PostSend(write)
	if wc := a.Wait(1)[0]; wc.Err() != nil {
		t.Fatalf("sender: %v", wc.Err())
	}
	wc := b.Wait(1)[0]
	if wc.Err() != nil || wc.WRID != 5 {
		t.Fatalf("receiver: %+v, %v", wc, wc.Err())
	}
	if wc.Flags&ibverbx.WCHasImm != 0 && wc.Imm != write.Imm {
		t.Errorf("immediate %#x, want %#x", wc.Imm, write.Imm)
	}
	if string(remote.Bytes()) != string(local.Bytes()) {
		t.Error("the bytes differ")
	}
	add := ibverbx.SendWR{WRID: 2, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, Remote: remote.Remote(), CompareAdd: 1}
	add.SetSGE(local.SGE(0, 8))
	a.PostSend(add)
	if wc := a.Wait(1)[0]; wc.Err() != nil {
		t.Errorf("atomic: %v", wc.Err())
	}
	if cfg.Lanes == 1 {
		return
	}
	send := ibverbx.SendWR{Opcode: verbs.OpSend}
	send.SetSGE(local.SGE(0, 8))
	if n, err := a.QP.PostSend([]ibverbx.SendWR{send}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend of a SEND = %d, %v; want %v", n, err, verbs.ErrInvalid)
	}
	data := ibverbx.RecvWR{}
	data.SetSGE(remote.SGE(0, 8))
	if n, err := b.QP.PostRecv([]ibverbx.RecvWR{data}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostRecv of a data receive = %d, %v; want %v", n, err, verbs.ErrInvalid)
	}
}

// TestPaths: each lane's local path has the device, port and GID of its rail, and the QP number of the
// cards. A C++ peer gets them from the program.
func TestPaths(t *testing.T) {
	for _, cfg := range []ibverbx.Config{
		{Lanes: 1},
		{Lanes: 4, Scheme: ibverbx.Spray},
		{Lanes: 4, Scheme: ibverbx.Spray, CxxPeer: true},
	} {
		h := enginetest.NewHost(t, enginetest.MemoryLinks(2), cfg)
		card, err := h.QP.Card()
		enginetest.Must(t, err)
		paths, err := h.QP.Paths()
		if err != nil || len(paths) != len(card.Lanes) {
			t.Fatalf("Paths = %+v, %v; want %d", paths, err, len(card.Lanes))
		}
		stats := h.QP.Stats()
		for i, p := range paths {
			want := card.Lanes[i]
			if p.Lane != i || p.Rail != want.Rail || p.Role != stats.Lanes[i].Role || p.Port != 1 || p.Device != h.NICs[p.Rail].Name() ||
				p.Endpoint.QPN != want.QPN || p.Endpoint.GID != want.GID || p.Endpoint.GID.IsZero() || p.Endpoint.MTU != want.MTU {
				t.Errorf("path of lane %d = %+v, and its card %+v", i, p, want)
			}
			if cfg.CxxPeer {
				want.PSN = 0
			}
			if p.Endpoint.PSN != want.PSN {
				t.Errorf("PSN of lane %d = %d, want %d", i, p.Endpoint.PSN, want.PSN)
			}
		}
		enginetest.Must(t, h.QP.Close())
		if _, err := h.QP.Paths(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("Paths after Close = %v, want %v", err, verbs.ErrClosed)
		}
	}
}

// TestPathsShowPhysicalQPs: Paths reports the state of each lane's QP, and the peer's QP once it is connected.
func TestPathsShowPhysicalQPs(t *testing.T) {
	links, cfg := enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4, Scheme: ibverbx.Spray}
	a, b := enginetest.NewHost(t, links, cfg), enginetest.NewHost(t, links, cfg)
	before, err := a.QP.Paths()
	enginetest.Must(t, err)
	for _, p := range before {
		if p.QP.State != verbs.StateInit || p.QP.DestQPN != 0 {
			t.Errorf("QP of lane %d before Connect = %+v, want INIT and no peer", p.Lane, p.QP)
		}
	}
	enginetest.Connect(t, a.QP, b.QP)
	enginetest.Must(t, a.QP.KillLane(2))
	here, err := a.QP.Paths()
	enginetest.Must(t, err)
	there, err := b.QP.Paths()
	enginetest.Must(t, err)
	for i, p := range here {
		state, peer := verbs.StateRTS, there[i].Endpoint
		if i == 2 {
			state = verbs.StateErr
		}
		if p.QP.State != state || p.QP.DestQPN != peer.QPN || p.QP.AH.DGID != peer.GID || p.QP.RQPSN != peer.PSN {
			t.Errorf("QP of lane %d = %+v, want %s and the peer %+v", i, p.QP, state, peer)
		}
	}
}

// TestCxxPeerImmediate: a C++ peer passes its immediate to the NIC in host order, lowest byte first. On one
// lane and on several, 42 is sent and received as the bytes 2a 00 00 00.
func TestCxxPeerImmediate(t *testing.T) {
	const wire = 0x2a000000 // as providers of package verbs see it, highest byte first
	for _, c := range []struct {
		scheme ibverbx.Scheme
		lanes  int
		op     verbs.Opcode
	}{
		{ibverbx.Spray, 1, verbs.OpRDMAWriteWithImm},
		{ibverbx.DQPLB, 1, verbs.OpRDMAWriteWithImm},
		{ibverbx.DQPLB, 1, verbs.OpSendWithImm},
		{ibverbx.Spray, 4, verbs.OpRDMAWriteWithImm},
	} {
		t.Run(fmt.Sprintf("%s/%s/lanes=%d", c.op, c.scheme, c.lanes), func(t *testing.T) {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Scheme: c.scheme, Lanes: c.lanes, CxxPeer: true})
			qps := x.NIC.QPs()
			carries := qps[len(qps)-1] // the only lane, or the notify lane
			wr := x.Request(1, c.op, 8)
			wr.Imm = 42
			x.PostSend(wr)
			x.Settle()
			if n := len(carries.Taken); n != 1 || carries.Taken[0].Imm != wire {
				t.Errorf("the NIC took %d requests, %+v; want one with the immediate %#x", n, carries.Taken, wire)
			}
			x.PostRecv(ibverbx.RecvWR{WRID: 2})
			if !carries.Receive(verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: wire}) {
				t.Fatal("no receive is posted")
			}
			wcs := x.Settle()
			if len(wcs) != 1 || wcs[0].Flags&ibverbx.WCHasImm == 0 || wcs[0].Imm != 42 {
				t.Errorf("received %+v; want the immediate 42", wcs)
			}
		})
	}
}

// TestCxxPeerRefusals: Config.CxxPeer is required, and cards that do not match are refused.
func TestCxxPeerRefusals(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	native := enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB})
	if _, err := native.QP.CxxCard(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("CxxCard without Config.CxxPeer = %v, want %v", err, verbs.ErrInvalid)
	}
	if _, err := native.CQ.NewQP(ibverbx.Config{CxxPeer: true}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewQP with Tally for an original = %v, want %v", err, verbs.ErrInvalid)
	}
	a := enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, CxxPeer: true})
	path := []verbs.Endpoint{{MTU: verbs.MTU4096}}
	three := &ibverbx.CxxCard{QPNums: []uint32{1, 2, 3}, NotifyQPNum: 4}
	for name, err := range map[string]error{
		"no card":     a.QP.ConnectCxxPeer(nil, path),
		"no paths":    a.QP.ConnectCxxPeer(&ibverbx.CxxCard{QPNums: []uint32{1, 2}, NotifyQPNum: 3}, nil),
		"three lanes": a.QP.ConnectCxxPeer(three, path),
		"QP 0":        a.QP.ConnectCxxPeer(&ibverbx.CxxCard{QPNums: []uint32{1, 2}}, path),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: ConnectCxxPeer = %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
}

func FuzzDecodeCxxCard(f *testing.F) {
	f.Add([]byte(`{"qpNums":["0000000017"],"notifyQpNum":"0000000020"}`))
	f.Add([]byte(`{"qpNums":["12abc"]}`))
	f.Add([]byte("\x02\x00\x00\x00\x13\x00\x00\x00\x11\x00\x00\x00\x12\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ibverbx.DecodeCxxCard(b)
		if err != nil {
			return
		}
		text, err := json.Marshal(c)
		enginetest.Must(t, err)
		packed, err := c.MarshalBinary()
		enginetest.Must(t, err)
		for _, form := range [][]byte{text, packed} {
			again, err := ibverbx.DecodeCxxCard(form)
			if err != nil || fmt.Sprint(again) != fmt.Sprint(c) {
				t.Fatalf("%q becomes %+v, %v", form, again, err)
			}
		}
	})
}
