package reliable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"ibverbx/verbs"
)

func testCard() (card, Config) {
	cfg := Config{Paths: 2, Flows: 1, Window: 64, ChunkBytes: 4096}
	return card{
		window: 64, credit: 100, pathCount: 2, chunk: 4096, conn: 7, control: [2]uint32{0x11, 0x12}, qkey: verbs.DefaultQKey, psn: 0x654321,
		paths: []pathAddr{{0x13, 0xabcdef}, {0x14, 1}},
	}, cfg
}

func TestCard(t *testing.T) {
	c, cfg := testCard()
	b := c.encode()
	want := []byte{
		4, 0, 0, 2, 0, 64, 0, 100, 0, 0, 16, 0, 0, 0, 0, 7, 0, 0, 0, 0x11, 0, 0, 0, 0x12, 0, 0x65, 0x43, 0x21,
		0, 0, 0, 0x13, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 0x14, 0, 0, 0, 1,
	}
	if !bytes.Equal(b, want) {
		t.Fatalf("the card is %x, want %x", b, want)
	}
	full := c
	full.want, full.perPath, full.grants = true, true, true
	if got, err := decodeCard(full.encode(), &cfg, &carrier{typ: verbs.UC}); err != nil || !got.want || !got.perPath || !got.grants {
		t.Fatalf("decodeCard = %+v, %v, want all flags", got, err)
	}
	keyed := c
	keyed.qkey = 0x12345678
	b = keyed.encode()
	if len(b) != len(want)+4 || b[1] != 128 || !bytes.Equal(b[len(want):], []byte{0x12, 0x34, 0x56, 0x78}) {
		t.Fatalf("the card with a Q_Key is %x, want it at the end", b)
	}
	if got, err := decodeCard(b, &cfg, &carrier{typ: verbs.UC}); err != nil || got.qkey != keyed.qkey || got.paths[1] != c.paths[1] {
		t.Fatalf("decodeCard = %+v, %v, want the Q_Key", got, err)
	}
	for _, key := range []uint32{verbs.DefaultQKey, 1 << 31} {
		binary.BigEndian.PutUint32(b[len(want):], key)
		if got, err := decodeCard(b, &cfg, &carrier{typ: verbs.UC}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("decodeCard with Q_Key %#x = %+v, %v, want ErrInvalid", key, got, err)
		}
	}
	b = want
	if got, err := decodeCard(b, &cfg, &carrier{typ: verbs.UC}); err != nil || got.conn != 7 || got.psn != 0x654321 || got.qkey != verbs.DefaultQKey || got.paths[1] != c.paths[1] {
		t.Fatalf("decodeCard = %+v, %v, want the same card", got, err)
	}
	for i, set := range map[int]byte{0: 1, 1: 8, 3: 3, 5: 65, 7: 0, 8: 1, 10: 0, 13: 0x10, 16: 1, 19: 0, 24: 1, 28: 1, 31: 0, 32: 1} {
		bad := bytes.Clone(b)
		bad[i] = set
		if got, err := decodeCard(bad, &cfg, &carrier{typ: verbs.UC}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("byte %d = %d: decodeCard = %+v, %v, want ErrInvalid", i, set, got, err)
		}
	}
	for n := range b {
		if got, err := decodeCard(b[:n], &cfg, &carrier{typ: verbs.UC}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%d bytes: decodeCard = %+v, %v, want ErrInvalid", n, got, err)
		}
	}
}

// TestCardKinds: where QPs share connections every kind of card has its own fields, and no others.
func TestCardKinds(t *testing.T) {
	c, cfg := testCard()
	whole := c.encode()
	cfg.Flows = 4
	if got, err := decodeCard(whole, &cfg, &carrier{typ: verbs.UC}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("decodeCard of a whole card = %+v, %v, want ErrInvalid", got, err)
	}
	for kind, want := range map[cardKind]int{cardBare: 28, cardPropose: 28 + 16 + 8, cardAccept: 28 + 16 + 8 + 4, cardConfirm: 28 + 4} {
		c := sharedCard(kind)
		b := c.encode()
		if got, err := decodeCard(b, &cfg, &carrier{typ: verbs.UC}); err != nil || len(b) != want || !bytes.Equal(got.encode(), b) {
			t.Errorf("kind %d: decodeCard of %d bytes = %+v, %v, want the same card of %d bytes", kind, len(b), got, err, want)
		}
		for n := range b {
			if got, err := decodeCard(b[:n], &cfg, &carrier{typ: verbs.UC}); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("kind %d, %d bytes: decodeCard = %+v, %v, want ErrInvalid", kind, n, got, err)
			}
		}
		for name, change := range map[string]func(*card){
			"another kind": func(c *card) { c.kind = cardKinds }, "a question": func(c *card) { c.want = true },
			"a flow that is too large": func(c *card) { c.flow = 4 },
			"credit without paths, or none with": func(c *card) {
				if c.credit = 0; !c.kind.hasPaths() {
					c.credit = 1
				}
			},
			"a wrong echo": func(c *card) { c.echo = maxConn + 1 }, "a wrong birth": func(c *card) { c.firstAddr.qpn = 0 },
		} {
			bad := c
			change(&bad)
			if bytes.Equal(bad.encode(), b) {
				continue // the kind does not have the field
			}
			if got, err := decodeCard(bad.encode(), &cfg, &carrier{typ: verbs.UC}); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("kind %d with %s: decodeCard = %+v, %v, want ErrInvalid", kind, name, got, err)
			}
		}
	}
}

// sharedCard returns a card for Config.Flows of 4.
func sharedCard(kind cardKind) card {
	c, _ := testCard()
	c.kind, c.flow, c.echo, c.firstAddr = kind, 3, 0x12345, pathAddr{0x21, 0x22}
	if !kind.hasPaths() {
		c.paths, c.credit = nil, 0
	}
	if kind == cardBare {
		c.conn = 0
	}
	return c
}

// FuzzCard: a card is rejected or encodes to the same bytes again, including cards of QPs that share
// connections.
func FuzzCard(f *testing.F) {
	c, cfg := testCard()
	f.Add(c.encode())
	shared := cfg
	shared.Flows = 4
	for kind := cardBare; kind < cardKinds; kind++ {
		c := sharedCard(kind)
		f.Add(c.encode())
	}
	c.grants, c.qkey = true, 0x12345678
	f.Add(c.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, cfg := range []*Config{&cfg, &shared} {
			for _, typ := range []verbs.QPType{verbs.UC, verbs.UD} {
				if got, err := decodeCard(b, cfg, &carrier{typ: typ}); err == nil && !bytes.Equal(got.encode(), b) {
					t.Fatalf("%x comes out as %x", b, got.encode())
				}
			}
		}
	})
}
