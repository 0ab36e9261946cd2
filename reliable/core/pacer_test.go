package core

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPacer shares a rate among three who ask, in turn, and saves up no burst.
func TestPacer(t *testing.T) {
	p := NewPacer(1e9, 1000, 0) // a byte per nanosecond
	p.Join(2)
	if p.Deadline() != Never {
		t.Fatalf("Deadline = %d without demand, want never", p.Deadline())
	}
	now := int64(1_000_000)
	p.Want(now, 0, 2500, 0, 0)
	p.Want(now, 2, 1000, 0, 0)
	p.Want(now, 1, 5000, 0, 0)
	p.Want(now, 1, 1500, 0, 0)
	var order []int
	got := [3]int{}
	for p.Deadline() != Never {
		now = max(now, p.Deadline())
		c, n, ok := p.Next(now)
		if !ok {
			t.Fatalf("no grant at %d, want one: it was due", now)
		}
		order = append(order, c)
		got[c] += n
	}
	if got != [3]int{2500, 1500, 1000} {
		t.Fatalf("granted %v, want [2500 1500 1000]", got)
	}
	for i, want := range []int{0, 2, 1, 0, 1, 0} {
		if order[i] != want {
			t.Fatalf("granted in the order %v, want 0 2 1 0 1 0", order)
		}
	}
	if took := now - 1_000_000; took != 4500 {
		t.Fatalf("the last of 5000 bytes was granted after %d ns, want 4500 at a byte per ns", took)
	}
}

// TestPacerInHand wants what is had in hand to be free when it is granted, and to be paid for
// when it is used.
func TestPacerInHand(t *testing.T) {
	p := NewPacer(1e9, 1000, 0)
	p.Join(1)
	p.Want(100, 0, 0, 700, 0)
	if c, n, ok := p.Next(100); !ok || c != 0 || n != 700 || p.Deadline() != Never {
		t.Fatalf("Next = %d, %d, %v, then due at %d: want 700 bytes for 0, and nothing", c, n, ok, p.Deadline())
	}
	p.Want(200, 0, 0, 700, 700)
	p.Want(200, 1, 10, 0, 0)
	if p.Deadline() != 900 {
		t.Fatalf("the next grant is due at %d, want 900: 700 bytes are on their way", p.Deadline())
	}
	if _, _, ok := p.Next(899); ok {
		t.Fatal("a grant at 899, want none before 900")
	}
}

// TestPacerSlack makes up for a grant that nobody fetched in time, as far as it may, and not for
// time in which nobody asked.
func TestPacerSlack(t *testing.T) {
	p := NewPacer(1e9, 1000, 2000)
	p.Join(0)
	p.Want(1_000_000, 0, 1<<20, 0, 0)
	count := func(now int64) (n int) {
		for _, _, ok := p.Next(now); ok; _, _, ok = p.Next(now) {
			n++
		}
		return n
	}
	if n := count(1_000_000); n != 1 {
		t.Fatalf("%d grants at first, want 1: nobody asked before", n)
	}
	if n := count(1_050_000); n != 3 {
		t.Fatalf("%d grants after 50 us, want 3: one that is due and 2 us of slack", n)
	}
}

// TestPacerLeave lets connections ask, leave and come back at random: each is in the ring once
// at the most, and gets what it asked for, no more.
func TestPacerLeave(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := NewPacer(1e9, 100, 0)
		var left [40]uint64
		now, joined := int64(0), 0
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			now += rapid.Int64Range(0, 300).Draw(rt, "wait")
			conn := rapid.IntRange(0, len(left)-1).Draw(rt, "conn")
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				if p.Leave(conn); conn < joined {
					left[conn] = 0
				}
			case 1:
				p.Join(conn)
				joined = max(joined, conn+1)
				left[conn] = rapid.Uint64Range(0, 500).Draw(rt, "bytes")
				p.Want(now, conn, left[conn], 0, 0)
			default:
				if c, n, ok := p.Next(now); ok {
					if n <= 0 || uint64(n) > left[c] {
						rt.Fatalf("%d bytes for %d, which asks for %d", n, c, left[c])
					}
					left[c] -= uint64(n)
				}
			}
		}
		for p.Deadline() != Never {
			now = max(now, p.Deadline())
			if c, n, ok := p.Next(now); ok {
				left[c] -= uint64(n)
			}
		}
		if left != [40]uint64{} {
			rt.Fatalf("%v bytes were never granted, want none", left)
		}
	})
}
