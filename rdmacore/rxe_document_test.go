//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/conformance.md contains the reason for every departure and substitute next to its name, word
// for word.
func TestDocumentListsDepartures(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") == "1" {
		t.Skip("the document is not in the machine of test/rxe; the test needs no device")
	}
	text, err := os.ReadFile("../docs/conformance.md")
	ok(t, err, "read the document")
	lines := strings.Split(string(text), "\n")
	told := map[string]bool{}
	for _, line := range lines {
		for name, reason := range rxeLoopback {
			if strings.HasPrefix(line, "- "+reason+": ") && strings.Contains(line, "`"+name+"`") {
				told[name] = true
			}
		}
	}
	for name, reason := range rxeLoopback {
		if !told[name] {
			t.Errorf("docs/conformance.md has no line with %q and %s, want both: regenerate it (test/rxe/conformance)", reason, name)
		}
	}
	for _, s := range rxeSubstitutes {
		if want := fmt.Sprintf("\n- %q for %q: %s.\n", s.reported, s.right, s.reason); !strings.Contains(string(text), want) {
			t.Errorf("docs/conformance.md lacks %q, want every substitute: regenerate it (test/rxe/conformance)", want)
		}
	}
	// The document does not list obsolete departures.
	for _, line := range lines {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 5 {
			continue
		}
		name := strings.Trim(cells[0], "| `")
		one, two := cells[len(cells)-2] == "departs", cells[len(cells)-1] == "departs |"
		if one && rxeLoopback[name] == "" || two && rxeDepartures[name] == "" {
			t.Errorf("docs/conformance.md lists %s as a departure, but it is none: regenerate it (test/rxe/conformance)", name)
		}
	}
}
