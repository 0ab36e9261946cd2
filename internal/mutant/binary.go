package mutant

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/testslice"
)

// numbered is a change with its number in the list of a package, counted from 1.
type numbered struct {
	number int
	Change
}

// binaries are the test binaries of a package with its changes.
type binaries struct {
	// mu guards held and its builds.
	mu sync.Mutex
	// held is the combined binary without (false) and with (true) the race detector, empty before its first use.
	held map[bool]string
	// combined holds the sources of these binaries.
	combined map[bool]*combined
	// apart contains the numbers of the changes with a separate build.
	apart map[int]bool
	// dir is the directory of the combined binaries.
	dir string
	// controls guards sound and the tests without a change.
	controls sync.Mutex
	// sound records by binary and pattern which tests pass without a change.
	sound map[[2]string]bool
}

// prepare finds out which changes one binary can hold. Changes that do not apply are left out; Run reports them.
func prepare(t *testing.T, changes []numbered) *binaries {
	t.Helper()
	b := &binaries{
		held: map[bool]string{}, combined: map[bool]*combined{false: newCombined(), true: newCombined()},
		apart: map[int]bool{}, sound: map[[2]string]bool{},
	}
	if len(changes) > 0 {
		b.dir = t.TempDir()
	}
	for _, c := range changes {
		after, err := c.apply()
		if err != nil {
			continue
		}
		before := map[string]string{}
		for name := range after {
			text, err := os.ReadFile(name)
			must(t, err)
			before[name] = string(text)
		}
		switch err := b.combined[c.Race].add(c.number, before, after); {
		case errors.Is(err, errApart):
			b.apart[c.number] = true
		default:
			must(t, err)
		}
	}
	return b
}

// holding returns the binary with a change, whose files are these.
func (b *binaries) holding(t *testing.T, c *Change, number int, files map[string]string) string {
	t.Helper()
	if b.apart[number] {
		return build(t, files, filepath.Join(t.TempDir(), "apart.test"), c.Race)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[c.Race] == "" {
		b.held[c.Race] = build(t, b.combined[c.Race].files(), filepath.Join(b.dir, "combined"+strconv.FormatBool(c.Race)+".test"), c.Race)
	}
	return b.held[c.Race]
}

// control requires tests to pass without a change: a test that always fails catches nothing.
func (b *binaries) control(t *testing.T, binary, tests string) {
	t.Helper()
	b.controls.Lock()
	defer b.controls.Unlock()
	key := [2]string{binary, tests}
	if tests == "" || filepath.Dir(binary) != b.dir || b.sound[key] {
		return
	}
	if out, err := runTests(t, binary, tests, timeout, 0); err != nil {
		t.Fatalf("tests %q fail without a mistake: %v\n%s", tests, err, out)
	}
	b.sound[key] = true
}

// build makes a test binary of the package in the working directory from changed files.
func build(t *testing.T, files map[string]string, binary string, race bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := []string{"test", "-c", "-overlay", writeOverlay(t, files), "-o", binary, "-vet=off", "-ldflags=-s -w"}
	cmd := exec.CommandContext(ctx, "go", args...)
	if race {
		cmd.Args = append(cmd.Args, "-race", "-tags", "heapmem")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build of the mutants: %v\n%s", err, out)
	}
	return binary
}

// runTests runs some tests of a binary with one change selected; 0 selects none.
func runTests(t *testing.T, binary, tests string, most time.Duration, number int) (out string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.paniconexit0", "-test.failfast", "-test.timeout", most.String(), "-test.run", tests)
	cmd.Env = append(os.Environ(), variable+"=", testslice.Env+"=0/1", "IBVERBX_TEST_SIM_SEEDS=", chosen+"="+strconv.Itoa(number))
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("no verdict: %v\n%s", err, text)
	}
	return string(text), err
}
