package wire_test

import (
	"bytes"
	"testing"

	"ibverbx/reliable/wire"
)

// FuzzControl: every accepted packet encodes to the same bytes, so the encoding is unique.
func FuzzControl(f *testing.F) {
	for _, tt := range records {
		f.Add(packet(f, 1, tt.record))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var r wire.Reader
		if r.Open(b) != nil {
			return
		}
		again := wire.StartControl(nil, r.Conn)
		var rec wire.Record
		for r.Next(&rec) {
			var ok bool
			if again, ok = wire.AddRecord(again, &rec); !ok {
				t.Fatalf("a record of a packet of %d bytes does not fit again", len(b))
			}
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x comes out as %x", b, again)
		}
	})
}

// FuzzHeader does the same for headers.
func FuzzHeader(f *testing.F) {
	for _, tt := range headers {
		b := make([]byte, wire.HeaderLen+int(tt.header.Len))
		tt.header.Put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := wire.DecodeHeader(b)
		if err != nil {
			return
		}
		again := bytes.Clone(b)
		clear(again[:wire.HeaderLen])
		h.Put(again)
		if !bytes.Equal(again[:16], b[:16]) || !bytes.Equal(again[20:], b[20:]) {
			t.Fatalf("%x comes out as %x", b, again)
		}
	})
}

// FuzzFetch does the same for fetches.
func FuzzFetch(f *testing.F) {
	for _, tt := range fetches {
		b := make([]byte, wire.FetchLen)
		tt.fetch.Put(b)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fetch, err := wire.DecodeFetch(b)
		if err != nil {
			return
		}
		again := make([]byte, wire.FetchLen)
		fetch.Put(again)
		if !bytes.Equal(again, b) {
			t.Fatalf("%x comes out as %x", b, again)
		}
	})
}

// FuzzImm: every immediate is refused or survives a round trip.
func FuzzImm(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(0x4abc1234))
	f.Fuzz(func(t *testing.T, v uint32) {
		if imm, err := wire.DecodeImm(v); err == nil && imm.Encode() != v {
			t.Fatalf("%#08x comes out as %#08x", v, imm.Encode())
		}
	})
}
