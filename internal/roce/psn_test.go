package roce_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/roce"
)

func TestSub(t *testing.T) {
	tests := []struct {
		p, q roce.PSN
		want int32
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, 0xffffff, 1}, // over the wrap
		{0xffffff, 0, -1},
		{2, 0xfffffd, 5},
		{0xfffffd, 2, -5},
		{0x7fffff, 0, 1<<23 - 1},
		{0x800000, 0, -1 << 23}, // just opposite, from either side
		{0, 0x800000, -1 << 23},
		{0x800001, 0, -(1<<23 - 1)},
		{0xffffff, 0x7fffff, -1 << 23},
		{0xff000001, 0xfe000000, 1}, // the upper eight bits do not count
		{0x01000000, 0, 0},
	}
	for _, tt := range tests {
		if got := tt.p.Sub(tt.q); got != tt.want {
			t.Errorf("PSN(%#x).Sub(%#x) = %d, want %d", tt.p, tt.q, got, tt.want)
		}
	}
}

func TestAdd(t *testing.T) {
	tests := []struct {
		p    roce.PSN
		n    uint32
		want roce.PSN
	}{
		{0, 0, 0},
		{0, 1, 1},
		{0xffffff, 1, 0},
		{0xffffff, 0xffffff, 0xfffffe},
		{0x800000, 0x800000, 0},
		{5, 1 << 24, 5},
		{0xffffffff, 0xffffffff, 0xfffffe}, // 32-bit wrap is a whole number of 24-bit ones
		{0xab000007, 0, 7},                 // clears the upper bits
	}
	for _, tt := range tests {
		if got := tt.p.Add(tt.n); got != tt.want {
			t.Errorf("PSN(%#x).Add(%#x) = %#x, want %#x", tt.p, tt.n, got, tt.want)
		}
	}
}

// Sub undoes Add, wherever in the circle it starts and whatever the upper bits are.
func TestSubUndoesAdd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := roce.PSN(rapid.Uint32().Draw(t, "p"))
		d := rapid.Int32Range(-roce.PSNHalf, roce.PSNHalf-1).Draw(t, "d")
		q := p.Add(uint32(d))
		if q > roce.PSNMask {
			t.Fatalf("PSN(%#x).Add(%d) = %#x has more than 24 bits", p, d, q)
		}
		if got := q.Sub(p); got != d {
			t.Fatalf("PSN(%#x).Sub(%#x) = %d, want %d", q, p, got, d)
		}
		if d != -roce.PSNHalf && p.Sub(q) != -d {
			t.Fatalf("PSN(%#x).Sub(%#x) = %d, want %d", p, q, p.Sub(q), -d)
		}
	})
}

// The sign of Sub orders any window shorter than PSNHalf.
func TestSubOrdersAWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := roce.PSN(rapid.Uint32().Draw(t, "base"))
		offset := rapid.Uint32Range(0, roce.PSNHalf-1)
		i, j := offset.Draw(t, "i"), offset.Draw(t, "j")
		if got, want := base.Add(i).Sub(base.Add(j)) < 0, i < j; got != want {
			t.Fatalf("base %#x: %d before %d is %v, want %v", base, i, j, got, want)
		}
	})
}

func ExamplePSN_Sub() {
	first := roce.PSN(0xfffffe)
	next := first.Add(3)
	fmt.Printf("%#x is %d packets after %#x\n", next, next.Sub(first), first)
	// Output: 0x1 is 3 packets after 0xfffffe
}
