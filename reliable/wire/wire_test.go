package wire_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"ibverbx/reliable/wire"
)

// bytesOf reads hex with spaces in it.
func bytesOf(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatalf("%q is not hex: %v", s, err)
	}
	return b
}

func TestImm(t *testing.T) {
	for _, tt := range []struct {
		imm  wire.Imm
		want uint32
	}{
		{wire.Imm{}, 0},
		{wire.Imm{Kind: wire.KindData, AckReq: true, CSN: 0xffff}, 0x1000ffff},
		{wire.Imm{Kind: wire.KindChunk, Flow: 0xabc, CSN: 0x1234}, 0x4abc1234},
		{wire.Imm{Kind: wire.KindControl, Flow: wire.MaxFlow}, 0x8fff0000},
	} {
		if got := tt.imm.Encode(); got != tt.want {
			t.Errorf("%+v is %#08x, want %#08x", tt.imm, got, tt.want)
		}
		if got, err := wire.DecodeImm(tt.want); err != nil || got != tt.imm {
			t.Errorf("DecodeImm(%#08x) = %+v, %v, want %+v", tt.want, got, err, tt.imm)
		}
	}
	for _, bad := range []uint32{0xc0000000, 0x20000000, 0x80000001, 0x90000000} {
		if got, err := wire.DecodeImm(bad); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("DecodeImm(%#08x) = %+v, %v, want ErrMalformed", bad, got, err)
		}
	}
}

var headers = []struct {
	name   string
	header wire.Header
	want   string
}{
	{
		"write",
		wire.Header{Op: wire.OpWrite, Xmit: 3, OrigPath: 0x0102, OrigEpoch: 0x0304, Addr: 0x1122334455667788, RKey: 0x99aabbcc, Len: 2},
		"01 01 00 03 0102 0304 1122334455667788 99aabbcc 00000002",
	},
	{
		"eager",
		wire.Header{Op: wire.OpEager, Flags: wire.FlagLast | wire.FlagImm | wire.FlagSolicited, OrigPath: 7, Message: 0x01020304, Offset: 0x8000, Imm: 0xfedcba98, Len: 2},
		"01 02 07 00 0007 0000 01020304 00008000 fedcba98 00000002",
	},
	{
		"notify",
		wire.Header{Op: wire.OpNotify, Flags: wire.FlagLast, Xmit: 1, Message: 5, Offset: 1 << 20},
		"01 03 01 01 0000 0000 00000005 00100000 00000000 00000000",
	},
}

func TestHeader(t *testing.T) {
	for _, tt := range headers {
		b := make([]byte, wire.HeaderLen, 64)
		tt.header.Put(b)
		if want := bytesOf(t, tt.want); string(b) != string(want) {
			t.Errorf("%s is %x, want %x", tt.name, b, want)
		}
		b = append(b, make([]byte, tt.header.Len)...)
		if got, err := wire.DecodeHeader(b); err != nil || got != tt.header {
			t.Errorf("%s comes back as %+v, %v, want %+v", tt.name, got, err, tt.header)
		}
	}
}

func TestHeaderRefused(t *testing.T) {
	for _, tt := range []struct{ name, bytes string }{
		{"empty", ""},
		{"short", "01 01 00 03 0102 0304 1122334455667788 99aabbcc 000000"},
		{"version", "02 01 00 03 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"op 0", "01 00 00 03 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"op 4", "01 04 00 03 0102 0304 1122334455667788 00000000 00000000"},
		{"flags", "01 02 08 00 0007 0000 01020304 00008000 00000000 00000000"},
		{"too few bytes", "01 01 00 03 0102 0304 1122334455667788 99aabbcc 00000002 00"},
		{"too many bytes", "01 01 00 03 0102 0304 1122334455667788 99aabbcc 00000000 00"},
		{"a first transmission", "01 01 00 00 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"write with flags", "01 01 01 01 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"notify with bytes", "01 03 01 01 0000 0000 00000005 00100000 00000000 00000001 00"},
		{"notify that is not last", "01 03 00 01 0000 0000 00000005 00100000 00000000 00000000"},
		{"end beyond 32 bits", "01 02 00 00 0000 0000 00000005 ffffffff 00000000 00000001 00"},
		{"immediate without flag", "01 02 01 00 0000 0000 00000005 00000000 00000001 00000000"},
	} {
		if h, err := wire.DecodeHeader(bytesOf(t, tt.bytes)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: DecodeHeader = %+v, %v, want ErrMalformed", tt.name, h, err)
		}
	}
}

