package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"ibverbx/internal/enginetest"
)

var rewrite = flag.Bool("update", false, "write the golden files")

// screenOf renders terminal output: text after a carriage return overwrites its line.
func screenOf(written string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.ReplaceAll(written, "\r\n", "\n"), "\n") {
		var shown []rune
		for part := range strings.SplitSeq(line, "\r") {
			over := []rune(part)
			shown = append(over, shown[min(len(over), len(shown)):]...)
		}
		lines = append(lines, strings.TrimRight(string(shown), " "))
	}
	return strings.Join(lines, "\n")
}

// numberless replaces numbers with N and collapses spaces, which depend on number widths. Consecutive equal lines are
// merged.
func numberless(screen string) string {
	screen = regexp.MustCompile(`\b(0x)?[0-9a-f]*[0-9][0-9a-f.:]*\b`).ReplaceAllString(screen, "N")
	screen = regexp.MustCompile(` +`).ReplaceAllString(strings.ReplaceAll(screen, "\x1b", "^["), " ")
	return strings.Join(slices.Compact(strings.Split(screen, "\n")), "\n")
}

// TestScreens: the terminal output of commands fits the terminal, contains no leftovers of a progress line and matches
// the golden files testdata/screen-NAME.txt. Update them with go test -update.
func TestScreens(t *testing.T) {
	for name, args := range map[string]string{
		"perf":     "perf -s 64,64K -n 200 -q 2 --provider softnic",
		"lat":      "perf --lat -s 8 -n 200 --provider softnic",
		"interval": "perf -s 64K -D 0.25 --interval 0.1 --provider softnic",
		"devices":  "devices --provider softnic",
		"doctor":   "doctor", // findings depend on the machine
	} {
		for _, size := range [][2]uint16{{80, 24}, {120, 40}} {
			t.Run(name, func(t *testing.T) {
				x := newTerminal(t, size[0], size[1])
				cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(args)...)
				cmd.Env = append(slices.DeleteFunc(cmd.Environ(), isSetting), asCommand+"=1", "TERM=xterm", "NO_COLOR=")
				cmd.Stdout, cmd.Stderr = x.file, x.file
				if err := cmd.Run(); err != nil && name != "doctor" {
					t.Fatalf("ibverbx %s: got %v, want no error:\n%s", args, err, x.text())
				}
				x.end()
				screen := screenOf(x.text())
				for line := range strings.SplitSeq(screen, "\n") {
					plain := regexp.MustCompile(`\x1b\[[0-9]*m`).ReplaceAllString(line, "")
					if n := utf8.RuneCountInString(plain); n > columns && !strings.HasPrefix(plain, "           - ") { // a command to copy
						t.Errorf("ibverbx %s: a line of %d columns, want at most %d: %q", args, n, columns, plain)
					}
				}
				if name != "doctor" {
					goldenScreen(t, name, numberless(screen))
				}
			})
		}
	}
}

// isSetting reports whether a variable changes the output of commands.
func isSetting(variable string) bool { return strings.HasPrefix(variable, "IBVERBX_") }

// goldenScreen compares a screen with its golden file.
func goldenScreen(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "screen-"+name+".txt")
	if *rewrite {
		enginetest.WantOK(t, "WriteFile", os.WriteFile(file, []byte(got), 0o644))
	}
	if want := read(t, file); got != want {
		t.Errorf("the screen is\n%s\nwant\n%s", got, want)
	}
}

// TestDevicesOfSoftware: devices --provider softnic does not load the NVIDIA driver, here one that fails to
// initialize. Its output is the same on every machine.
func TestDevicesOfSoftware(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("needs a C compiler for the stand-in of libcuda: %v", err)
	}
	dir := t.TempDir()
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "../../cuda/testdata/fakecuda.c", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("compile the stand-in: got %v, want no error:\n%s", err, out)
	}
	state := make([]byte, 4096)
	state[0] = 3 // result of cuInit: CUDA_ERROR_NOT_INITIALIZED
	enginetest.WantOK(t, "WriteFile", os.WriteFile(filepath.Join(dir, "state"), state, 0o600))
	devices := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"devices"}, args...)...)
		cmd.Env = append(cmd.Environ(), asCommand+"=1", "LD_LIBRARY_PATH="+dir, "IBVERBX_TEST_CUDA="+filepath.Join(dir, "state"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const complaint = "No GPU is usable"
	if out, err := devices(); !strings.Contains(out, complaint) {
		t.Skipf("this build opens no libcuda, or the NICs of this machine are not usable: %v", err)
	}
	if out, err := devices("--provider", "softnic"); err != nil || strings.Contains(out, complaint) {
		t.Errorf("devices --provider softnic: got %v, want no error and nothing about GPUs:\n%s", err, out)
	}
}
