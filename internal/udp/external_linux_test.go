package udp

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// drawPieces cuts b into pieces, some of them empty.
func drawPieces(t *rapid.T, b []byte) (pieces [][]byte) {
	for n := rapid.IntRange(1, maxPieces).Draw(t, "pieces"); n > 1; n-- {
		k := rapid.IntRange(0, len(b)).Draw(t, "piece")
		pieces = append(pieces, b[:k])
		b = b[k:]
	}
	return append(pieces, b)
}

// TestExternalPayload: datagrams arrive intact and in order, whether their payload is in the batch, external, or in many
// pieces, with and without fill.
func TestExternalPayload(t *testing.T) {
	variants(t, func(t *testing.T, cfg Config) {
		c := open(t, cfg)
		w, r := c.NewWriter(), c.NewReader()
		rapid.Check(t, func(rt *rapid.T) {
			to := NewDest(c.Addr(), rapid.Bool().Draw(rt, "runs"))
			if to.runs && rapid.Bool().Draw(rt, "fills") {
				to.Fill()
			}
			var sent [][]byte
			var fills []int
			for range rapid.IntRange(1, 4).Draw(rt, "groups") {
				size := 4 * rapid.IntRange(4, 1500).Draw(rt, "words")
				head := rapid.IntRange(1, min(size-4, 40)).Draw(rt, "head")
				for range min(rapid.IntRange(1, 20).Draw(rt, "count"), 1+holds(c, size+maxFill)/5) {
					b := pattern(size, len(sent))
					fill := 0
					if rapid.Bool().Draw(rt, "external") {
						var first, last []byte
						first, last, _, fill = w.NextWith(to, 3, head, 4, size+4*rapid.IntRange(0, 12).Draw(rt, "more"), drawPieces(rt, b[head:size-4]))
						copy(first, b)
						copy(last, b[size-4:])
					} else {
						var d []byte
						d, _, fill = w.NextIn(to, 3, size, size)
						copy(d, b)
					}
					sent, fills = append(sent, b), append(fills, fill)
				}
			}
			if dropped := w.Flush(); dropped != 0 {
				rt.Fatalf("Flush = %d dropped, want 0", dropped)
			}
			arrived, _ := got(t, c, r, len(sent))
			for i, b := range sent {
				if want := append(bytes.Clone(b), make([]byte, fills[i])...); !bytes.Equal(arrived[i], want) {
					rt.Fatalf("datagram %d of %d bytes and %d of fill arrived as %d others", i, len(b), fills[i], len(arrived[i]))
				}
			}
		})
	})
}

// TestExternalPayloadBatches: external payloads count for the size of a batch, and their pieces do not overflow it. The
// Writer forgets them when they are sent.
func TestExternalPayloadBatches(t *testing.T) {
	c := open(t, Config{})
	w, r := c.NewWriter(), c.NewReader()
	to := NewDest(c.Addr(), true)
	const head, tail = 28, 4
	for _, tt := range []struct{ size, pieces int }{{4096, 1}, {64, 1}, {64, 16}} {
		payload := pattern(tt.size, 1)
		var pieces [][]byte
		for k := range tt.pieces {
			pieces = append(pieces, payload[k*tt.size/tt.pieces:(k+1)*tt.size/tt.pieces])
		}
		for left := 100; left > 0; {
			n := min(left, holds(c, tt.size))
			for range n {
				first, last, _, _ := w.NextWith(to, 0, head, tail, head+tt.size+tail, pieces)
				copy(first, payload)
				copy(last, payload)
				if b := w.batches[0]; b.used+b.external > batchBytes || b.numPieces >= batchPieces {
					t.Fatalf("a batch with %d bytes and %d pieces, want at most %d and %d", b.used+b.external, b.numPieces, batchBytes, batchPieces)
				}
			}
			if dropped := w.Flush(); dropped != 0 {
				t.Fatalf("Flush = %d dropped, want 0", dropped)
			}
			arrived, _ := got(t, c, r, n)
			for i, b := range arrived {
				if len(b) != head+tt.size+tail || !bytes.Equal(b[head:head+tt.size], payload) {
					t.Fatalf("datagram %d of %d bytes in %d pieces is not what was sent", i, tt.size, tt.pieces)
				}
			}
			left -= n
		}
		for i := range w.batches[0].pieces {
			if w.batches[0].pieces[i].Base != nil {
				t.Fatalf("piece %d is remembered after it was sent, want none", i)
			}
		}
	}
}

// TestExternalPayloadNoAllocations: sending external payloads does not allocate.
func TestExternalPayloadNoAllocations(t *testing.T) {
	c := open(t, Config{})
	w, r := c.NewWriter(), c.NewReader()
	to, payload := NewDest(c.Addr(), true), [][]byte{pattern(2048, 1), pattern(2048, 2)}
	send := func() {
		for range 4 {
			w.NextWith(to, 0, 28, 4, 28+4096+4, payload)
		}
		w.Flush()
		for n := 0; n == 0; {
			if n, _ = r.Read(); n == 0 {
				_ = c.Wait()
			}
		}
	}
	if allocs := testing.AllocsPerRun(100, send); allocs != 0 {
		t.Errorf("%v allocations for four datagrams, want 0", allocs)
	}
}
