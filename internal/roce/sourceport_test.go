package roce_test

import (
	"testing"

	"ibverbx/internal/roce"
)

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
