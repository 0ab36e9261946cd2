package ibverbx_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// TestBusinessCardBytes holds the bytes that the C++ original writes and reads.
func TestBusinessCardBytes(t *testing.T) {
	card := &ibverbx.BusinessCard{QPNums: []uint32{17, 0xffffff}, NotifyQPNum: 20}
	const want = `{"qpNums":["0000000017","0016777215"],"notifyQpNum":"0000000020"}`
	got, err := json.Marshal(card)
	if err != nil || string(got) != want {
		t.Errorf("card = %s, %v; want %s", got, err, want)
	}
	for _, text := range []string{want, `{"notifyQpNum": "20", "qpNums": ["17","16777215"]}`} {
		c, err := ibverbx.DecodeBusinessCard([]byte(text))
		if err != nil || fmt.Sprint(*c) != fmt.Sprint(*card) {
			t.Errorf("DecodeBusinessCard(%s) = %+v, %v; want %+v", text, c, err, *card)
		}
	}
}

// TestBusinessCardRefusals: numbers that the original's reader bends into shape, and one
// that ends it, are errors here.
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
		if c, err := ibverbx.DecodeBusinessCard([]byte(text)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: DecodeBusinessCard = %+v, %v; want %v", name, c, err, verbs.ErrInvalid)
		}
	}
}

// TestCxxPeer plays both sides of a pair that meets by business cards: what arrives,
// in both schemes, and that what the original cannot do is refused.
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

// meetByBusinessCard connects a to b, each knowing of the other what a C++ peer tells.
func meetByBusinessCard(t *testing.T, a, b *host) {
	t.Helper()
	full, err := b.qp.Card()
	must(t, err)
	paths := make([]verbs.Endpoint, full.Rails)
	for _, l := range full.Lanes {
		paths[l.Rail] = verbs.Endpoint{GID: l.GID, LID: l.LID, MTU: l.MTU, MaxRdAtomic: l.MaxRdAtomic, MaxDestRdAtomic: l.MaxDestRdAtomic}
	}
	own, err := b.qp.BusinessCard()
	must(t, err)
	text, err := json.Marshal(own)
	must(t, err)
	card, err := ibverbx.DecodeBusinessCard(text)
	must(t, err)
	must(t, a.qp.ConnectCxxPeer(card, paths))
}

func testCxxPeer(t *testing.T, cfg ibverbx.Config, rails int) {
	links := memoryLinks(rails)
	a, b := newHost(t, links, cfg), newHost(t, links, cfg)
	meetByBusinessCard(t, a, b)
	meetByBusinessCard(t, b, a)
	const size = 50_000
	local, remote := a.region(size), b.region(size)
	for i := range local.Bytes() {
		local.Bytes()[i] = byte(i * 7)
	}
	recv := ibverbx.RecvWR{WRID: 5}
	post1(t, b, &recv)
	write := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: 0x01020304, Remote: remote.Remote()}
	write.SetSGE(local.SGE(0, size))
	if n, err := a.qp.PostSend([]ibverbx.SendWR{write}); n != 1 {
		t.Fatalf("PostSend = %d, %v", n, err)
	}
	if wc := a.wait(1)[0]; wc.Err() != nil {
		t.Fatalf("sender: %v", wc.Err())
	}
	wc := b.wait(1)[0]
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
	if n, err := a.qp.PostSend([]ibverbx.SendWR{add}); n != 1 {
		t.Fatalf("PostSend of an atomic = %d, %v", n, err)
	}
	if wc := a.wait(1)[0]; wc.Err() != nil {
		t.Errorf("atomic: %v", wc.Err())
	}
	if cfg.Lanes == 1 {
		return
	}
	send := ibverbx.SendWR{Opcode: verbs.OpSend}
	send.SetSGE(local.SGE(0, 8))
	if n, err := a.qp.PostSend([]ibverbx.SendWR{send}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostSend of a SEND = %d, %v; want %v", n, err, verbs.ErrInvalid)
	}
	data := ibverbx.RecvWR{}
	data.SetSGE(remote.SGE(0, 8))
	if n, err := b.qp.PostRecv([]ibverbx.RecvWR{data}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("PostRecv of a data receive = %d, %v; want %v", n, err, verbs.ErrInvalid)
	}
}

func post1(t *testing.T, h *host, wr *ibverbx.RecvWR) {
	t.Helper()
	if n, err := h.qp.PostRecv([]ibverbx.RecvWR{*wr}); n != 1 {
		t.Fatalf("PostRecv = %d, %v", n, err)
	}
}

// TestCxxPeerRefusals: what must be said beforehand, and cards that do not fit.
func TestCxxPeerRefusals(t *testing.T) {
	links := memoryLinks(1)
	native := newHost(t, links, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB})
	if _, err := native.qp.BusinessCard(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("BusinessCard without Config.CxxPeer = %v, want %v", err, verbs.ErrInvalid)
	}
	if _, err := native.cq.NewQP(ibverbx.Config{CxxPeer: true}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewQP with Tally for an original = %v, want %v", err, verbs.ErrInvalid)
	}
	a := newHost(t, links, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, CxxPeer: true})
	path := []verbs.Endpoint{{MTU: verbs.MTU4096}}
	three := &ibverbx.BusinessCard{QPNums: []uint32{1, 2, 3}, NotifyQPNum: 4}
	for name, err := range map[string]error{
		"no card":     a.qp.ConnectCxxPeer(nil, path),
		"no paths":    a.qp.ConnectCxxPeer(&ibverbx.BusinessCard{QPNums: []uint32{1, 2}, NotifyQPNum: 3}, nil),
		"three lanes": a.qp.ConnectCxxPeer(three, path),
		"QP 0":        a.qp.ConnectCxxPeer(&ibverbx.BusinessCard{QPNums: []uint32{1, 2}}, path),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: ConnectCxxPeer = %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
}

func FuzzDecodeBusinessCard(f *testing.F) {
	f.Add([]byte(`{"qpNums":["0000000017"],"notifyQpNum":"0000000020"}`))
	f.Add([]byte(`{"qpNums":["12abc"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ibverbx.DecodeBusinessCard(b)
		if err != nil {
			return
		}
		text, err := json.Marshal(c)
		must(t, err)
		again, err := ibverbx.DecodeBusinessCard(text)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(c) {
			t.Fatalf("%s becomes %+v, %v", text, again, err)
		}
	})
}
