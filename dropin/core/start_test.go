//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"math"
	"testing"
)

// TestStartAgain: if one of the NICs cannot be created, there are none, also for a program that tries again.
func TestStartAgain(t *testing.T) {
	t.Setenv("IBVERBX_ADDR", "127.0.0.1,203.0.113.7")
	var l library
	for range 2 {
		if err := l.start(); err == nil || len(l.nics) > 0 {
			t.Errorf("start with a remote address = %v and %d NICs, want an error and none", err, len(l.nics))
		}
	}
	t.Setenv("IBVERBX_ADDR", "127.0.0.1,127.0.0.2")
	t.Setenv("IBVERBX_GIDS", "port")
	if err := l.start(); err != nil || len(l.nics) != 2 || !l.portGIDs {
		t.Errorf("start = %v, %d NICs and portGIDs %v, want 2 and true", err, len(l.nics), l.portGIDs)
	}
	for _, d := range l.nics {
		if err := d.nic.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMappable: memory at an address that no program has is refused instead of ending the process.
func TestMappable(t *testing.T) {
	for _, tt := range []struct {
		addr   uintptr
		length uint64
		want   bool
	}{
		{0x7f0000000000, 4096, true},
		{0x7f0000000000, 0, false},
		{0, 4096, false},
		{8, 4096, false},
		{4096, 1 << 47, true},
		{4096, 1<<47 + 1, false},
		{math.MaxUint64 - 4095, 8192, false},
		{math.MaxUint64, 1, false},
	} {
		if got := mappable(tt.addr, tt.length); got != tt.want {
			t.Errorf("mappable(%#x, %d) = %v, want %v", tt.addr, tt.length, got, tt.want)
		}
	}
}
