package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// message has one field of each type.
type message struct {
	a    uint8
	b    uint16
	c    uint32
	d    uint64
	flag bool
	s    string
	raw  [3]byte
	text string
}

const limit = 20

func (m *message) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint16([]byte{m.a}, m.b)
	b = AppendFlag(le.AppendUint64(le.AppendUint32(b, m.c), m.d), m.flag)
	return append(append(AppendString(b, m.s), m.raw[:]...), m.text...)
}

func decode(b []byte) (m message, ok bool) {
	r := NewReader(b)
	m = message{a: r.U8(), b: r.U16(), c: r.U32(), d: r.U64(), flag: r.Flag(), s: r.String(limit)}
	copy(m.raw[:], r.Take(len(m.raw)))
	m.text = r.Text(limit)
	return m, r.End()
}

func TestReader(t *testing.T) {
	want := message{1, 2, 3, 4, true, "any\xff", [3]byte{5, 6, 7}, "text"}
	b := want.encode()
	if got, ok := decode(b); !ok || got != want {
		t.Errorf("decode(%x) = %+v, %v, want %+v", b, got, ok, want)
	}
	for n := range len(b) - len(want.text) {
		if got, ok := decode(b[:n]); ok {
			t.Errorf("decode of %d of %d bytes = %+v, want an error", n, len(b), got)
		}
	}
	for _, bad := range []message{
		{s: "a string longer than limit"},
		{text: "a text that is longer than limit"},
		{text: "no UTF-8 \xff"},
	} {
		if got, ok := decode(bad.encode()); ok {
			t.Errorf("decode(%x) = %+v, want an error", bad.encode(), got)
		}
	}
	b[15] = 2
	if got, ok := decode(b); ok || got.s != "" || got.text != "" {
		t.Errorf("decode with a flag of 2 = %+v, %v, want nothing after the flag", got, ok)
	}
}

// TestSticky checks that no field after an error has a value, and that an error stays.
func TestSticky(t *testing.T) {
	r := NewReader([]byte{1, 2, 3, 4})
	r.U8()
	r.Check(false)
	if got := r.U8(); got != 0 || r.OK() || r.End() || r.Len() != 0 {
		t.Errorf("after an error: U8() = %d, OK %v, End %v, Len %d", got, r.OK(), r.End(), r.Len())
	}
	r.Skip()
	if r.End() {
		t.Error("End() = true after Skip, want the error to stay")
	}
	r = NewReader([]byte{1, 2})
	if r.U8(); r.End() {
		t.Error("End() = true before the last byte")
	}
	if r.Skip(); !r.End() {
		t.Error("End() = false after Skip")
	}
}

func FuzzReader(f *testing.F) {
	f.Add((&message{s: "s", text: "t"}).encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, ok := decode(b); ok && !bytes.Equal(m.encode(), b) {
			t.Errorf("decode(%x) = %+v, which is encoded as %x", b, m, m.encode())
		}
	})
}
