package roce_test

import (
	"bytes"
	"fmt"
	"testing"

	"ibverbx/internal/roce"
)

// datagram returns a datagram with the given opcode and payload length.
func datagram(opcode uint8, payload int) []byte {
	b := make([]byte, roce.DatagramLen(opcode, payload))
	h := roce.Header{Opcode: opcode, PKey: roce.PKeyDefault, DestQPN: 17}
	h.Encode(b, payload)
	return b
}

// TestDecodeRefuses corrupts valid datagrams.
func TestDecodeRefuses(t *testing.T) {
	with := func(b []byte, at int, v byte) []byte {
		b[at] = v
		return b
	}
	tests := []struct {
		name string
		b    []byte
		want roce.Reason
	}{
		{"empty", nil, roce.BadLength},
		{"shorter than a BTH", make([]byte, 12), roce.BadLength},
		{"no multiple of four", append(datagram(roce.OpSendOnly, 8), 0), roce.BadLength},
		{"longer than any", make([]byte, roce.MaxDatagram+4), roce.BadLength},
		{"version 1", with(datagram(roce.OpSendOnly, 8), 1, 1), roce.BadVersion},
		{"RETH cut off", datagram(roce.OpWriteOnly, 0)[:28], roce.BadLength},
		{"ONLY of more than 4096", datagram(roce.OpSendOnly, 4100), roce.BadLength},
		{"LAST of more than 4096", datagram(roce.OpSendLast, 4100), roce.BadLength},
		{"pad longer than the payload", with(datagram(roce.OpSendOnly, 0), 1, 3<<4), roce.BadPad},
		{"ACK with pad", with(datagram(roce.OpAck, 0), 1, 1<<4), roce.BadPad},
		{"ACK with a payload", append(datagram(roce.OpAck, 0), 0, 0, 0, 0), roce.BadLength},
		{"READ request with a payload", append(datagram(roce.OpReadRequest, 0), 0, 0, 0, 0), roce.BadLength},
		{"CNP with more", append(datagram(roce.CNP, 0), 0, 0, 0, 0), roce.BadLength},
		{"CNP with less", datagram(roce.CNP, 0)[:28], roce.BadLength},
		{"FIRST of no MTU", datagram(roce.OpSendFirst, 260), roce.BadLength},
		{"FIRST of a small MTU", datagram(roce.OpSendFirst, 128), roce.BadLength},
		{"MIDDLE with nothing", datagram(roce.OpWriteMiddle, 0), roce.BadLength},
		{"MIDDLE with pad", with(datagram(roce.OpWriteMiddle, 256), 1, 1<<4), roce.BadPad},
		{"LAST with nothing", datagram(roce.OpSendLast, 0), roce.BadLength},
		{"LAST of READ with nothing", datagram(roce.OpReadResponseLast, 0), roce.BadLength},
		{"reserved syndrome", with(datagram(roce.OpAck, 0), 12, 0x40), roce.BadSyndrome},
		{"reserved NAK code", with(datagram(roce.OpAck, 0), 12, 0x65), roce.BadSyndrome},
		{"RNR in a READ response", with(datagram(roce.OpReadResponseOnly, 8), 12, 0x21), roce.BadSyndrome},
		{"NAK in an atomic response", with(datagram(roce.OpAtomicAck, 0), 12, 0x60), roce.BadSyndrome},
		{"LAST with one byte", datagram(roce.OpSendLast, 1), roce.OK},
		{"ONLY with nothing", datagram(roce.OpSendOnly, 0), roce.OK},
		{"the longest", datagram(roce.OpWriteOnlyImm, 4096), roce.OK},
		{"RNR", with(datagram(roce.OpAck, 0), 12, 0x3f), roce.OK},
		{"last NAK code", with(datagram(roce.OpAck, 0), 12, 0x64), roce.OK},
		{"header ICRC", with(datagram(roce.OpSendOnly, 4), 8, 0x40), roce.OK},
		{"reserved bits", with(with(datagram(roce.OpSendOnly, 4), 4, 0x3f), 8, 0x7f), roce.OK},
		{"CNP", datagram(roce.CNP, 0), roce.Congestion},
	}
	for _, tt := range tests {
		var h roce.Header
		payload, got := h.Decode(tt.b)
		if got != tt.want || (got != roce.OK && payload != nil) {
			t.Errorf("%s: Decode = %d bytes, %v, want %v", tt.name, len(payload), got, tt.want)
		}
	}
}

