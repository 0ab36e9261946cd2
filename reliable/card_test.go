package reliable

import (
	"bytes"
	"errors"
	"testing"

	"ibverbx/verbs"
)

func testCard() (card, Config) {
	cfg := Config{Paths: 2, Flows: 1, Window: 64, ChunkBytes: 4096}
	return card{
		window: 64, credit: 100, chunk: 4096, conn: 7, control: [2]uint32{0x11, 0x12},
		paths: []pathAddr{{0x13, 0xabcdef}, {0x14, 1}},
	}, cfg
}

func TestCard(t *testing.T) {
	c, cfg := testCard()
	b := c.encode()
	want := []byte{
		1, 0, 0, 2, 0, 64, 0, 100, 0, 0, 16, 0, 0, 0, 0, 7, 0, 0, 0, 0x11, 0, 0, 0, 0x12,
		0, 0, 0, 0x13, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 0x14, 0, 0, 0, 1,
	}
	if !bytes.Equal(b, want) {
		t.Fatalf("the card is %x, want %x", b, want)
	}
	full := c
	full.want, full.perPath = true, true
	if got, err := decodeCard(full.encode(), &cfg); err != nil || !got.want || !got.perPath {
		t.Fatalf("decodeCard = %+v, %v, want both flags", got, err)
	}
	if got, err := decodeCard(b, &cfg); err != nil || got.conn != 7 || got.paths[1] != c.paths[1] {
		t.Fatalf("decodeCard = %+v, %v, want the same card", got, err)
	}
	for i, set := range map[int]byte{0: 2, 1: 4, 3: 3, 5: 65, 7: 0, 10: 17, 13: 0x10, 16: 1, 19: 0, 24: 1, 27: 0, 28: 1} {
		bad := bytes.Clone(b)
		bad[i] = set
		if got, err := decodeCard(bad, &cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("byte %d = %d: decodeCard = %+v, %v, want ErrInvalid", i, set, got, err)
		}
	}
	for n := range b {
		if got, err := decodeCard(b[:n], &cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%d bytes: decodeCard = %+v, %v, want ErrInvalid", n, got, err)
		}
	}
}

// TestCardCredits: the credit in hand stands at the end, and must be the same.
func TestCardCredits(t *testing.T) {
	c, cfg := testCard()
	plain := c.encode()
	cfg.Credits, cfg.Speculative, c.speculative = true, 0x12345, 0x12345
	b := c.encode()
	want := append(bytes.Clone(plain), 0, 1, 0x23, 0x45)
	want[1] = 4
	if !bytes.Equal(b, want) {
		t.Fatalf("the card is %x, want %x", b, want)
	}
	if got, err := decodeCard(b, &cfg); err != nil || got.speculative != 0x12345 {
		t.Fatalf("decodeCard = %+v, %v, want the same card", got, err)
	}
	for name, bad := range map[string][]byte{
		"without credits": plain, "cut short": b[:len(b)-1], "with other credits": append(b[:len(b)-1:len(b)-1], 0x46),
		"with credits and no flag": append(plain[:len(plain):len(plain)], 0, 1, 0x23, 0x45),
	} {
		if got, err := decodeCard(bad, &cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a card %s: decodeCard = %+v, %v, want ErrInvalid", name, got, err)
		}
	}
}

// FuzzCard: a card is refused or comes out again as the same bytes, with credits and without.
func FuzzCard(f *testing.F) {
	c, cfg := testCard()
	f.Add(c.encode())
	credits := cfg
	credits.Credits, credits.Speculative, c.speculative = true, 4096, 4096
	f.Add(c.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, cfg := range []*Config{&cfg, &credits} {
			if got, err := decodeCard(b, cfg); err == nil && !bytes.Equal(got.encode(), b) {
				t.Fatalf("%x comes out as %x", b, got.encode())
			}
		}
	})
}
