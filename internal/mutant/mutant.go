// Package mutant breaks a package in one place at a time and wants its tests to notice: a test
// that cannot fail proves nothing.
package mutant

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Change is a wrong change of a file.
type Change struct {
	// Name says what is wrong afterwards.
	Name string
	// File is changed, in the directory of the package under test. New takes the place of
	// Old, which must occur once.
	File, Old, New string
	// Tests is a pattern of the tests to run, as of go test -run. Empty means all.
	Tests string
}

// variable says that mutations are to be run. It is empty in the tests that they run.
const variable = "IBVERBX_MUTATE"

// limit is how long the tests of a mutant may take.
const limit = 5 * time.Minute

// Run makes every change, one after the other, and runs the tests of the package, which is in
// the working directory. Each must make a test fail. The package is built many times over, so
// this happens only on demand: make mutate.
func Run(t *testing.T, changes []Change) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skipf("set %s=1 (make mutate, part of .ci/run): it takes minutes", variable)
	}
	for _, c := range changes {
		t.Run(strings.ReplaceAll(c.Name, " ", "-"), func(t *testing.T) {
			file, err := filepath.Abs(c.File)
			must(t, err)
			src, err := os.ReadFile(file)
			must(t, err)
			if n := strings.Count(string(src), c.Old); n != 1 {
				t.Fatalf("%q occurs %d times in %s, want once: the code has moved on", c.Old, n, c.File)
			}
			overlay := writeOverlay(t, file, strings.Replace(string(src), c.Old, c.New, 1))
			t.Logf("caught by %s", caughtBy(t, overlay, c.Tests))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("error %v, want none", err)
	}
}

// writeOverlay makes the go command read text in place of file.
func writeOverlay(t *testing.T, file, text string) string {
	t.Helper()
	tmp := t.TempDir()
	mutant, overlay := filepath.Join(tmp, "mutant.go"), filepath.Join(tmp, "overlay.json")
	must(t, os.WriteFile(mutant, []byte(text), 0o600))
	j, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutant}})
	must(t, err)
	must(t, os.WriteFile(overlay, j, 0o600))
	return overlay
}

// caughtBy runs tests of the package with an overlay and returns the first that failed. A
// mutant that does not compile, or that every test passes, fails the test.
func caughtBy(t *testing.T, overlay, tests string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-failfast", "-count=1", "-vet=off", "-run", tests, ".")
	cmd.Env = append(os.Environ(), variable+"=")
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		t.Fatal("survived: no test failed")
	case strings.Contains(string(out), "[build failed]") || ctx.Err() != nil:
		t.Fatalf("no verdict: %v\n%s", err, out)
	}
	if found := regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`).FindAllStringSubmatch(string(out), -1); found != nil {
		return found[len(found)-1][1]
	}
	return strings.SplitN(string(out), "\n", 2)[0]
}
