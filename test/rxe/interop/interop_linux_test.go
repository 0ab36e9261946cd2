package interop_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// outcome is the result of an operation in a column of the table.
type outcome string

const (
	notRun outcome = "not run"
	failed outcome = "no"
	worked outcome = "yes"
)

// columns of the table, by family and requester.
const columns = len(families) * len(sides)

// TestInterop tests softnic on UDP against the kernel's Soft-RoCE, each as requester and as responder, and
// prints the table in docs/conformance.md.
func TestInterop(t *testing.T) {
	w := newWorld(t)
	outcomes := make([][columns]outcome, len(operations))
	for i, op := range operations {
		outcomes[i] = [columns]outcome{notRun, notRun, notRun, notRun}
		t.Run(op.name, func(t *testing.T) {
			for c := range columns {
				t.Run(strings.ReplaceAll(column(c), ",", ""), func(t *testing.T) {
					outcomes[i][c] = failed
					op.run(t, w, c/len(sides), c%len(sides))
					if !t.Failed() {
						outcomes[i][c] = worked
					}
				})
			}
		})
	}
	for line := range strings.Lines(table(outcomes)) {
		t.Logf("interop table: %s", strings.TrimSpace(line))
	}
}

// column names a column: requester, responder and IP version.
func column(c int) string {
	asker := c % len(sides)
	return fmt.Sprintf("%s to %s, %s", sides[asker], sides[1-asker], families[c/len(sides)])
}

// table formats outcomes as in docs/conformance.md.
func table(outcomes [][columns]outcome) string {
	var b strings.Builder
	b.WriteString("| requests |")
	for c := range columns {
		b.WriteString(" " + column(c) + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", columns) + "\n")
	for i, op := range operations {
		b.WriteString("| " + op.name + " |")
		for _, o := range outcomes[i] {
			b.WriteString(" " + string(o) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// The document must contain TestInterop's table for a fully successful run, the only result that passes.
func TestDocumentHasTable(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") == "1" {
		t.Skip("the document is not in the machine of test/rxe; the test needs no device")
	}
	text, err := os.ReadFile("../../../docs/conformance.md")
	enginetest.Must(t, err)
	outcomes := make([][columns]outcome, len(operations))
	for i := range outcomes {
		outcomes[i] = [columns]outcome{worked, worked, worked, worked}
	}
	if want := "\n\n" + table(outcomes) + "\n"; !strings.Contains(string(text), want) {
		t.Fatalf("docs/conformance.md lacks the table, want it written again (test/rxe/conformance):%s", want)
	}
}
