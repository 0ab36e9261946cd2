package shm

import (
	"bytes"
	"testing"
)

// TestLine: a line is read as it was written, with the bytes of a SEND inside it or behind it.
func TestLine(t *testing.T) {
	for _, want := range []Line{
		{Flags: LineImm, QPN: 0xabcdef, PSN: 0xffffff, Imm: 7, Length: 1 << 31, Key: 0x12345678, Addr: 1<<63 | 5},
		{Flags: LineImm | LineSolicited},
		{Flags: LineSend, QPN: 1, Length: LineBytes},
		{Flags: LineSend | LineImm | LineSolicited, PSN: 1, Imm: 1<<32 - 1, Length: LineBytes + 1},
		{Flags: LineSend, Length: MaxPayload},
		{Flags: LineSend},
	} {
		var header [Header]byte
		header[Header-1] = 0xee
		sent := make([]byte, want.Payload())
		inside := want.Encode(header[:])
		fill(sent, 3)
		fill(inside, 3)
		var got Line
		b, ok := got.Decode(&header, sent)
		if !ok || got != want || header[Header-1] != 0xee {
			t.Errorf("Decode = %+v, %v, want %+v and an untouched last byte", got, ok, want)
		}
		if n := len(inside) + len(sent); want.Flags&LineSend != 0 && n != int(want.Length) || len(b) != n {
			t.Errorf("%+v has room for %d bytes, and Decode returns %d", want, n, len(b))
		}
		if !bytes.Equal(b, append(inside, sent...)) {
			t.Errorf("%+v: the bytes have changed", want)
		}
		for name, payload := range map[string][]byte{"longer": make([]byte, len(sent)+1), "shorter": make([]byte, max(len(sent)-1, 0))} {
			if _, ok := got.Decode(&header, payload); ok && len(payload) != len(sent) {
				t.Errorf("%+v with a %s payload is a line", want, name)
			}
		}
	}
}

// TestLineRefused: Decode accepts only what Encode can have written.
func TestLineRefused(t *testing.T) {
	for name, m := range map[string]Line{
		"an unknown flag":                {Flags: LineImm | 8},
		"a WRITE without an immediate":   {},
		"a PSN of 25 bits":               {Flags: LineImm, PSN: 1 << 24},
		"a SEND longer than the payload": {Flags: LineSend, Length: MaxPayload + 1},
	} {
		var header [Header]byte
		m.Encode(header[:])
		var got Line
		if _, ok := got.Decode(&header, make([]byte, m.Payload())); ok {
			t.Errorf("%s is a line: %+v", name, got)
		}
	}
}

// FuzzLine: whatever a peer writes, the bytes of a SEND are within the entry, and a line survives Encode.
func FuzzLine(f *testing.F) {
	f.Add([]byte{1, 2, 3, byte(LineSend)}, 0)
	f.Add(bytes.Repeat([]byte{byte(LineSend)}, Header), 1<<10)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var header, again [Header]byte
		copy(header[:], b)
		payload := make([]byte, uint(n)%(MaxPayload+1))
		var m, back Line
		data, ok := m.Decode(&header, payload)
		if !ok {
			return
		}
		if m.Flags&LineSend != 0 && len(data) != int(m.Length) {
			t.Fatalf("%d bytes of a SEND of %d", len(data), m.Length)
		}
		m.Encode(again[:])
		if _, ok := back.Decode(&again, payload); !ok || back != m {
			t.Errorf("Decode = %+v, %v after Encode, want %+v", back, ok, m)
		}
	})
}
