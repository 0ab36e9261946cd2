package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(decodeEnv) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestRun hands all requests over to a real decode process.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "24 requests handed over: ") || !strings.Contains(got, "all right") {
		t.Errorf("got %q, want 24 requests that are all right", got)
	}
}
