package verbstest

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// documentRow matches a table row in docs/conformance.md: an item, its guarantee, and three verdicts.
var documentRow = regexp.MustCompile("(?m)^\\| `(\\w+/\\w+)` \\| ([^|]*) \\| ([^|]*) \\| ([^|]*) \\| ([^|]*) \\|$")

var documentVerdicts = []string{"yes", "yes, status", "partial", "n/a", "departs"}

// TestDocument checks that docs/conformance.md lists exactly the items of the suite, in order.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatalf("read the document: %v, want what test/rxe/conformance writes", err)
	}
	var want, got []string
	for _, f := range families {
		for _, tt := range f.tests {
			want = append(want, f.name+"/"+tt.name)
		}
	}
	for _, m := range documentRow.FindAllStringSubmatch(string(text), -1) {
		name := m[1]
		got = append(got, name)
		if !slices.Contains(want, name) {
			t.Errorf("docs/conformance.md lists %s, want items of the suite only: write it again (test/rxe/conformance)", name)
		}
		if m[2] == "" {
			t.Errorf("docs/conformance.md has no guarantee for %s, want a comment above its function", name)
		}
		for i, v := range m[3:] {
			if !slices.Contains(documentVerdicts, v) {
				t.Errorf("docs/conformance.md says %q in column %d of %s, want one of %q", v, i+1, name, documentVerdicts)
			}
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("docs/conformance.md lacks %s, want every item of the suite: write it again (test/rxe/conformance)", name)
		}
	}
	if !t.Failed() && !slices.Equal(got, want) {
		t.Errorf("docs/conformance.md has %d rows in another order or more than once, want the %d items in the order of the suite", len(got), len(want))
	}
}
