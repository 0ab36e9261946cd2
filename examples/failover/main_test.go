package main

import (
	"bytes"
	"regexp"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The example prints this, with any number of repeated requests above 0, because rail 1 had
// requests in flight when it was lost.
func TestFailover(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatalf("run: got %v, want no error; it printed\n%s", err, out.String())
	}
	const want = `^rail 1 loses its ports
a: rail down: rail 1
rail 1 gets its ports back
a: rail up: rail 1
a: recovered: all lanes are in service
512 messages are complete, every byte is right, [1-9][0-9]* requests were repeated on the other rail
$`
	if !regexp.MustCompile(want).MatchString(out.String()) {
		t.Errorf("it printed\n%swant\n%s", out.String(), want)
	}
}
