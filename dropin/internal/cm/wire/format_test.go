package wire

import (
	"bytes"
	"testing"

	"ibverbx/dropin/internal/cm"
	"ibverbx/verbs"
)

func request() *cm.Message {
	m := &cm.Message{Kind: cm.REQ, Space: cm.SpaceTCP, Port: 7471, Side: cm.Side{
		GID: verbs.GID{10: 0xff, 11: 0xff, 12: 127, 15: 1}, LID: 5000, MTU: verbs.MTU1024, PSN: 0xabcdef, Timeout: 16,
		Param: cm.Param{QPN: 0x11, ResponderResources: 1, InitiatorDepth: 2, FlowControl: 3, Retry: 4, RNRRetry: 5, SRQ: 6},
	}}
	m.Side.Param.Private.Len = 3
	copy(m.Side.Param.Private.Data[:], "abc")
	return m
}

func TestRecord(t *testing.T) {
	reject := &cm.Message{Kind: cm.REJ, Reason: 28}
	reject.Side.Param.Private = request().Side.Param.Private
	datagrams := request()
	datagrams.Kind, datagrams.Space, datagrams.Side.Param.QKey = cm.REP, cm.SpaceUDP, 0x81234567
	for _, m := range []*cm.Message{request(), datagrams, reject, {Kind: cm.RTU}, {Kind: cm.DREQ}, {Kind: cm.DREP}} {
		b := encode(m)
		got, err := decode(b)
		if err != nil || got != *m || len(b) != recordSize {
			t.Errorf("decode of %d bytes = %+v, %v, want %+v", len(b), got, err, m)
		}
	}
}

// TestBadRecords: decoding fails for each of the changed bytes below.
func TestBadRecords(t *testing.T) {
	for _, at := range []struct {
		byte  int
		value byte
	}{{0, 'X'}, {4, 2}, {5, 0}, {5, 7}, {5, byte(cm.RTU)}, {30, 0}, {30, 6}, {31, 32}, {32, 1}, {36, 1}, {43, 8}, {44, 8}, {46, 197}, {46, 2}, {47, 1}, {248, 1}, {255, 1}} {
		b := encode(request())
		b[at.byte] = at.value
		if m, err := decode(b); err == nil {
			t.Errorf("decode with %d at %d = %+v, want an error", at.value, at.byte, m)
		}
	}
	for _, b := range [][]byte{nil, encode(request())[:recordSize-1], append(encode(request()), 0)} {
		if _, err := decode(b); err == nil {
			t.Errorf("decode of %d bytes succeeded", len(b))
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(encode(request()))
	f.Add(encode(&cm.Message{Kind: cm.REJ, Reason: 8}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err == nil && !bytes.Equal(encode(&m), b) {
			t.Errorf("decode accepted a record that encode does not write: %x", b)
		}
	})
}

func FuzzDatagram(f *testing.F) {
	f.Add(encodeDatagram(queryKind, 1, 0))
	f.Add(encodeDatagram(responseKind, 2, 5000))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []uint8{queryKind, responseKind} {
			if nonce, port, err := decodeDatagram(b, kind); err == nil && !bytes.Equal(encodeDatagram(kind, nonce, port), b) {
				t.Errorf("decodeDatagram accepted %x", b)
			}
		}
	})
}
