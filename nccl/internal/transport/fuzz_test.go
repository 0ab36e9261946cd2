package transport

import (
	"bytes"
	"net/netip"
	"testing"
)

// FuzzHandle: a handle that decodes encodes to the same bytes, apart from the connector's state.
func FuzzHandle(f *testing.F) {
	b := make([]byte, HandleSize)
	h := handle{port: 4791, conn: connID{1}, key: [32]byte{2}, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}
	h.encode(b)
	f.Add(b)
	f.Add(make([]byte, HandleSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHandle(b)
		if err != nil {
			return
		}
		again := make([]byte, HandleSize)
		h.encode(again)
		n := 56 + 16*len(h.addrs)
		if !bytes.Equal(again[:n], b[:n]) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, h, again)
		}
	})
}

// FuzzGrant: a grant of any bytes encodes to the same bytes.
func FuzzGrant(f *testing.F) {
	f.Add(make([]byte, grantSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < grantSize {
			return
		}
		var g grant
		g.decode(b)
		again := make([]byte, grantSize)
		g.encode(again)
		if !bytes.Equal(again, b[:grantSize]) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b[:grantSize], g, again)
		}
	})
}
