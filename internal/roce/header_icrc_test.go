package roce_test

import (
	"bytes"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/roce"
)

// sealHeaders completes a datagram with an ICRC over its headers.
func sealHeaders(flow roce.Flow, b []byte, pad int, id uint16) {
	n := roce.HeaderLen(b[0])
	flow.Begin(b[:n], len(b), id).FinishHeaders(b[len(b)-4-pad:], pad)
}

// TestHeaderICRC: the ICRC of a packet with HeaderICRC is the CRC of its headers, with the lengths of the whole
// packet; CheckHeaders finds the identification; and Restore returns what a sender without it would have sent.
func TestHeaderICRC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := drawEnds(t)
		id := rapid.Uint16().Draw(t, "id")
		h, length := drawHeader(t)
		flow := newFlow(t, src, dst)
		h.HeaderICRC = false
		full := make([]byte, roce.DatagramLen(h.Opcode, length))
		n := h.Encode(full, length)
		fill(full[n:n+length], rapid.Uint64().Draw(t, "bytes"))
		flow.Seal(full, id)

		h.HeaderICRC = true
		b := bytes.Clone(full)
		h.Encode(b, length)
		sealHeaders(flow, b, roce.Pad(length), id)
		if got, want := roce.Received(b), slowHeaderICRC(src, dst, b, n, id); got != want {
			t.Fatalf("ICRC of %d bytes of headers = %#x, want %#x", n, got, want)
		}
		var e roce.Explainer
		if got, ok := flow.CheckHeaders(b, &e); !ok || (got != id && !flow.IPv6()) {
			t.Fatalf("CheckHeaders = %d, %v, want %d, true", got, ok, id)
		}
		flow.Restore(b, id)
		if !bytes.Equal(b, full) {
			t.Fatalf("restored:\n%x, want\n%x", b, full)
		}
	})
}

// slowHeaderICRC is the ICRC over n bytes of headers by its definition: that of a datagram without the payload, but
// with its lengths.
func slowHeaderICRC(src, dst netip.AddrPort, b []byte, n int, id uint16) uint32 {
	short := append(bytes.Clone(b[:n]), 0, 0, 0, 0)
	return slowICRCLen(src, dst, short, len(b), id, 0x40)
}

// TestHeaderICRCCovers changes each bit of a packet. Only changes of the headers are found.
func TestHeaderICRCCovers(t *testing.T) {
	var e roce.Explainer
	for _, op := range []uint8{roce.OpWriteMiddle, roce.OpWriteFirst, roce.OpWriteOnlyImm, roce.UD | roce.OpSendOnly} {
		for _, flow := range []roce.Flow{newFlow(t, from4, to4), newFlow(t, from6, to6)} {
			b := datagram(op, 256)
			h := roce.Header{Opcode: op, PKey: roce.PKeyDefault, HeaderICRC: true}
			n := h.Encode(b, 256)
			sealHeaders(flow, b, 0, 3)
			for bit := range 8 * len(b) {
				b[bit/8] ^= 1 << (bit % 8)
				free := bit/8 == 4 || (bit/8 >= n && bit/8 < len(b)-4)
				// Another opcode may have shorter headers, with which the sum is still wrong.
				if id, ok := flow.CheckHeaders(b, &e); ok != free {
					t.Errorf("opcode %#x, IPv6 %v, bit %d changed: CheckHeaders = %d, %v, want %v", op, flow.IPv6(), bit, id, ok, free)
				}
				b[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

// TestHeaderICRCLengths: CheckHeaders refuses what Decode refuses by its length, and a packet of another length.
func TestHeaderICRCLengths(t *testing.T) {
	var e roce.Explainer
	flow := newFlow(t, from4, to4)
	for _, n := range []int{0, 3, 4, 12, 17, roce.MaxDatagram + 4} {
		if id, ok := flow.CheckHeaders(make([]byte, n), &e); ok {
			t.Errorf("CheckHeaders of %d bytes = %d, true, want false", n, id)
		}
	}
	for _, op := range []uint8{roce.OpCompareSwap, 0xff} {
		b := make([]byte, 20)
		b[0] = op
		if id, ok := flow.CheckHeaders(b, &e); ok {
			t.Errorf("CheckHeaders of 20 bytes with opcode %#x = %d, true, want false", op, id)
		}
	}
	b := datagram(roce.OpSendOnly, 64)
	sealHeaders(flow, b, 0, 0)
	for _, longer := range [][]byte{append(bytes.Clone(b), b[len(b)-4:]...), append(bytes.Clone(b[:len(b)-8]), b[len(b)-4:]...)} {
		if id, ok := flow.CheckHeaders(longer, &e); ok {
			t.Errorf("CheckHeaders of a packet of %d bytes with the sum for %d = %d, true, want false", len(longer), len(b), id)
		}
	}
}

// TestHeaderICRCIsNotFull: Check refuses an ICRC over the headers, and CheckHeaders one over everything.
func TestHeaderICRCIsNotFull(t *testing.T) {
	var e roce.Explainer
	flow, b := newFlow(t, from4, to4), datagram(roce.OpWriteOnly, 64)
	fill(b[28:92], 1)
	sealHeaders(flow, b, 0, 0)
	if id, ok := flow.Check(b, &e); ok {
		t.Errorf("Check of a header ICRC = %d, true, want false", id)
	}
	flow.Seal(b, 0)
	if id, ok := flow.CheckHeaders(b, &e); ok {
		t.Errorf("CheckHeaders of a full ICRC = %d, true, want false", id)
	}
}
