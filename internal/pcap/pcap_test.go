package pcap_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"ibverbx/internal/pcap"
)

var (
	from4 = netip.MustParseAddrPort("10.0.0.1:49152")
	to4   = netip.MustParseAddrPort("10.0.0.2:4791")
	from6 = netip.MustParseAddrPort("[fd00::1]:49152")
	to6   = netip.MustParseAddrPort("[fd00::2]:4791")
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got the error %v, want none", err)
	}
}

// TestMarks: the IP headers have the traffic class and the hop limit of the packet.
func TestMarks(t *testing.T) {
	var out bytes.Buffer
	w, err := pcap.New(&out, pcap.Config{})
	must(t, err)
	w.Packet(0, from4, to4, 0, 0x68, 9)
	w.Packet(0, from6, to6, 0, 0x6a, 255)
	must(t, w.Close())
	got := out.Bytes()[24:]
	if v4 := got[16:]; v4[0] != 0x45 || v4[1] != 0x68 || v4[8] != 9 {
		t.Errorf("the IPv4 header is %x, want TOS 68 and TTL 9", v4[:20])
	}
	if v6 := got[16+28+16:]; v6[0] != 0x66 || v6[1] != 0xa0 || v6[7] != 255 {
		t.Errorf("the IPv6 header is %x, want traffic class 6a and hop limit 255", v6[:40])
	}
}

// TestBytes checks a file of two packets, computed by hand.
func TestBytes(t *testing.T) {
	var out bytes.Buffer
	w, err := pcap.New(&out, pcap.Config{})
	must(t, err)
	w.Packet(1_000_000_002, from4, to4, 0x1234, 0, 64, []byte{1, 2}, nil, []byte{3})
	w.Packet(3_000_000_000, from6, to6, 0x1234, 0, 64, []byte{1, 2, 3})
	must(t, w.Close())
	want := "4d3cb2a1" + "02000400" + "00000000" + "00000000" + "ffff0000" + "65000000" +
		"01000000" + "02000000" + "1f000000" + "1f000000" +
		"4500001f" + "12344000" + "40111498" + "0a000001" + "0a000002" +
		"c00012b7" + "000b0000" + "010203" +
		"03000000" + "00000000" + "33000000" + "33000000" +
		"60000000" + "000b1140" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" +
		"c00012b7" + "000b2f1a" + "010203"
	if got := hex.EncodeToString(out.Bytes()); got != want {
		t.Errorf("the file is\n%s, want\n%s", got, want)
	}
}

// TestChecksum: over IPv6 no packet has a UDP checksum of 0, which would mean none.
func TestChecksum(t *testing.T) {
	var out bytes.Buffer
	w, err := pcap.New(&out, pcap.Config{})
	must(t, err)
	for v := range 1 << 16 {
		w.Packet(0, from6, to6, 0, 0, 64, binary.BigEndian.AppendUint16(nil, uint16(v)))
	}
	must(t, w.Close())
	ones := 0
	for i, p := range records(t, out.Bytes()) {
		switch binary.BigEndian.Uint16(p[46:]) {
		case 0:
			t.Fatalf("packet %d has a checksum of 0, want another", i)
		case 0xffff:
			ones++
		}
	}
	if ones == 0 {
		t.Error("no checksum came out as 0 and was replaced by 0xffff, want one")
	}
}

// records returns the packets of a file.
func records(t *testing.T, file []byte) (packets [][]byte) {
	t.Helper()
	for b := file[24:]; len(b) > 0; {
		if len(b) < 16 || len(b) < 16+int(binary.LittleEndian.Uint32(b[8:])) {
			t.Fatalf("the file ends within a record: %d bytes are left, want a whole one", len(b))
		}
		n := 16 + int(binary.LittleEndian.Uint32(b[8:]))
		packets = append(packets, b[16:n])
		b = b[n:]
	}
	return packets
}

// TestTogether writes from several goroutines through a small buffer to a file. No packet is lost
// or corrupted.
func TestTogether(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out.pcap")
	w, err := pcap.Create(name, pcap.Config{Buffer: 66_000})
	must(t, err)
	const writers, each = 4, 200
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for k := range each {
				w.Packet(int64(k), from4, to4, uint16(i), 0, 64, bytes.Repeat([]byte{byte(i)}, 100+k))
			}
		})
	}
	all.Wait()
	must(t, w.Close())
	must(t, w.Close())
	file, err := os.ReadFile(name)
	must(t, err)
	next := [writers]int{}
	for _, p := range records(t, file) {
		i := int(p[5])
		if want := bytes.Repeat([]byte{byte(i)}, 100+next[i]); !bytes.Equal(p[28:], want) {
			t.Fatalf("writer %d, packet %d: %d bytes, want %d of its own", i, next[i], len(p)-28, len(want))
		}
		next[i]++
	}
	if want := [writers]int{each, each, each, each}; next != want {
		t.Errorf("%v packets of each writer, want %v", next, want)
	}
}

