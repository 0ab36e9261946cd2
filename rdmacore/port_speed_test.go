package rdmacore

import "testing"

func TestPortSpeed(t *testing.T) {
	for _, tt := range []struct {
		width, speed uint8
		want         uint32
	}{
		{1, 1, 2500},
		{2, 4, 40000},
		{2, 32, 100000},
		{2, 64, 200000},
		{2, 128, 400000},
		{16, 64, 100000},
		{8, 16, 168000},
		{4, 2, 40000},
		{2, 8, 40000},
		{0, 32, 0},
		{2, 0, 0},
		{3, 32, 0},
		{2, 3, 0},
	} {
		if got := portSpeed(tt.width, tt.speed); got != tt.want {
			t.Errorf("portSpeed(%d, %d) = %d, want %d", tt.width, tt.speed, got, tt.want)
		}
	}
}
