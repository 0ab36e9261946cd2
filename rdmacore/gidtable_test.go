//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// deeper calls f below depth more frames of the stack.
//
//go:noinline
func deeper(depth int, f func()) {
	if depth == 0 {
		f()
		return
	}
	deeper(depth-1, f)
}

// A GID table with one row is read correctly even if the stack is full at that moment, so that Go moves it.
func TestGIDTableStack(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	s.device.ports, s.device.gids[0] = 1, 1
	ctx := openFirst(t, lib)
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 1})
	ok(t, err, "CreateCQ")
	for depth := range 600 {
		var qp verbs.QP
		done := make(chan error)
		go deeper(depth, func() { // each goroutine starts with a small stack
			var err error
			qp, err = pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
			done <- err
		})
		if err := <-done; err != nil {
			t.Fatalf("CreateQP %d frames deep = %v, want a QP", depth, err)
		}
		ok(t, qp.Close(), "Close")
	}
}

// The ports of a device may have GID tables of different lengths.
func TestGIDTableLengths(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	s.device.gids = [2]uint64{2, 8}
	ctx := openFirst(t, lib)
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 1})
	ok(t, err, "CreateCQ")
	for port := range uint8(2) {
		qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Port: port + 1})
		ok(t, err, "CreateQP")
		ep, err := qp.Endpoint()
		if want := []string{"::ffff:10.0.0.1", "::ffff:10.0.0.2"}[port]; err != nil || ep.GID.String() != want {
			t.Errorf("Endpoint on port %d = %+v, %v, want GID %s", port+1, ep, err, want)
		}
	}
}