// TestLimit: a full file accepts no more, except smaller packets that still fit.
func TestLimit(t *testing.T) {
	var out bytes.Buffer
	const record = 16 + 28
	w, err := pcap.New(&out, pcap.Config{Limit: 24 + record + 100 + record})
	must(t, err)
	payload := make([]byte, 100)
	w.Packet(0, from4, to4, 0, 0, 64, payload)
	w.Packet(0, from4, to4, 0, 0, 64, payload)
	w.Packet(0, from4, to4, 0, 0, 64)
	w.Packet(0, from4, to4, 0, 0, 64)
	must(t, w.Close())
	if written, dropped := w.Counts(); written != 2 || dropped != 2 {
		t.Errorf("%d written, %d dropped, want 2 and 2", written, dropped)
	}
	if got, want := out.Len(), 24+record+100+record; got != want {
		t.Errorf("the file has %d bytes, want %d", got, want)
	}
}

func TestDropped(t *testing.T) {
	var out bytes.Buffer
	w, err := pcap.New(&out, pcap.Config{})
	must(t, err)
	w.Packet(0, from4, to6, 0, 0, 64)
	w.Packet(0, netip.AddrPort{}, to4, 0, 0, 64)
	w.Packet(-1, from4, to4, 0, 0, 64)
	w.Packet(0, from4, to4, 0, 0, 64, make([]byte, 65_535-27))
	w.Packet(0, from6, to6, 0, 0, 64, make([]byte, 40_000), make([]byte, 40_000))
	w.Packet(0, from4, to4, 0, 0, 64, make([]byte, 65_535-28)) // the maximum length
	must(t, w.Close())
	w.Packet(0, from4, to4, 0, 0, 64)
	if written, dropped := w.Counts(); written != 1 || dropped != 6 {
		t.Errorf("%d written, %d dropped, want 1 and 6", written, dropped)
	}
	if n := len(records(t, out.Bytes())); n != 1 {
		t.Errorf("%d packets in the file, want 1", n)
	}
}

// broken is a file whose writes fail.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestErrors(t *testing.T) {
	full := errors.New("no space")
	w, err := pcap.New(broken{full}, pcap.Config{})
	must(t, err)
	for range 10 {
		w.Packet(0, from4, to4, 0, 0, 64, make([]byte, 60_000))
	}
	if written, dropped := w.Counts(); written != 4 || dropped != 6 {
		t.Errorf("%d written, %d dropped, want 4 in the buffer and 6", written, dropped)
	}
	for range 2 {
		if err := w.Close(); !errors.Is(err, pcap.ErrWrite) || !errors.Is(err, full) {
			t.Errorf("Close = %v, want %v with %v", err, pcap.ErrWrite, full)
		}
	}
	for _, cfg := range []pcap.Config{{Buffer: 1000}, {Buffer: -1}, {Limit: 23}, {Limit: -1}} {
		if _, err := pcap.New(&bytes.Buffer{}, cfg); !errors.Is(err, pcap.ErrConfig) {
			t.Errorf("New(%+v) = %v, want %v", cfg, err, pcap.ErrConfig)
		}
		name := filepath.Join(t.TempDir(), "out.pcap")
		if _, err := pcap.Create(name, cfg); !errors.Is(err, pcap.ErrConfig) {
			t.Errorf("Create(%+v) = %v, want %v", cfg, err, pcap.ErrConfig)
		}
		if _, err := os.Stat(name); err == nil {
			t.Errorf("Create(%+v) made a file, want none", cfg)
		}
	}
	if _, err := pcap.Create(filepath.Join(t.TempDir(), "no", "such", "place"), pcap.Config{}); !errors.Is(err, pcap.ErrWrite) {
		t.Errorf("Create in a directory that is not there = %v, want %v", err, pcap.ErrWrite)
	}
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w, err := pcap.New(nowhere{}, pcap.Config{})
	must(t, err)
	head, payload := make([]byte, 28), make([]byte, 4100)
	if got := testing.AllocsPerRun(1000, func() {
		w.Packet(1, from4, to4, 0, 0, 64, head, payload)
		w.Packet(1, from6, to6, 0, 0, 64, head, payload)
	}); got != 0 {
		t.Errorf("%v allocations for two packets, want 0", got)
	}
}
