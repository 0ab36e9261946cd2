package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(pullEnv) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestRun: after the pulling process is killed, the next one reuses the data already stored.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(context.Background(), &out); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^killed after \d+ of 96 MiB
pulled again: [1-9]\d* MiB were there already, \d+ chunks verified, 0 bad
3 shards are the same
$`)
	if !want.Match(out.Bytes()) {
		t.Errorf("got %q, want it to match %q", out.String(), want)
	}
}
