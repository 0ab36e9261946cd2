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
		"04 01 00 03 0102 0304 1122334455667788 99aabbcc 00000002",
	},
	{
		"eager",
		wire.Header{Op: wire.OpEager, Flags: wire.FlagLast | wire.FlagImm | wire.FlagSolicited, OrigPath: 7, Message: 0x01020304, Offset: 0x8000, Imm: 0xfedcba98, Len: 2},
		"04 02 07 00 0007 0000 01020304 00008000 fedcba98 00000002",
	},
	{
		"first transmission placed by software",
		wire.Header{Op: wire.OpWrite, Flags: wire.FlagLap, Conn: 0xabcde, Lap: 0x123, Addr: 0x1122334455667788, RKey: 0x99aabbcc, Len: 1},
		"04 01 08 00 abcde123 1122334455667788 99aabbcc 00000001",
	},
	{
		"notify",
		wire.Header{Op: wire.OpNotify, Flags: wire.FlagLast, Xmit: 1, Message: 5, Offset: 1 << 20},
		"04 03 01 01 0000 0000 00000005 00100000 00000000 00000000",
	},
	{
		"fetch",
		wire.Header{Op: wire.OpFetch, Flags: wire.FlagLast, OrigPath: 1, Message: 6, Offset: 1 << 20, Len: wire.FetchLen},
		"04 04 01 00 0001 0000 00000006 00100000 00000000 00000020",
	},
	{
		"answer",
		wire.Header{Op: wire.OpAnswer, Xmit: 2, OrigPath: 1, OrigEpoch: 2, Message: 6, Offset: 0x8000, Len: 3},
		"04 05 00 02 0001 0002 00000006 00008000 00000000 00000003",
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
		{"short", "04 01 00 03 0102 0304 1122334455667788 99aabbcc 000000"},
		{"version", "02 01 00 03 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"op 0", "04 00 00 03 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"op 6", "04 06 00 03 0102 0304 1122334455667788 00000000 00000000"},
		{"flags", "04 02 10 00 0007 0000 01020304 00008000 00000000 00000000"},
		{"too few bytes", "04 01 00 03 0102 0304 1122334455667788 99aabbcc 00000002 00"},
		{"too many bytes", "04 01 00 03 0102 0304 1122334455667788 99aabbcc 00000000 00"},
		{"a first transmission", "04 01 00 00 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"write with flags", "04 01 01 01 0102 0304 1122334455667788 99aabbcc 00000000"},
		{"notify with bytes", "04 03 01 01 0000 0000 00000005 00100000 00000000 00000001 00"},
		{"notify that is not last", "04 03 00 01 0000 0000 00000005 00100000 00000000 00000000"},
		{"end beyond 32 bits", "04 02 00 00 0000 0000 00000005 ffffffff 00000000 00000001 00"},
		{"fetch without bytes", "04 04 01 00 0001 0000 00000006 00100000 00000000 00000000"},
		{"fetch that is not last", "04 04 00 00 0001 0000 00000006 00100000 00000000 00000020" + strings.Repeat("00", 32)},
		{"fetch with an immediate", "04 04 03 00 0001 0000 00000006 00100000 00000001 00000020" + strings.Repeat("00", 32)},
		{"answer that is solicited", "04 05 05 00 0001 0000 00000006 00000000 00000000 00000000"},
		{"answer beyond 32 bits", "04 05 01 00 0001 0000 00000006 ffffffff 00000000 00000001 00"},
		{"immediate without flag", "04 02 01 00 0000 0000 00000005 00000000 00000001 00000000"},
	} {
		if h, err := wire.DecodeHeader(bytesOf(t, tt.bytes)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: DecodeHeader = %+v, %v, want ErrMalformed", tt.name, h, err)
		}
	}
}

