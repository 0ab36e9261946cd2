package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/settings"
)

// wantWays compares docs/ways-in.md with the table of the test.
func wantWays(t *testing.T, all []feature, doors []way) {
	t.Helper()
	var b strings.Builder
	b.WriteString("| `peer.Fabric` | flags |")
	for _, w := range doors {
		fmt.Fprintf(&b, " `%s` |", w.name)
	}
	fmt.Fprintf(&b, "\n|---|---|%s\n", strings.Repeat("---|", len(doors)))
	var notes []string
	for i := range all {
		f := &all[i]
		var flags []string
		for _, s := range settings.All() {
			if field, _, _ := strings.Cut(s.Field, "."); field == f.field || f.field == "Capture" && field == "Captures" {
				flags = append(flags, "`--"+s.Name+"`")
			}
		}
		if len(flags) > 3 {
			flags = append(flags[:2], "...")
		}
		fmt.Fprintf(&b, "| `%s`: %s | %s |", f.field, f.about, strings.Join(flags, ", "))
		for _, w := range doors {
			cell := "yes"
			if why := f.not[w.name]; why != "" {
				n := slices.Index(notes, why)
				if n < 0 {
					n = len(notes)
					notes = append(notes, why)
				}
				cell = fmt.Sprintf("%d)", n+1)
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for i, why := range notes {
		fmt.Fprintf(&b, "%d. %s\n", i+1, why)
	}
	const begin, end = "<!-- The table of TestWaysIn in cmd/ibverbx. -->\n", "<!-- End of the table. -->\n"
	file, err := os.ReadFile(docs("ways-in.md"))
	enginetest.WantOK(t, "ReadFile", err)
	before, rest, _ := strings.Cut(string(file), begin)
	_, after, ok := strings.Cut(rest, end)
	want := before + begin + "\n" + b.String() + "\n" + end + after
	wantTests(t, string(file))
	switch {
	case !ok:
		t.Errorf("docs/ways-in.md lacks the table's comments")
	case os.Getenv("IBVERBX_TEST_GOLDEN") != "":
		if err := os.WriteFile(docs("ways-in.md"), []byte(want), 0o644); err != nil {
			t.Errorf("WriteFile: got %v, want no error", err)
		}
	case want != string(file):
		t.Errorf("docs/ways-in.md differs from the test: run it with IBVERBX_TEST_GOLDEN=1. Want:\n%s", b.String())
	}
}

// wantTests checks that the tests named in a document exist.
func wantTests(t *testing.T, text string) {
	t.Helper()
	var source strings.Builder
	for _, dir := range []string{".", "../../peer", "../../node", "../../metrics", "../../settings", "../../dropin"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests in %s: %v", dir, err)
		}
		for _, name := range files {
			b, err := os.ReadFile(name)
			enginetest.WantOK(t, "ReadFile", err)
			source.Write(b)
		}
	}
	for _, name := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(source.String(), "func "+name[1]+"(") {
			t.Errorf("docs/ways-in.md names %s, which does not exist", name[1])
		}
	}
}
