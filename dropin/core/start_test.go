//go:build linux && cgo && (amd64 || arm64)

package main

import "testing"

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
