package enginetest

import (
	"context"
	"errors"
	"testing"
	"time"
)

// patience is the timeout for expected events. It is generous, because the machine may be busy.
const patience = 2 * time.Minute

// Soon returns a context with a generous timeout. It outlives the test, so that cleanups can use
// it.
func Soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// WantOK fails the test immediately if err is not nil. what describes the operation.
func WantOK(tb testing.TB, what string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: got %v, want no error", what, err)
	}
}

// WantErr fails the test if err does not match want.
func WantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// Eventually waits until f returns true, and fails the test on timeout.
func Eventually(tb testing.TB, what string, f func() bool) {
	tb.Helper()
	for limit := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			tb.Fatalf("after %v it is not true that %s", patience, what)
		}
	}
}
