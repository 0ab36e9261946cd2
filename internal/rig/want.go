package rig

import (
	"context"
	"errors"
	"testing"
	"time"
)

// patience is how long tests wait for what must happen. It is generous, because the machine may be busy.
const patience = 2 * time.Minute

// Soon returns a context with a generous limit. It outlives the test, so that cleanups can use it.
func Soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// WantOK ends the test if what was done has failed.
func WantOK(tb testing.TB, what string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: got %v, want no error", what, err)
	}
}

// WantErr fails the test if err is not the one that is wanted.
func WantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// Eventually waits until something is true, and ends the test if that takes too long.
func Eventually(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for limit := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			tb.Fatalf("after %v it is not true that %s", patience, what)
		}
	}
}
