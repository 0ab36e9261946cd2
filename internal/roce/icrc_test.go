package roce_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/roce"
)

// slowICRC is the ICRC by its definition: it builds the whole packet, replaces excluded fields by
// ones, and computes the CRC.
func slowICRC(src, dst netip.AddrPort, datagram []byte, id uint16) uint32 {
	return slowICRCFlags(src, dst, datagram, id, 0x40)
}

// slowICRCFlags is slowICRC for an IPv4 header with other flags than "don't fragment".
func slowICRCFlags(src, dst netip.AddrPort, datagram []byte, id uint16, flags byte) uint32 {
	return slowICRCLen(src, dst, datagram, len(datagram), id, flags)
}

// slowICRCLen is slowICRCFlags for headers that name another length of the datagram.
func slowICRCLen(src, dst netip.AddrPort, datagram []byte, length int, id uint16, flags byte) uint32 {
	ones := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	b := append([]byte{}, ones...)
	udp := length + 8
	if src.Addr().Is4() {
		b = append(b, 0x45, 0xff)
		b = binary.BigEndian.AppendUint16(b, uint16(udp+20))
		b = binary.BigEndian.AppendUint16(b, id)
		b = append(b, flags, 0, 0xff, 17, 0xff, 0xff)
	} else {
		b = append(b, 0x6f, 0xff, 0xff, 0xff)
		b = binary.BigEndian.AppendUint16(b, uint16(udp))
		b = append(b, 17, 0xff)
	}
	b = append(b, src.Addr().AsSlice()...)
	b = append(b, dst.Addr().AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(udp))
	b = append(b, 0xff, 0xff)
	bth := len(b)
	b = append(b, datagram[:len(datagram)-4]...)
	b[bth+4] = 0xff
	return crc32.ChecksumIEEE(b)
}

// drawEnds draws the two ends of a flow.
func drawEnds(t *rapid.T) (src, dst netip.AddrPort) {
	n := rapid.SampledFrom([]int{4, 16}).Draw(t, "address length")
	draw := func(name string) netip.AddrPort {
		addr, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, name))
		return netip.AddrPortFrom(addr, rapid.Uint16().Draw(t, name+" port"))
	}
	src, dst = draw("src"), draw("dst")
	if src.Addr().Is4In6() || dst.Addr().Is4In6() {
		t.Skip("an IPv4 address in IPv6 form is an IPv4 address")
	}
	return src, dst
}

func newFlow(t interface {
	Helper()
	Fatalf(string, ...any)
}, src, dst netip.AddrPort,
) roce.Flow {
	t.Helper()
	flow, err := roce.NewFlow(src, dst)
	if err != nil {
		t.Fatalf("NewFlow(%v, %v) = %v, want no error", src, dst, err)
	}
	return flow
}

// TestICRC compares the ICRC in one piece, in parts and sealed with its definition.
func TestICRC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := drawEnds(t)
		id := rapid.Uint16().Draw(t, "id")
		words := rapid.IntRange(roce.MinDatagram/4, roce.MaxDatagram/4).Draw(t, "words")
		datagram := make([]byte, 4*words)
		fill(datagram, rapid.Uint64().Draw(t, "bytes"))
		datagram[4] = rapid.Byte().Draw(t, "reserved")
		flow := newFlow(t, src, dst)
		want := slowICRC(src, dst, datagram, id)
		if got := flow.ICRC(datagram, id); got != want {
			t.Fatalf("ICRC of %d bytes = %#x, want %#x", len(datagram), got, want)
		}

		end := len(datagram) - 4
		a := rapid.IntRange(12, end).Draw(t, "first cut")
		b := rapid.IntRange(a, end).Draw(t, "second cut")
		tail := make([]byte, roce.MaxTail)
		pad := 0
		for pad < 3 && pad < end-b && datagram[end-1-pad] == 0 {
			pad++
		}
		n := flow.Begin(datagram[:a], len(datagram), id).Add(datagram[a:b]).Add(datagram[b:end-pad]).Finish(tail, pad)
		if got := binary.LittleEndian.Uint32(tail[n-4:]); got != want || n != pad+4 {
			t.Fatalf("ICRC in parts = %#x in %d bytes, want %#x in %d", got, n, want, pad+4)
		}

		flow.Seal(datagram, id)
		if got := roce.Received(datagram); got != want {
			t.Fatalf("sealed with %#x, want %#x", got, want)
		}
		var e roce.Explainer
		if got, ok := flow.Check(datagram, &e); !ok || (got != id && !flow.IPv6()) {
			t.Fatalf("Check = %d, %v, want %d, true", got, ok, id)
		}
	})
}

// fill fills b with numbers from a seed, some of them 0.
func fill(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
		if seed>>40&7 == 0 {
			b[i] = 0
		}
	}
}

// TestExplain recovers every identification, and rejects half of the difference.
func TestExplain(t *testing.T) {
	src, dst := netip.MustParseAddrPort("10.0.0.1:49152"), netip.MustParseAddrPort("10.0.0.2:4791")
	flow := newFlow(t, src, dst)
	var e roce.Explainer
	for _, n := range []int{roce.MinDatagram, 20, 44, 1044, roce.MaxDatagram} {
		datagram := make([]byte, n)
		fill(datagram, uint64(n))
		for id := range 1 << 16 {
			got, ok := e.Explain(flow.ICRC(datagram, uint16(id)), flow.ICRC(datagram, 0), n)
			if !ok || got != uint16(id) {
				t.Fatalf("%d bytes: Explain = %d, %v, want %d, true", n, got, ok, id)
			}
			if n > 64 && id > 256 {
				break
			}
		}
	}
}

