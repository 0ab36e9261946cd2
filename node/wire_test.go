package node

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/service"
)

var messages = []message{
	{kind: kindHello, lowest: 1, highest: version, session: 1<<63 + 5, resume: 7},
	{kind: kindHello, lowest: version, highest: 9, session: 5, services: []introduction{
		{service.TransferID, 3, []byte("body")}, {service.StreamID, 1, []byte{}}, {service.IDs - 1, 0xffff, make([]byte, service.MaxHello)},
	}},
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
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("decode(%x) = %+v, %v, want %+v", b, got, err, m)
		}
		for n := range b {
			part, err := decode(b[:n])
			if !errors.Is(err, bootstrap.ErrProtocol) && !bytes.Equal(part.encode(), b[:n]) {
				t.Errorf("decode of %d bytes of %x: got %+v, %v, want bootstrap.ErrProtocol", n, b, part, err)
			}
		}
		if m.kind == kindHello {
			continue
		}
		if got, err := decode(append(b, "a later field"...)); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("decode of %x and a later field: got %+v, %v, want %+v", b, got, err, m)
		}
	}
	for _, bad := range []message{
		{kind: kindHello, lowest: 0, highest: 1, session: 1},
		{kind: kindHello, lowest: 2, highest: 1, session: 1},
		{kind: kindHello, lowest: 1, highest: 1},
		{kind: kindHello, lowest: 1, highest: 1, session: 4, resume: 4},
		{kind: kindRefuse},
		{kind: kindRefuse, code: refusalEnd},
		{kind: kindWelcome1},
		{kind: kindEnd},
		{},
	} {
		if _, err := decode(bad.encode()); !errors.Is(err, bootstrap.ErrProtocol) {
			t.Errorf("decode of %+v: got %v, want bootstrap.ErrProtocol", bad, err)
		}
	}
}

// TestIntroductions: introductions of unknown services and later versions' fields of hellos are
// ignored. Invalid ones are refused.
func TestIntroductions(t *testing.T) {
	known := introduction{service.StreamID, 7, []byte("known")}
	many := make([]byte, service.MaxHello+1)
	for _, c := range []struct {
		name string
		list []introduction
		want int // introductions, -1 if the hello is refused
	}{
		{"one", []introduction{known}, 1},
		{"an unknown service", []introduction{{service.IDs, 0, many}, known, {255, 1, nil}}, 1},
		{"unknown services of one number", []introduction{{200, 1, nil}, {200, 1, nil}}, 0},
		{"later fields of the hello", []introduction{{service.NodeID, 0, many}, {service.NodeID, 1, many}, known}, 1},
		{"a long body", []introduction{{service.StreamID, 1, many}}, -1},
		{"no version", []introduction{{service.StreamID, 0, nil}}, -1},
		{"one service twice", []introduction{known, known}, -1},
	} {
		m, err := decode((&message{kind: kindHello, lowest: 1, highest: version, session: 1, services: c.list}).encode())
		switch {
		case c.want < 0:
			if !errors.Is(err, bootstrap.ErrProtocol) {
				t.Errorf("%s: got %v, want bootstrap.ErrProtocol", c.name, err)
			}
		case err != nil || len(m.services) != c.want || c.want > 0 && !reflect.DeepEqual(m.services[0], known):
			t.Errorf("%s: got %+v, %v, want %d introductions", c.name, m.services, err, c.want)
		}
	}
	other := message{kind: kindHello, lowest: version + 1, highest: version + 1, session: 1}
	if m, err := decode(append(other.encode(), "anything"...)); err != nil || m.services != nil {
		t.Errorf("a hello of another version: got %+v, %v, want its versions", m, err)
	}
}

// FuzzDecode: arbitrary bytes are rejected or decode to a message that encodes to an equivalent one.
func FuzzDecode(f *testing.F) {
	for _, m := range messages {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			return
		}
		again, err := decode(m.encode())
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("decode(%x) = %+v, which becomes %+v, %v", b, m, again, err)
		}
	})
}