var records = []struct {
	name   string
	record wire.Record
	want   string
}{
	{
		"ack",
		wire.Record{
			Type: wire.Ack, Flags: wire.AckDup | wire.AckEcho | wire.AckNonce, Flow: 0x123, Cum: 0xfffe, Window: 0x100,
			EchoCSN: 0x1234, EchoXmit: 2, RxDelay: 1000, RecvLimit: 7, Nonce: 9, Words: 2, Bitmap: [4]uint64{1, 1 << 63},
		},
		"01 07 0123 fffe 0100 1234 02 02 000003e8 00000007 00000009 0000000000000001 8000000000000000",
	},
	{"bare ack", wire.Record{Type: wire.Ack, Cum: 1, Window: 4}, "01 00 0000 0001 0004 0000 00 00 00000000 00000000 00000000"},
	{"solicit", wire.Record{Type: wire.Solicit, Nonce: 0x01020304}, "02 00 0000 01020304"},
	{
		"offer",
		wire.Record{Type: wire.Offer, Flags: wire.OfferHave, Path: 15, Epoch: 2, QPN: 0xabcdef, PSN: 0x123456},
		"03 01 000f 0002 0000 00abcdef 00123456",
	},
	{"ping", wire.Record{Type: wire.Ping, Path: 255, Nonce: 1}, "04 00 00ff 00000001"},
	{"pong", wire.Record{Type: wire.Pong, Path: 255, Nonce: 1}, "05 00 00ff 00000001"},
	{"fault", wire.Record{Type: wire.Fault, Status: 10, CSN: 0x8001}, "06 0a 0000 8001 0000"},
	{"credit request", wire.Record{Type: wire.CreditRequest, Bytes: 1 << 40}, "07 00 0000 00000000 0000010000000000"},
	{"credit", wire.Record{Type: wire.Credit, Flow: 1, Bytes: 1 << 16}, "08 00 0001 00000000 0000000000010000"},
}

// packet returns a control packet with the given records.
func packet(tb testing.TB, conn uint32, rs ...wire.Record) []byte {
	tb.Helper()
	b := wire.StartControl(nil, conn)
	for i := range rs {
		var ok bool
		if b, ok = wire.AddRecord(b, &rs[i]); !ok {
			tb.Fatalf("record %d does not fit, want it to", i)
		}
	}
	return b
}

func TestControl(t *testing.T) {
	all := []wire.Record{}
	for _, tt := range records {
		b := packet(t, 0xdeadbeef, tt.record)
		if want := bytesOf(t, "01 01 0000 deadbeef"+tt.want); string(b) != string(want) {
			t.Errorf("%s is %x, want %x", tt.name, b, want)
		}
		all = append(all, tt.record)
	}
	var r wire.Reader
	if err := r.Open(packet(t, 5, all...)); err != nil || r.Conn != 5 {
		t.Fatalf("Open = %v for connection %d, want none and 5", err, r.Conn)
	}
	for i, want := range all {
		var got wire.Record
		if !r.Next(&got) || got != want {
			t.Fatalf("record %d is %+v, want %+v", i, got, want)
		}
	}
	if r.Next(&wire.Record{}) {
		t.Fatalf("Next = true after %d records, want false", len(all))
	}
}

// TestControlFull fills packets: the bound holds, and the packet stays good.
func TestControlFull(t *testing.T) {
	for _, tt := range []struct {
		record wire.Record
		want   int
	}{
		{wire.Record{Type: wire.Solicit}, 127},
		{wire.Record{Type: wire.Ack, Words: 4, Bitmap: [4]uint64{0, 0, 0, 1}}, 18},
	} {
		b, n := wire.StartControl(nil, 1), 0
		for ok := true; ok; n++ {
			b, ok = wire.AddRecord(b, &tt.record)
		}
		if n--; n != tt.want || len(b) > wire.MaxControlLen {
			t.Errorf("%d records in %d bytes, want %d in at most %d", n, len(b), tt.want, wire.MaxControlLen)
		}
		if err := new(wire.Reader).Open(b); err != nil {
			t.Errorf("Open of a full packet = %v, want none", err)
		}
	}
}

