// Package mutant checks that tests can fail. [Run] makes one wrong change in the source of a package at a
// time, and a test must fail. mutation_test.go in softnic, reliable, reliable/core and sim lists
// the changes; "make mutate" and "make planted" run them.
package mutant

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/testslice"
)

// Change is a wrong change of the source.
type Change struct {
	// Name describes the resulting fault.
	Name string
	// File is changed. It is relative to the directory of the test, and may be a pattern as of
	// filepath.Match; files of tests are left out. New replaces Old, which must occur exactly
	// once in the files that match.
	File, Old, New string
	// Also are further edits that are part of the same mistake.
	Also []Edit
	// Tests is a pattern of the tests to run, as of go test -run. Empty means all.
	Tests string
	// Race runs them with the race detector, and with memory on the heap, where it sees it.
	Race bool
	// Report is a regular expression that the output of the failing tests must match. Empty
	// means that any failure is good enough.
	Report string
}

// Edit replaces Old by New. Old must occur exactly once in the files that match File.
type Edit struct{ File, Old, New string }

// variable turns mutations on. It is empty in the tests that run on a mutant.
const variable = "IBVERBX_TEST_MUTATE"

// limit bounds building and testing one mutant. A hanging test has caught it: the binary exits
// after timeout, or after someTimeout if only some tests run without the race detector, and names
// the test. A test that must report the fault in a certain way gets the longer timeout, so that a
// busy machine does not count as a report.
const (
	limit       = 6 * time.Minute
	timeout     = 3 * time.Minute
	someTimeout = 30 * time.Second
)

// Run makes every change in turn and runs the tests of the package in the working directory.
// Each change must make a test fail. Every change is checked to apply in any case. The tests run
// only on demand (make mutate); a slice runs its part of the list.
//
// One binary holds all changes of function bodies, and the environment selects one of them. Other
// changes are built alone.
func Run(t *testing.T, changes []Change) {
	t.Helper()
	part := testslice.Of(t)
	var mine []numbered
	if os.Getenv(variable) != "" {
		for i, c := range changes {
			if part.Has(i, len(changes)) {
				mine = append(mine, numbered{i + 1, c})
			}
		}
	}
	b := prepare(t, mine)
	for i, c := range changes {
		t.Run(strings.ReplaceAll(c.Name, " ", "-"), func(t *testing.T) {
			files, err := c.apply()
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case os.Getenv(variable) == "":
				t.Skipf("it applies; set %s=1 to run the tests on it (make mutate)", variable)
			case !part.Has(i, len(changes)):
				t.Skipf("not in slice %s", os.Getenv(testslice.Env))
			}
			t.Parallel() // a test that hangs holds up no other mutant
			t.Logf("caught by %s", c.caughtBy(t, b, i+1, files))
		})
	}
}

// apply returns the changed files by their absolute names.
func (c *Change) apply() (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range append([]Edit{{c.File, c.Old, c.New}}, c.Also...) {
		if err := e.apply(changed); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// apply puts the edited file into changed, on top of earlier edits of the same file.
func (e *Edit) apply(changed map[string]string) error {
	files, err := filepath.Glob(e.File)
	if err != nil {
		return err
	}
	count := 0
	var name, after string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		abs, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		text, ok := changed[abs]
		if !ok {
			src, err := os.ReadFile(abs)
			if err != nil {
				return err
			}
			text = string(src)
		}
		if n := strings.Count(text, e.Old); n > 0 {
			count += n
			name, after = abs, strings.Replace(text, e.Old, e.New, 1)
		}
	}
	if count != 1 {
		return fmt.Errorf("%s: the text %q occurs %d times, want once: change the mutation so that it plants the same mistake in the new code",
			e.File, e.Old, count)
	}
	changed[name] = after
	return nil
}

// writeOverlay makes the go command read these texts in place of the files.
func writeOverlay(t *testing.T, files map[string]string) string {
	t.Helper()
	tmp := t.TempDir()
	replace := map[string]string{}
	for name, text := range files {
		replace[name] = filepath.Join(tmp, strconv.Itoa(len(replace))+filepath.Base(name)) // two directories may have the same name in them
		must(t, os.WriteFile(replace[name], []byte(text), 0o600))
	}
	j, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	must(t, err)
	overlay := filepath.Join(tmp, "overlay.json")
	must(t, os.WriteFile(overlay, j, 0o600))
	return overlay
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("error %v, want none", err)
	}
}

// caughtBy runs the tests of a change and returns the first that failed. A mutant that every test passes, or that fails
// in another way than Report says, fails the test. So does a test that fails without the change.
func (c *Change) caughtBy(t *testing.T, b *binaries, number int, files map[string]string) string {
	t.Helper()
	binary := b.holding(t, c, number, files)
	most := timeout
	if c.Tests != "" && !c.Race && c.Report == "" {
		most = someTimeout
	}
	out, err := runTests(t, binary, c.Tests, most, number)
	if err == nil {
		t.Fatal("survived: no test failed")
	}
	report := regexp.MustCompile(c.Report).FindString(out)
	if report == "" && c.Report != "" {
		t.Fatalf("the tests failed, but the output does not match %q:\n%s", c.Report, out)
	}
	if c.Report == "" {
		b.control(t, binary, c.Tests)
	}
	if hung := regexp.MustCompile(`(?m)^panic: test timed out.*\n.*running tests:\n\s*(\S+)`).FindStringSubmatch(out); hung != nil {
		return hung[1] + ", which hung"
	}
	if found := regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`).FindAllStringSubmatch(out, -1); found != nil {
		return strings.TrimSpace(found[len(found)-1][1] + " " + report)
	}
	return strings.SplitN(out, "\n", 2)[0]
}