var fetches = []struct {
	name  string
	fetch wire.Fetch
	want  string
}{
	{"read", wire.Fetch{Kind: wire.FetchRead, Addr: 0x1122334455667788, RKey: 0x99aabbcc}, "1122334455667788 99aabbcc 01000000 0000000000000000 0000000000000000"},
	{
		"compare and swap",
		wire.Fetch{Kind: wire.FetchSwap, Addr: 8, RKey: 1, CompareAdd: 1 << 63, Swap: 0x0102030405060708},
		"0000000000000008 00000001 02000000 8000000000000000 0102030405060708",
	},
	{"fetch and add", wire.Fetch{Kind: wire.FetchAdd, Addr: 8, RKey: 1, CompareAdd: 3}, "0000000000000008 00000001 03000000 0000000000000003 0000000000000000"},
}

func TestFetch(t *testing.T) {
	for _, tt := range fetches {
		b := make([]byte, wire.FetchLen)
		tt.fetch.Put(b)
		if want := bytesOf(t, tt.want); string(b) != string(want) {
			t.Errorf("%s is %x, want %x", tt.name, b, want)
		}
		if got, err := wire.DecodeFetch(b); err != nil || got != tt.fetch {
			t.Errorf("%s comes back as %+v, %v, want %+v", tt.name, got, err, tt.fetch)
		}
	}
}

