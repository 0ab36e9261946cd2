package pcap_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/pcap"
)

var (
	from4 = netip.MustParseAddrPort("10.0.0.1:49152")
	to4   = netip.MustParseAddrPort("10.0.0.2:4791")
	from6 = netip.MustParseAddrPort("[fd00::1]:49152")
	to6   = netip.MustParseAddrPort("[fd00::2]:4791")
)

// must fails the test if err is not nil.
var must = enginetest.Must

// newWriter returns a Writer with one interface.
func newWriter(t *testing.T, out io.Writer, cfg pcap.Config) (*pcap.Writer, *pcap.Interface) {
	t.Helper()
	w, err := pcap.New(out, cfg)
	must(t, err)
	return w, w.Interface("soft0", "a NIC")
}

// TestMarks: the IP headers have the traffic class and the hop limit of the packet.
func TestMarks(t *testing.T) {
	var out bytes.Buffer
	w, i := newWriter(t, &out, pcap.Config{})
	i.Packet(0, from4, to4, 0, 0x68, 9)
	i.Packet(0, from6, to6, 0, 0x6a, 255)
	must(t, w.Close())
	got := records(t, out.Bytes())
	if v4 := got[0]; v4[0] != 0x45 || v4[1] != 0x68 || v4[8] != 9 {
		t.Errorf("the IPv4 header is %x, want TOS 68 and TTL 9", v4[:20])
	}
	if v6 := got[1]; v6[0] != 0x66 || v6[1] != 0xa0 || v6[7] != 255 {
		t.Errorf("the IPv6 header is %x, want traffic class 6a and hop limit 255", v6[:40])
	}
}

// TestBytes checks a file of two packets, computed by hand.
func TestBytes(t *testing.T) {
	var out bytes.Buffer
	w, err := pcap.New(&out, pcap.Config{Application: "ibverbx"})
	must(t, err)
	i := w.Interface("s0", "")
	i.Packet(0x0102030405060708, from4, to4, 0x1234, 0, 64, []byte{1, 2}, nil, []byte{3})
	i.Packet(3_000_000_000, from6, to6, 0x1234, 0, 64, []byte{1, 2, 3})
	must(t, w.Close())
	want := "0a0d0d0a" + "2c000000" + "4d3c2b1a" + "01000000" + "ffffffffffffffff" +
		"04000700" + "6962766572627800" + "00000000" + "2c000000" +
		"01000000" + "28000000" + "65000000" + "ffff0000" +
		"02000200" + "73300000" + "09000100" + "09000000" + "00000000" + "28000000" +
		"06000000" + "40000000" + "00000000" + "04030201" + "08070605" + "1f000000" + "1f000000" +
		"4500001f" + "12344000" + "40111498" + "0a000001" + "0a000002" +
		"c00012b7" + "000b0000" + "010203" + "00" + "40000000" +
		"06000000" + "54000000" + "00000000" + "00000000" + "005ed0b2" + "33000000" + "33000000" +
		"60000000" + "000b1140" + "fd000000000000000000000000000001" + "fd000000000000000000000000000002" +
		"c00012b7" + "000b2f1a" + "010203" + "00" + "54000000"
	if got := hex.EncodeToString(out.Bytes()); got != want {
		t.Errorf("the file is\n%s, want\n%s", got, want)
	}
}

// TestSnapLen: a packet is truncated after its checksums were computed, and the file records its
// original length.
func TestSnapLen(t *testing.T) {
	var whole, cut bytes.Buffer
	for out, n := range map[*bytes.Buffer]int{&whole: 0, &cut: 61} {
		w, i := newWriter(t, out, pcap.Config{SnapLen: n})
		i.Packet(1, from6, to6, 0, 0, 64, bytes.Repeat([]byte{7}, 1000))
		i.Packet(2, from4, to4, 0, 0, 64, []byte{1})
		must(t, w.Close())
	}
	got, want := records(t, cut.Bytes()), records(t, whole.Bytes())
	if !bytes.Equal(got[0], want[0][:61]) || !bytes.Equal(got[1], want[1]) {
		t.Errorf("with SnapLen 61 the packets are\n%x, want the first cut after 61 bytes:\n%x", got, want)
	}
	if b := cut.Bytes(); binary.LittleEndian.Uint32(b[bytes.Index(b, got[0])-4:]) != 1048 {
		t.Error("the length on the wire of the packet that was cut is not 1048, want all of it")
	}
}

