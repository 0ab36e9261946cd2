package reliable

import (
	"bytes"
	"errors"
	"testing"

	"ibverbx/verbs"
)

func TestExtra(t *testing.T) {
	b := joinExtra([]byte{1, 2, 3}, []byte{9, 8})
	if want := []byte{1, 2, 3, 9, 8, 0, 2}; !bytes.Equal(b, want) {
		t.Fatalf("joinExtra = %x, want %x", b, want)
	}
	card, inner, err := splitExtra(b)
	if err != nil || !bytes.Equal(card, []byte{1, 2, 3}) || !bytes.Equal(inner, []byte{9, 8}) {
		t.Fatalf("splitExtra = %x, %x, %v, want what was put together", card, inner, err)
	}
	for _, bad := range [][]byte{{0}, {0, 1}, {5, 0, 2}, {1, 0xff, 0xff}} {
		if card, inner, err := splitExtra(bad); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("splitExtra(%x) = %x, %x, %v, want ErrInvalid", bad, card, inner, err)
		}
	}
	if card, inner, err := splitExtra(nil); card != nil || inner != nil || err != nil {
		t.Errorf("splitExtra(nil) = %x, %x, %v, want nothing: the card is asked for elsewhere", card, inner, err)
	}
}

// FuzzExtra: bytes are rejected or survive a round trip unchanged.
func FuzzExtra(f *testing.F) {
	f.Add(joinExtra([]byte{1, 2, 3}, []byte{9, 8}))
	f.Fuzz(func(t *testing.T, b []byte) {
		card, inner, err := splitExtra(b)
		if err != nil || len(b) == 0 {
			return
		}
		if again := joinExtra(bytes.Clone(card), inner); !bytes.Equal(again, b) {
			t.Fatalf("%x comes out as %x", b, again)
		}
	})
}