func TestFetchRefused(t *testing.T) {
	for _, tt := range []struct{ name, bytes string }{
		{"empty", ""},
		{"short", "0000000000000008 00000001 03000000 0000000000000003 00000000000000"},
		{"long", "0000000000000008 00000001 03000000 0000000000000003 0000000000000000 00"},
		{"kind 0", "0000000000000008 00000001 00000000 0000000000000003 0000000000000000"},
		{"kind 4", "0000000000000008 00000001 04000000 0000000000000003 0000000000000000"},
		{"reserved", "0000000000000008 00000001 03000001 0000000000000003 0000000000000000"},
		{"read with an operand", "0000000000000008 00000001 01000000 0000000000000003 0000000000000000"},
		{"read with another operand", "0000000000000008 00000001 01000000 0000000000000000 0000000000000003"},
		{"add with two operands", "0000000000000008 00000001 03000000 0000000000000003 0000000000000001"},
	} {
		if f, err := wire.DecodeFetch(bytesOf(t, tt.bytes)); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: DecodeFetch = %+v, %v, want ErrMalformed", tt.name, f, err)
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
			Type: wire.Ack, Flags: wire.AckDup | wire.AckEcho | wire.AckNonce | wire.AckShared, Flow: 0x123, Cum: 0xfffe, Window: 0x100,
			EchoCSN: 0x1234, EchoXmit: 2, RxDelay: 1000, RecvLimit: 7, Nonce: 9, Words: 2, Bitmap: [wire.MaxAckWords]uint64{1, 1 << 63},
		},
		"01 0f 0123 0000fffe 0100 02 02 1234 0000 000003e8 00000007 00000009 0000000000000001 8000000000000000",
	},
	{"bare ack", wire.Record{Type: wire.Ack, Cum: 1, Window: 4}, "01 00 0000 00000001 0004 00 00 0000 0000 00000000 00000000 00000000"},
	{"solicit", wire.Record{Type: wire.Solicit, Nonce: 0x01020304, Want: 0x05060708}, "02 00 0000 01020304 05060708"},
	{
		"offer",
		wire.Record{Type: wire.Offer, Flags: wire.OfferHave, Path: 15, Epoch: 2, QPN: 0xabcdef, PSN: 0x123456},
		"03 01 000f 0002 0000 00abcdef 00123456",
	},
	{"ping", wire.Record{Type: wire.Ping, Path: 255, Nonce: 1}, "04 00 00ff 00000001"},
	{"pong", wire.Record{Type: wire.Pong, Path: 255, Nonce: 1}, "05 00 00ff 00000001"},
	{"fault", wire.Record{Type: wire.Fault, Status: 10, CSN: 0x8001}, "06 0a 0000 00008001"},
	{"credit request", wire.Record{Type: wire.CreditRequest, Nonce: 0xfedcba98, Bytes: 1 << 40}, "07 00 0000 fedcba98 0000010000000000"},
	{"credit", wire.Record{Type: wire.Credit, Flow: 1, Nonce: 7, Bytes: 1 << 16}, "08 00 0001 00000007 0000000000010000"},
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
		if want := bytesOf(t, "04 01 0000 deadbeef"+tt.want); string(b) != string(want) {
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

// TestControlFull fills packets: the limit holds, and the packet stays valid.
func TestControlFull(t *testing.T) {
	for _, tt := range []struct {
		record wire.Record
		want   int
	}{
		{wire.Record{Type: wire.Ping}, 127},
		{wire.Record{Type: wire.Ack, Words: 4, Bitmap: [wire.MaxAckWords]uint64{0, 0, 0, 1}}, 16},
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
	const front = "04 01 0000 00000001"
	for _, tt := range []struct{ name, bytes string }{
		{"empty", ""},
		{"short", "04 01 0000 000000"},
		{"version", "02 01 0000 00000001 02 00 0000 00000000 00000000"},
		{"reserved", "04 01 0001 00000001 02 00 0000 00000000 00000000"},
		{"no records", "04 00 0000 00000001"},
		{"a record missing", "04 02 0000 00000001 02 00 0000 00000000 00000000"},
		{"bytes left", front + "02 00 0000 00000000 00000000 00"},
		{"type 0", front + "00 00 0000 00000000"},
		{"type 9", front + "09 00 0000 00000000"},
		{"short record", front + "04 00 0000 000000"},
		{"short solicit", front + "02 00 0000 00000000 000000"},
		{"short ack", front + "01 00 0000 00000001 0004 00 00 0000 0000 00000000 00000000 000000"},
		{"ack flags", front + "01 10 0000 00000001 0004 00 00 0000 0000 00000000 00000000 00000000"},
		{"ack words", front + "01 00 0000 00000001 0004 00 11 0000 0000 00000000 00000000 00000000" + strings.Repeat("ff", 8*17)},
		{"ack with too few words", front + "01 00 0000 00000001 0004 00 01 0000 0000 00000000 00000000 00000000 000000000000ff"},
		{"ack with an empty word", front + "01 00 0000 00000001 0004 00 01 0000 0000 00000000 00000000 00000000 0000000000000000"},
		{"ack with an echo", front + "01 00 0000 00000001 0004 00 00 0001 0000 00000000 00000000 00000000"},
		{"ack with a nonce", front + "01 00 0000 00000001 0004 00 00 0000 0000 00000000 00000000 00000001"},
		{"ack for a flow above the last", front + "01 00 1000 00000001 0004 00 00 0000 0000 00000000 00000000 00000000"},
		{"solicit with flags", front + "02 01 0000 00000000 00000000"},
		{"ping with flags", front + "04 01 0000 00000000"},
		{"short offer", front + "03 01 000f 0002 0000 00abcdef 001234"},
		{"offer flags", front + "03 02 000f 0002 0000 00abcdef 00123456"},
		{"offer reserved", front + "03 01 000f 0002 0001 00abcdef 00123456"},
		{"offer without QPN", front + "03 01 000f 0002 0000 00000000 00123456"},
		{"offer with a long QPN", front + "03 01 000f 0002 0000 01abcdef 00123456"},
		{"offer with a long PSN", front + "03 01 000f 0002 0000 00abcdef 01123456"},
		{"fault of success", front + "06 00 0000 00008001"},
		{"ack reserved", front + "01 00 0000 00000001 0004 00 00 0000 0001 00000000 00000000 00000000"},
		{"short credit", front + "08 00 0001 00000000 00000000000100"},
		{"credit reserved", front + "08 01 0001 00000001 0000000000010000"},
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
	h, f := headers[0].header, fetches[0].fetch
	var buf [wire.HeaderLen + 2]byte
	var body [wire.FetchLen]byte
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
		f.Put(body[:])
		if _, err := wire.DecodeFetch(body[:]); err != nil {
			t.Fatalf("DecodeFetch = %v, want none", err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations per packet, want 0", n)
	}
}