// TestDecodeOpcodes tries all opcodes: 21 of RC, 12 of UC, 2 of UD, and CNP.
func TestDecodeOpcodes(t *testing.T) {
	counts := map[roce.Reason]int{}
	for op := range 256 {
		var h roce.Header
		b := make([]byte, 512)
		b[0] = byte(op)
		if n := roce.HeaderLen(byte(op)); n > 0 {
			b = b[:n+4]
		}
		_, r := h.Decode(b)
		counts[r]++
		if wrote := h.Encode(make([]byte, roce.MaxHeader), 0); r == roce.BadOpcode && wrote > 0 && h.Opcode == byte(op) {
			t.Errorf("opcode %#x: Encode = %d, want 0", op, wrote)
		}
	}
	// FIRST, MIDDLE and LAST require a payload.
	want := map[roce.Reason]int{roce.OK: 10 + 4 + 2, roce.BadLength: 19, roce.Congestion: 1, roce.BadOpcode: 220}
	if fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("all opcodes without a payload: %v, want %v", counts, want)
	}
}

func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := range roce.NumReasons + 1 {
		if s := r.String(); s == "" || seen[s] {
			t.Errorf("Reason(%d) = %q, want words of its own", r, s)
		} else {
			seen[s] = true
		}
	}
}

func TestPKeysMatch(t *testing.T) {
	tests := []struct {
		a, b uint16
		want bool
	}{
		{0xffff, 0xffff, true},
		{0xffff, 0x7fff, true},
		{0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false}, // two limited members
		{0x8000, 0x8000, false}, // the invalid key
		{0x8001, 0x8002, false},
		{0x8001, 0x0001, true},
	}
	for _, tt := range tests {
		if got := roce.PKeysMatch(tt.a, tt.b); got != tt.want {
			t.Errorf("PKeysMatch(%#x, %#x) = %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

// FuzzDecode: Decode never panics, and accepted datagrams are encoded to the same bytes, except
// reserved bits.
func FuzzDecode(f *testing.F) {
	for _, g := range kernelPackets(f) {
		f.Add(g.datagram)
	}
	f.Add(datagram(roce.CNP, 0))
	nak := datagram(roce.OpAck, 0)
	nak[12] = 0xe0
	f.Add(nak)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h roce.Header
		if packet := roce.Trim(b); len(packet) > len(b) || len(b)-len(packet) > roce.MaxFill {
			t.Fatalf("Trim of %d bytes: %d, want at most %d less", len(b), len(packet), roce.MaxFill)
		}
		payload, r := h.Decode(b)
		if r != roce.OK && r != roce.Congestion {
			if payload != nil {
				t.Fatalf("%v with a payload of %d bytes, want none", r, len(payload))
			}
			return
		}
		if got := roce.DatagramLen(h.Opcode, len(payload)); got != len(b) {
			t.Fatalf("DatagramLen = %d, want %d", got, len(b))
		}
		headers := make([]byte, roce.HeaderLen(h.Opcode))
		h.Encode(headers, len(payload))
		want := append([]byte(nil), b[:len(headers)]...)
		want[4] &= 0xc0
		want[8] &= 0xc0
		if h.Opcode&roce.TransportMask == roce.UD {
			want[16] = 0
		}
		if h.Opcode == roce.CNP {
			clear(want[12:])
		}
		switch h.Opcode {
		case roce.OpReadResponseFirst, roce.OpReadResponseLast, roce.OpReadResponseOnly, roce.OpAck, roce.OpAtomicAck:
			want[12] &= 0x7f
		}
		if !bytes.Equal(headers, want) {
			t.Fatalf("encoded again: %x, want %x", headers, want)
		}
		if !bytes.Equal(payload, b[len(headers):len(headers)+len(payload)]) {
			t.Fatalf("the payload is not what follows the headers")
		}
	})
}

// TestTrim: the fill is removed; a datagram shorter than its fill becomes empty.
func TestTrim(t *testing.T) {
	for _, tt := range []struct{ length, fill, want int }{
		{20, 0, 20}, {24, 1, 20}, {20 + roce.MaxFill, roce.MaxFill / 4, 20}, {20, 6, 0}, {20, 5, 0}, {12, 1, 12}, {0, 0, 0},
	} {
		b := make([]byte, tt.length)
		if h := (roce.Header{Opcode: roce.OpAck, FECN: true, BECN: true, Fill: uint8(tt.fill)}); tt.length > 12 {
			h.Encode(b, 0)
		}
		if got := len(roce.Trim(b)); got != tt.want {
			t.Errorf("Trim of %d bytes with %d words of fill: %d bytes, want %d", tt.length, tt.fill, got, tt.want)
		}
	}
}