// TestInterfaces: every interface has one block, and packets refer to it.
func TestInterfaces(t *testing.T) {
	var out bytes.Buffer
	w, first := newWriter(t, &out, pcap.Config{})
	second := w.Interface("soft1", "another NIC")
	if again := w.Interface("soft0", "a NIC"); again != first || first == second {
		t.Error("Interface of a known name gives another interface, want the same")
	}
	second.Packet(1, from4, to4, 0, 0, 64)
	first.Packet(2, from4, to4, 0, 0, 64)
	must(t, w.Close())
	var ids []uint32
	described := 0
	for _, b := range blocks(t, out.Bytes()) {
		switch binary.LittleEndian.Uint32(b) {
		case 1:
			described++
		case 6:
			ids = append(ids, binary.LittleEndian.Uint32(b[8:]))
		}
	}
	if described != 2 || !slices.Equal(ids, []uint32{1, 0}) {
		t.Errorf("%d interfaces, packets of %v, want 2 and packets of 1 and 0", described, ids)
	}
}

// TestPause: packets during a pause are neither written nor counted.
func TestPause(t *testing.T) {
	var out bytes.Buffer
	w, i := newWriter(t, &out, pcap.Config{})
	w.Pause(true)
	i.Packet(1, from4, to4, 0, 0, 64, []byte{1})
	w.Pause(false)
	i.Packet(2, from4, to4, 0, 0, 64, []byte{2})
	must(t, w.Close())
	written, dropped := w.Counts()
	if got := records(t, out.Bytes()); written != 1 || dropped != 0 || len(got) != 1 || got[0][28] != 2 {
		t.Errorf("%d written, %d dropped, packets %x, want only the second", written, dropped, got)
	}
}

