package node

import (
	"errors"
	"testing"

	"ibverbx/bootstrap"
)

var messages = []message{
	{kind: kindHello, lowest: 1, highest: 1, features: 0x80000001, session: 1<<63 + 5, resume: 7},
	{kind: kindWelcome, highest: 1, features: 3, session: 9},
	{kind: kindRefuse, code: refusedLimit},
	{kind: kindPark},
	{kind: kindParked},
	{kind: kindBusy},
	{kind: kindWake},
}

func TestMessagesOnTheWire(t *testing.T) {
	for _, m := range messages {
		b := m.encode()
		got, err := decode(b)
		if err != nil || got != m {
			t.Errorf("decode(%x) = %+v, %v, want %+v", b, got, err, m)
		}
		for n := range b {
			if _, err := decode(b[:n]); !errors.Is(err, bootstrap.ErrProtocol) {
				t.Errorf("decode of %d bytes of %x: got %v, want bootstrap.ErrProtocol", n, b, err)
			}
		}
		if _, err := decode(append(b, 0)); !errors.Is(err, bootstrap.ErrProtocol) {
			t.Errorf("decode of %x and a byte: got %v, want bootstrap.ErrProtocol", b, err)
		}
	}
	later := message{kind: kindHello, lowest: 1, highest: 2, session: 1}
	if _, err := decode(append(later.encode(), "more fields"...)); err != nil {
		t.Errorf("decode of a hello of a later version: got %v, want no error", err)
	}
	for _, bad := range []message{
		{kind: kindHello, lowest: 0, highest: 1, session: 1},
		{kind: kindHello, lowest: 2, highest: 1, session: 1},
		{kind: kindHello, lowest: 1, highest: 1},
		{kind: kindHello, lowest: 1, highest: 1, session: 4, resume: 4},
		{kind: kindRefuse},
		{kind: kindRefuse, code: refusalEnd},
		{kind: kindEnd},
		{},
	} {
		if _, err := decode(bad.encode()); !errors.Is(err, bootstrap.ErrProtocol) {
			t.Errorf("decode of %+v: got %v, want bootstrap.ErrProtocol", bad, err)
		}
	}
}

// FuzzDecode: arbitrary bytes are refused, or are exactly a message.
func FuzzDecode(f *testing.F) {
	for _, m := range messages {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		if got := m.encode(); string(got) != string(b) && (m.kind != kindHello || m.highest <= version) {
			t.Errorf("decode(%x) = %+v, which is %x", b, m, got)
		}
	})
}