// TestExplainRefuses counts the random differences mistaken for an identification: one in 65,536.
func TestExplainRefuses(t *testing.T) {
	var e roce.Explainer
	taken, n := 0, 1<<20
	var c [4]byte
	for i := range n {
		fill(c[:], uint64(i))
		if _, ok := e.Explain(binary.LittleEndian.Uint32(c[:])|1, 0, 1044); ok {
			taken++
		}
	}
	if taken > 40 {
		t.Fatalf("%d of %d random differences were explained, want about %d", taken, n, n>>16)
	}
}

// TestExplainLengths: Explain fails for an impossible datagram length, even with a matching ICRC.
func TestExplainLengths(t *testing.T) {
	var e roce.Explainer
	flow, b := newFlow(t, from4, to4), make([]byte, 1044)
	difference := flow.ICRC(b, 5) ^ flow.ICRC(b, 0)
	if id, ok := e.Explain(difference, 0, len(b)); id != 5 || !ok {
		t.Errorf("Explain for a length of %d = %d, %v, want 5, true", len(b), id, ok)
	}
	for _, length := range []int{-4, 0, 12, 17, 1045, 1046, 1047, roce.MaxDatagram + 4, 1 << 30} {
		if id, ok := e.Explain(difference, 0, length); ok {
			t.Errorf("Explain for a length of %d = %d, true, want false", length, id)
		}
	}
}

// TestCheckFlags: only the identification is recovered, not the adjacent flags.
func TestCheckFlags(t *testing.T) {
	var e roce.Explainer
	flow, b := newFlow(t, from4, to4), datagram(roce.OpSendOnly, 16)
	for flags := range 256 {
		binary.LittleEndian.PutUint32(b[len(b)-4:], slowICRCFlags(from4, to4, b, 9, byte(flags)))
		if id, ok := flow.Check(b, &e); ok != (flags == 0x40) {
			t.Errorf("flags %#x: Check = %d, %v, want true only for 0x40", flags, id, ok)
		}
	}
}

// TestCheckRefuses changes each bit of a datagram. Only the bits that routers may change are
// ignored.
func TestCheckRefuses(t *testing.T) {
	var e roce.Explainer
	for _, flow := range []roce.Flow{newFlow(t, from4, to4), newFlow(t, from6, to6)} {
		b := datagram(roce.OpWriteOnly, 32)
		flow.Seal(b, 0x1234)
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			if id, ok := flow.Check(b, &e); ok != (bit/8 == 4) {
				t.Errorf("IPv6 %v, bit %d changed: Check = %d, %v, want %v", flow.IPv6(), bit, id, ok, !ok)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// TestCheckIPv6: IPv6 lacks an identification that could explain a mismatch.
func TestCheckIPv6(t *testing.T) {
	var e roce.Explainer
	four, six, b := newFlow(t, from4, to4), newFlow(t, from6, to6), datagram(roce.OpSendOnly, 16)
	six.Seal(b, 0)
	if id, ok := six.Check(b, &e); id != 0 || !ok {
		t.Errorf("Check = %d, %v, want 0, true", id, ok)
	}
	wrong := roce.Received(b) ^ four.ICRC(b, 5) ^ four.ICRC(b, 0)
	binary.LittleEndian.PutUint32(b[len(b)-4:], wrong)
	if id, ok := six.Check(b, &e); ok {
		t.Errorf("Check of another ICRC = %d, true, want false", id)
	}
}

func TestCheckLengths(t *testing.T) {
	var e roce.Explainer
	flow := newFlow(t, from4, to4)
	for _, n := range []int{0, 3, 4, 12, 17, roce.MaxDatagram + 1, roce.MaxDatagram + 4, 65_507} {
		if id, ok := flow.Check(make([]byte, n), &e); ok {
			t.Errorf("Check of %d bytes = %d, true, want false", n, id)
		}
	}
}

func TestNewFlow(t *testing.T) {
	mapped := netip.AddrPortFrom(netip.AddrFrom16(from4.Addr().As16()), from4.Port())
	if a, b := newFlow(t, mapped, to4), newFlow(t, from4, to4); a != b || a.IPv6() {
		t.Errorf("a flow from %v is %v, want that from %v, %v", mapped, a, from4, b)
	}
	zoned := netip.AddrPortFrom(from6.Addr().WithZone("eth0"), from6.Port())
	if a, b := newFlow(t, zoned, to6), newFlow(t, from6, to6); a != b || !a.IPv6() {
		t.Errorf("a flow from %v is %v, want that from %v, %v", zoned, a, from6, b)
	}
	for _, ends := range [][2]netip.AddrPort{{from4, to6}, {from6, to4}, {{}, to4}, {from4, {}}, {}} {
		if _, err := roce.NewFlow(ends[0], ends[1]); !errors.Is(err, roce.ErrFlow) {
			t.Errorf("NewFlow(%v, %v) = %v, want %v", ends[0], ends[1], err, roce.ErrFlow)
		}
	}
}

// TestExplainTogether creates tables concurrently.
func TestExplainTogether(t *testing.T) {
	var e roce.Explainer
	var all sync.WaitGroup
	flow := newFlow(t, netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:4791"))
	for range 4 {
		all.Go(func() {
			for n := roce.MinDatagram; n < 600; n += 4 {
				datagram := make([]byte, n)
				flow.Seal(datagram, 7)
				if id, ok := flow.Check(datagram, &e); id != 7 || !ok {
					t.Errorf("%d bytes: Check = %d, %v, want 7, true", n, id, ok)
				}
			}
		})
	}
	all.Wait()
}
