package mutant

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestApply: edits apply to the one place that they name, on top of each other, and an edit that
// does not apply names its files and its text.
func TestApply(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"a.go": "one two", "b.go": "three two", "a_test.go": "one"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name, err := filepath.Abs("a.go")
	if err != nil {
		t.Fatal(err)
	}
	c := Change{File: "*.go", Old: "one", New: "1", Also: []Edit{{File: "a.go", Old: "1 two", New: "1 2"}}}
	if got, err := c.apply(); err != nil || len(got) != 1 || got[name] != "1 2" {
		t.Errorf("apply = %q, %v, want a.go to be %q", got, err, "1 2")
	}
	for _, c := range []Change{
		{File: "*.go", Old: "two"},
		{File: "a.go", Old: "three"},
		{File: "c.go", Old: "one"},
		{File: "b.go", Old: "three", Also: []Edit{{File: "b.go", Old: "three"}}},
	} {
		if got, err := c.apply(); err == nil || !strings.Contains(err.Error(), c.File) || !strings.Contains(err.Error(), c.Old) {
			t.Errorf("apply of %q to %s = %q, %v, want an error with both", c.Old, c.File, got, err)
		}
	}
}