func TestControlRefused(t *testing.T) {
	const front = "01 01 0000 00000001"
	for _, tt := range []struct{ name, bytes string }{
		{"empty", ""},
		{"short", "01 01 0000 000000"},
		{"version", "00 01 0000 00000001 02 00 0000 00000000"},
		{"reserved", "01 01 0001 00000001 02 00 0000 00000000"},
		{"no records", "01 00 0000 00000001"},
		{"a record missing", "01 02 0000 00000001 02 00 0000 00000000"},
		{"bytes left", front + "02 00 0000 00000000 00"},
		{"type 0", front + "00 00 0000 00000000"},
		{"type 9", front + "09 00 0000 00000000"},
		{"short record", front + "02 00 0000 000000"},
		{"short ack", front + "01 00 0000 0001 0004 0000 00 00 00000000 00000000 000000"},
		{"ack flags", front + "01 08 0000 0001 0004 0000 00 00 00000000 00000000 00000000"},
		{"ack words", front + "01 00 0000 0001 0004 0000 00 05 00000000 00000000 00000000" + strings.Repeat("ff", 40)},
		{"ack with too few words", front + "01 00 0000 0001 0004 0000 00 01 00000000 00000000 00000000 000000000000ff"},
		{"ack with an empty word", front + "01 00 0000 0001 0004 0000 00 01 00000000 00000000 00000000 0000000000000000"},
		{"ack with an echo", front + "01 00 0000 0001 0004 0001 00 00 00000000 00000000 00000000"},
		{"ack with a nonce", front + "01 00 0000 0001 0004 0000 00 00 00000000 00000000 00000001"},
		{"ack for a flow above the last", front + "01 00 1000 0001 0004 0000 00 00 00000000 00000000 00000000"},
		{"solicit with flags", front + "02 01 0000 00000000"},
		{"ping with flags", front + "04 01 0000 00000000"},
		{"short offer", front + "03 01 000f 0002 0000 00abcdef 001234"},
		{"offer flags", front + "03 02 000f 0002 0000 00abcdef 00123456"},
		{"offer reserved", front + "03 01 000f 0002 0001 00abcdef 00123456"},
		{"offer without QPN", front + "03 01 000f 0002 0000 00000000 00123456"},
		{"offer with a long QPN", front + "03 01 000f 0002 0000 01abcdef 00123456"},
		{"offer with a long PSN", front + "03 01 000f 0002 0000 00abcdef 01123456"},
		{"fault of success", front + "06 00 0000 8001 0000"},
		{"fault reserved", front + "06 0a 0000 8001 0001"},
		{"short credit", front + "08 00 0001 00000000 00000000000100"},
		{"credit reserved", front + "08 00 0001 00000001 0000000000010000"},
	} {
		var r wire.Reader
		if err := r.Open(bytesOf(t, tt.bytes)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: Open = %v, want ErrMalformed", tt.name, err)
		}
		if r.Next(&wire.Record{}) {
			t.Errorf("%s: Next = true, want no record of a bad packet", tt.name)
		}
	}
	if err := new(wire.Reader).Open(make([]byte, wire.MaxControlLen+1)); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("Open of a long packet = %v, want ErrMalformed", err)
	}
}

func TestNoAllocations(t *testing.T) {
	b := make([]byte, 0, wire.MaxControlLen)
	rec := records[0].record
	h := headers[0].header
	var buf [wire.HeaderLen + 2]byte
	if n := testing.AllocsPerRun(100, func() {
		b = wire.StartControl(b[:0], 1)
		b, _ = wire.AddRecord(b, &rec)
		var r wire.Reader
		if r.Open(b) != nil || !r.Next(&rec) {
			t.Fatal("the packet does not come back")
		}
		h.Put(buf[:])
		if _, err := wire.DecodeHeader(buf[:]); err != nil {
			t.Fatalf("DecodeHeader = %v, want none", err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations per packet, want 0", n)
	}
}
