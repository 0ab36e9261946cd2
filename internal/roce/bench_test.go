package roce_test

import (
	"fmt"
	"hash/crc32"
	"net/netip"
	"testing"

	"ibverbx/internal/roce"
)

var (
	from4 = netip.MustParseAddrPort("10.77.0.1:49152")
	to4   = netip.MustParseAddrPort("10.77.0.2:4791")
	from6 = netip.MustParseAddrPort("[fd00::1]:49152")
	to6   = netip.MustParseAddrPort("[fd00::2]:4791")
)

// TestNoAllocations: per-packet operations do not allocate.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	b, tail, into := datagram(roce.OpWriteOnly, 4096), make([]byte, roce.MaxTail), make([]byte, 4096)
	h := roce.Header{Opcode: roce.OpWriteOnly, PKey: roce.PKeyDefault}
	var e roce.Explainer
	var flow roce.Flow
	for _, tt := range []struct {
		name string
		run  func()
	}{
		{"NewFlow IPv4", func() { flow, _ = roce.NewFlow(from4, to4) }},
		{"NewFlow IPv6", func() { flow, _ = roce.NewFlow(from6, to6) }},
		{"Encode", func() { h.Encode(b, 4096) }},
		{"Decode", func() { _, _ = h.Decode(b) }},
		{"Seal", func() { flow.Seal(b, 7) }},
		{"in parts", func() { flow.Begin(b[:28], len(b), 7).Add(b[28:1000]).Add(b[1000:len(b)-4]).Finish(tail, 0) }},
		{"Copy", func() { flow.Begin(b[:28], len(b), 7).Copy(into, b[28:len(b)-4]) }},
		{"Check", func() { flow.Check(b, &e) }},
		{"FinishHeaders", func() { flow.Begin(b[:28], len(b), 7).FinishHeaders(tail, 3) }},
		{"CheckHeaders", func() { flow.CheckHeaders(b, &e) }},
		{"Restore", func() { flow.Restore(b, 7) }},
		{"Explain", func() { e.Explain(1, 2, len(b)) }},
		{"Reason", func() { _ = roce.BadPad.String() }},
	} {
		if got := testing.AllocsPerRun(100, tt.run); got != 0 {
			t.Errorf("%s: %v allocations, want 0", tt.name, got)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	h := roce.Header{Opcode: roce.OpWriteOnly, PKey: roce.PKeyDefault, DestQPN: 17, VA: 1 << 40, RKey: 5, DMALen: 4096}
	buf := make([]byte, roce.MaxHeader)
	b.ReportAllocs()
	for b.Loop() {
		h.PSN++
		h.Encode(buf, 4096)
	}
}

func BenchmarkDecode(b *testing.B) {
	buf := datagram(roce.OpWriteOnly, 4096)
	var h roce.Header
	b.ReportAllocs()
	for b.Loop() {
		if _, r := h.Decode(buf); r != roce.OK {
			b.Fatalf("Decode = %v, want ok", r)
		}
	}
}

// BenchmarkICRC computes the ICRC of a whole datagram. CRC32 is the lower bound, without the
// headers before the BTH.
func BenchmarkICRC(b *testing.B) {
	for _, size := range []int{8, 1024, 4096} {
		buf := datagram(roce.OpWriteOnly, size)
		for _, family := range []string{"ipv4", "ipv6"} {
			flow, _ := roce.NewFlow(from4, to4)
			if family == "ipv6" {
				flow, _ = roce.NewFlow(from6, to6)
			}
			b.Run(fmt.Sprintf("family=%s/size=%d", family, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					flow.Seal(buf, 0)
				}
			})
		}
		b.Run(fmt.Sprintf("crc32/size=%d", size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				crc32.Update(0, crc32.IEEETable, buf)
			}
		})
	}
}

// BenchmarkCopy computes the ICRC of a payload while copying it. "copy" and "sum" do the two steps
// separately. The memory exceeds the first-level cache.
func BenchmarkCopy(b *testing.B) {
	const size, window = 4096, 1 << 20
	src, dst := make([]byte, window), make([]byte, 128<<10)
	for i := range src {
		src[i] = byte(i)
	}
	for _, way := range []string{"both", "copy", "sum"} {
		b.Run(fmt.Sprintf("%s/size=%d", way, size), func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			var sum roce.Sum
			for k := 0; b.Loop(); k += size {
				from, to := src[k%window:][:size], dst[k%len(dst):][:size]
				switch way {
				case "both":
					sum = sum.Copy(to, from)
				case "copy":
					copy(to, from)
				case "sum":
					sum = sum.Add(to)
				}
			}
		})
	}
}

// BenchmarkCheck checks a datagram with identification 0, and one with an unknown identification.
func BenchmarkCheck(b *testing.B) {
	for _, size := range []int{8, 4096} {
		for _, id := range []uint16{0, 0x1234} {
			b.Run(fmt.Sprintf("size=%d/id=%d", size, id), func(b *testing.B) {
				flow, _ := roce.NewFlow(from4, to4)
				buf := datagram(roce.OpWriteOnly, size)
				flow.Seal(buf, id)
				var e roce.Explainer
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if _, ok := flow.Check(buf, &e); !ok {
						b.Fatal("Check = false, want true")
					}
				}
			})
		}
	}
}

func BenchmarkNewFlow(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = roce.NewFlow(from4, to4)
	}
}
