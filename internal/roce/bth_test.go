package roce_test

import (
	"bytes"
	"testing"

	"ibverbx/internal/roce"
)

// TestBTHNext changes each bit of the header behind another one: only AckReq may differ, and the PSN must be the next.
func TestBTHNext(t *testing.T) {
	for _, psn := range []roce.PSN{7, 0xfffffe, 0xffffff} {
		h := roce.Header{Opcode: roce.OpWriteMiddle, PKey: roce.PKeyDefault, DestQPN: 0x123456, PSN: psn, AckReq: true, Fill: 5, HeaderICRC: true}
		b := datagram(roce.OpWriteMiddle, 256)
		h.Encode(b, 256)
		first := bytes.Clone(b)
		h.PSN, h.AckReq = psn.Add(1), false
		h.Encode(b, 256)
		for bit := range 8 * 12 {
			last := roce.BTHOf(first)
			b[bit/8] ^= 1 << (bit % 8)
			ackReq, ok := last.Next(b)
			if want := bit == 8*8+7; ok != want || ackReq != want {
				t.Errorf("PSN %#x, bit %d changed: Next = %v, %v, want both %v", psn, bit, ackReq, ok, want)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
		last := roce.BTHOf(first)
		if ackReq, ok := last.Next(b); ackReq || !ok {
			t.Errorf("PSN %#x: Next = %v, %v, want false, true", psn, ackReq, ok)
		}
		if _, ok := last.Next(b); ok || last != roce.BTHOf(b) {
			t.Errorf("PSN %#x: Next of the same packet again = %v, want false", psn, ok)
		}
		if _, ok := last.Next(b[:15]); ok {
			t.Error("Next of 15 bytes = true, want false")
		}
	}
}

// TestCheckFirst: the guess of the identification does not matter for the result.
func TestCheckFirst(t *testing.T) {
	var e roce.Explainer
	for _, flow := range []roce.Flow{newFlow(t, from4, to4), newFlow(t, from6, to6)} {
		b := datagram(roce.OpWriteMiddle, 256)
		fill(b[12:], 1)
		for _, n := range []int{12, len(b) - 4} {
			for _, guess := range []uint16{0, 8, 9, 0xffff} {
				if n == 12 {
					sealHeaders(flow, b, 0, 9)
				} else {
					flow.Seal(b, 9)
				}
				if id, ok := flow.CheckFirst(b, n, guess, &e); !ok || (id != 9 && !flow.IPv6()) {
					t.Errorf("IPv6 %v, %d bytes, guess %d: CheckFirst = %d, %v, want 9, true", flow.IPv6(), n, guess, id, ok)
				}
				if id, ok := flow.CheckFirst(b, 16, guess, &e); ok {
					t.Errorf("IPv6 %v, 16 bytes, guess %d: CheckFirst = %d, true, want false", flow.IPv6(), guess, id)
				}
				b[3] ^= 1
				if id, ok := flow.CheckFirst(b, n, guess, &e); ok {
					t.Errorf("IPv6 %v, %d bytes, guess %d: CheckFirst of a damaged packet = %d, true, want false", flow.IPv6(), n, guess, id)
				}
				b[3] ^= 1
			}
		}
	}
}