// TestChecksum: over IPv6 no packet has a UDP checksum of 0, which would disable it.
func TestChecksum(t *testing.T) {
	var out bytes.Buffer
	w, i := newWriter(t, &out, pcap.Config{})
	for v := range 1 << 16 {
		i.Packet(0, from6, to6, 0, 0, 64, binary.BigEndian.AppendUint16(nil, uint16(v)))
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

// blocks returns the blocks of a file.
func blocks(t *testing.T, file []byte) (list [][]byte) {
	t.Helper()
	for b := file; len(b) > 0; {
		if len(b) < 12 {
			t.Fatalf("the file ends within a block: %d bytes are left, want a whole one", len(b))
		}
		n := binary.LittleEndian.Uint32(b[4:])
		if n < 12 || n%4 != 0 || int(n) > len(b) || binary.LittleEndian.Uint32(b[n-4:]) != n {
			t.Fatalf("a block says %d bytes at its head, of %d that are left, want the same at its end", n, len(b))
		}
		list = append(list, b[:n])
		b = b[n:]
	}
	return list
}

// records returns the packets in a file.
func records(t *testing.T, file []byte) (packets [][]byte) {
	t.Helper()
	for _, b := range blocks(t, file) {
		if binary.LittleEndian.Uint32(b) == 6 {
			packets = append(packets, b[28:28+binary.LittleEndian.Uint32(b[20:])])
		}
	}
	return packets
}

// TestTogether writes from several goroutines through a small buffer to a file. No packet is lost
// or corrupted.
func TestTogether(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out.pcapng")
	w, err := pcap.Create(name, pcap.Config{Buffer: 66_000})
	must(t, err)
	const writers, each = 4, 200
	var all sync.WaitGroup
	nic := w.Interface("soft0", "")
	for i := range writers {
		all.Go(func() {
			for k := range each {
				nic.Packet(int64(k), from4, to4, uint16(i), 0, 64, bytes.Repeat([]byte{byte(i)}, 100+k))
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

// TestLimit: a full file only accepts smaller packets that still fit.
func TestLimit(t *testing.T) {
	var head bytes.Buffer
	w, _ := newWriter(t, &head, pcap.Config{})
	must(t, w.Close())
	var out bytes.Buffer
	const record = 32 + 28
	limit := head.Len() + 2*(record+1000) + record
	w, i := newWriter(t, &out, pcap.Config{Limit: int64(limit)})
	payload := make([]byte, 1000)
	i.Packet(0, from4, to4, 0, 0, 64, payload)
	i.Packet(0, from4, to4, 0, 0, 64, payload)
	i.Packet(0, from4, to4, 0, 0, 64, payload)
	i.Packet(0, from4, to4, 0, 0, 64)
	i.Packet(0, from4, to4, 0, 0, 64)
	w.Interface("soft1", "").Packet(0, from4, to4, 0, 0, 64)
	must(t, w.Close())
	if written, dropped := w.Counts(); written != 3 || dropped != 3 {
		t.Errorf("%d written, %d dropped, want 3 and 3", written, dropped)
	}
	if got := out.Len(); got != limit {
		t.Errorf("the file has %d bytes, want %d", got, limit)
	}
}

func TestDropped(t *testing.T) {
	var out bytes.Buffer
	w, i := newWriter(t, &out, pcap.Config{})
	i.Packet(0, from4, to6, 0, 0, 64)
	i.Packet(0, netip.AddrPort{}, to4, 0, 0, 64)
	i.Packet(-1, from4, to4, 0, 0, 64)
	i.Packet(0, from4, to4, 0, 0, 64, make([]byte, 65_535-27))
	i.Packet(0, from6, to6, 0, 0, 64, make([]byte, 40_000), make([]byte, 40_000))
	i.Packet(0, from4, to4, 0, 0, 64, make([]byte, 65_535-28)) // the maximum length
	must(t, w.Close())
	i.Packet(0, from4, to4, 0, 0, 64)
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
	w, i := newWriter(t, broken{full}, pcap.Config{})
	for range 10 {
		i.Packet(0, from4, to4, 0, 0, 64, make([]byte, 60_000))
	}
	if written, dropped := w.Counts(); written != 4 || dropped != 6 {
		t.Errorf("%d written, %d dropped, want 4 in the buffer and 6", written, dropped)
	}
	for range 2 {
		if err := w.Close(); !errors.Is(err, pcap.ErrWrite) || !errors.Is(err, full) {
			t.Errorf("Close = %v, want %v with %v", err, pcap.ErrWrite, full)
		}
	}
	for _, cfg := range []pcap.Config{{Buffer: 1000}, {Buffer: -1}, {Limit: 23}, {Limit: -1}, {SnapLen: -1}, {SnapLen: 65536}} {
		if _, err := pcap.New(&bytes.Buffer{}, cfg); !errors.Is(err, pcap.ErrConfig) {
			t.Errorf("New(%+v) = %v, want %v", cfg, err, pcap.ErrConfig)
		}
		name := filepath.Join(t.TempDir(), "out.pcapng")
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
	_, i := newWriter(t, nowhere{}, pcap.Config{})
	head, payload := make([]byte, 28), make([]byte, 4100)
	if got := testing.AllocsPerRun(1000, func() {
		i.Packet(1, from4, to4, 0, 0, 64, head, payload)
		i.Packet(1, from6, to6, 0, 0, 64, head, payload)
	}); got != 0 {
		t.Errorf("%v allocations for two packets, want 0", got)
	}
}
