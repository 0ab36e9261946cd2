package roce_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"ibverbx/internal/roce"
)

// opcodes lists all opcodes, grouped by the payloads they may carry.
var (
	first = []uint8{
		roce.OpSendFirst, roce.OpSendMiddle, roce.OpWriteFirst, roce.OpWriteMiddle,
		roce.UC | roce.OpSendFirst, roce.UC | roce.OpSendMiddle, roce.UC | roce.OpWriteFirst, roce.UC | roce.OpWriteMiddle,
		roce.OpReadResponseFirst, roce.OpReadResponseMiddle,
	}
	last = []uint8{
		roce.OpSendLast, roce.OpSendLastImm, roce.OpWriteLast, roce.OpWriteLastImm,
		roce.UC | roce.OpSendLast, roce.UC | roce.OpSendLastImm, roce.UC | roce.OpWriteLast, roce.UC | roce.OpWriteLastImm,
		roce.OpReadResponseLast,
	}
	only = []uint8{
		roce.OpSendOnly, roce.OpSendOnlyImm, roce.OpWriteOnly, roce.OpWriteOnlyImm,
		roce.UC | roce.OpSendOnly, roce.UC | roce.OpSendOnlyImm, roce.UC | roce.OpWriteOnly, roce.UC | roce.OpWriteOnlyImm,
		roce.UD | roce.OpSendOnly, roce.UD | roce.OpSendOnlyImm,
		roce.OpReadResponseOnly,
	}
	bare = []uint8{roce.OpReadRequest, roce.OpAck, roce.OpAtomicAck, roce.OpCompareSwap, roce.OpFetchAdd, roce.CNP}
)

// drawHeader draws valid headers and the length of the payload. Fields that the opcode does not use
// are 0.
func drawHeader(t *rapid.T) (h roce.Header, payload int) {
	h = roce.Header{
		Solicited: rapid.Bool().Draw(t, "solicited"),
		Migrated:  rapid.Bool().Draw(t, "migrated"),
		AckReq:    rapid.Bool().Draw(t, "ackreq"),
		FECN:      rapid.Bool().Draw(t, "fecn"),
		BECN:      rapid.Bool().Draw(t, "becn"),
		PKey:      rapid.Uint16().Draw(t, "pkey"),
		DestQPN:   rapid.Uint32Range(0, 1<<24-1).Draw(t, "dest"),
		PSN:       roce.PSN(rapid.Uint32Range(0, 1<<24-1).Draw(t, "psn")),

		HeaderICRC: rapid.Bool().Draw(t, "header icrc"),
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		h.Opcode = rapid.SampledFrom(first).Draw(t, "opcode")
		payload = 256 << rapid.IntRange(0, 4).Draw(t, "mtu")
	case 1:
		h.Opcode = rapid.SampledFrom(last).Draw(t, "opcode")
		payload = rapid.IntRange(1, roce.MaxPayload).Draw(t, "payload")
	case 2:
		h.Opcode = rapid.SampledFrom(only).Draw(t, "opcode")
		payload = rapid.IntRange(0, roce.MaxPayload).Draw(t, "payload")
	case 3:
		h.Opcode = rapid.SampledFrom(bare).Draw(t, "opcode")
	}
	drawExtended(t, &h)
	return h, payload
}

func drawExtended(t *rapid.T, h *roce.Header) {
	op := h.Opcode & roce.OperationMask
	if h.Opcode == roce.CNP {
		return
	}
	if h.Opcode&roce.TransportMask == roce.UD {
		h.QKey, h.SrcQPN = rapid.Uint32().Draw(t, "qkey"), rapid.Uint32Range(0, 1<<24-1).Draw(t, "src")
	}
	switch op {
	case roce.OpWriteFirst, roce.OpWriteOnly, roce.OpWriteOnlyImm, roce.OpReadRequest:
		h.VA, h.RKey, h.DMALen = rapid.Uint64().Draw(t, "va"), rapid.Uint32().Draw(t, "rkey"), rapid.Uint32().Draw(t, "len")
	case roce.OpCompareSwap, roce.OpFetchAdd:
		h.VA, h.RKey = rapid.Uint64().Draw(t, "va"), rapid.Uint32().Draw(t, "rkey")
		h.SwapAdd, h.Compare = rapid.Uint64().Draw(t, "swap"), rapid.Uint64().Draw(t, "compare")
	case roce.OpAtomicAck:
		h.Original = rapid.Uint64().Draw(t, "original")
	}
	switch op {
	case roce.OpSendLastImm, roce.OpSendOnlyImm, roce.OpWriteLastImm, roce.OpWriteOnlyImm:
		h.Imm = rapid.Uint32().Draw(t, "imm")
	case roce.OpReadResponseFirst, roce.OpReadResponseLast, roce.OpReadResponseOnly, roce.OpAtomicAck:
		h.Syndrome = rapid.Uint8Range(0, 0x1f).Draw(t, "credits")
		h.MSN = rapid.Uint32Range(0, 1<<24-1).Draw(t, "msn")
	case roce.OpAck:
		h.Syndrome = rapid.OneOf(rapid.Uint8Range(0, 0x3f), rapid.Uint8Range(0x60, 0x64)).Draw(t, "syndrome")
		h.MSN = rapid.Uint32Range(0, 1<<24-1).Draw(t, "msn")
	}
}

// TestRoundTrip encodes and decodes random packets.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, n := drawHeader(t)
		datagram := make([]byte, roce.DatagramLen(h.Opcode, n), roce.MaxDatagram)
		fill(datagram, rapid.Uint64().Draw(t, "bytes"))
		if got, want := h.Encode(datagram, n), roce.HeaderLen(h.Opcode); got != want {
			t.Fatalf("Encode(%#x) = %d, want %d", h.Opcode, got, want)
		}
		want := roce.OK
		if h.Opcode == roce.CNP {
			want = roce.Congestion
		}
		var got roce.Header
		payload, reason := got.Decode(datagram)
		if reason != want || got != h || len(payload) != n {
			t.Fatalf("Decode = %+v, %d bytes, %v, want %+v, %d bytes, %v", got, len(payload), reason, h, n, want)
		}
		if begin := roce.HeaderLen(h.Opcode); !bytes.Equal(payload, datagram[begin:begin+n]) {
			t.Fatalf("the payload is not what follows the headers")
		}
	})
}

// TestSourcePort compares with the results of ibv_flow_label_to_udp_sport of rdma-core 44.
func TestSourcePort(t *testing.T) {
	for label, want := range map[uint32]uint16{
		0x00001: 0xc001, 0x03fff: 0xffff, 0x04000: 0xc001, 0x04001: 0xc000, 0x12345: 0xe341, 0xfc000: 0xc03f, 0xfffff: 0xffc0, 0xabcde: 0xfcf4,
	} {
		if got := roce.SourcePort(label); got != want {
			t.Errorf("SourcePort(%#05x) = %#x, want %#x", label, got, want)
		}
	}
}
