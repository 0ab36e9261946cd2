package filter

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree is the tree of TestLikeRsync. Names that end in a slash are directories.
var tree = []string{
	"a", "b.o", "dir/", "dir/a", "dir/b.o", "dir/sub/", "dir/sub/a", "dir/sub/c.o", "other/", "other/dir/", "other/dir/a", "other/x[y]", "other/xyz", "z*z",
}

// lists are lists of rules.
var lists = [][]string{
	{},
	{"- a"},
	{"- /a"},
	{"- *.o"},
	{"- dir/"},
	{"- a/"},
	{"- /dir"},
	{"- dir/a"},
	{"- /dir/a"},
	{"- sub/*"},
	{"- dir/*.o"},
	{"- dir/**"},
	{"- /dir/**"},
	{"- dir/***"},
	{"- /other/***"},
	{"- **/a"},
	{"- dir/**/a"},
	{"- ?"},
	{"- [ab]"},
	{"- [!a]"},
	{"- [^a-y]*"},
	{"- x[[]*"},
	{"- x\\[y]"},
	{"- z\\*z"},
	{"- z?z"},
	{"+ *.o", "- *"},
	{"+ */", "+ *.o", "- *"},
	{"+ /dir/", "- /*"},
	{"+ dir/sub/", "- dir/*"},
	{"- c.*", "+ *.o", "- dir/sub/*"},
	{"- *"},
	{"- **"},
	{"- /"},
	{"- dir/sub"},
	{"- *r/*"},
	{"- o*r"},
	{"- /*/*/a"},
	{"- /**/a"},
}

// included returns the paths of the tree that a list of rules includes.
func included(t *testing.T, rules []string) (paths []string) {
	t.Helper()
	f, err := New(rules)
	if err != nil {
		t.Fatalf("New(%q): %v", rules, err)
	}
	excluded := map[string]bool{}
	for _, name := range tree {
		path, dir := strings.CutSuffix(name, "/")
		if up := filepath.Dir(path); excluded[up] || f.Excludes(path, dir) {
			excluded[path] = true
			continue
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// golden holds the paths that rsync 3.4.1 and 3.5.0 copy for each list.
const golden = "testdata/rsync.txt"

// TestLikeRsync: every list of rules includes what rsync copies. If rsync is installed, the golden file is compared too.
func TestLikeRsync(t *testing.T) {
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(want) != len(lists) {
		t.Fatalf("%s has %d lines, want %d", golden, len(want), len(lists))
	}
	for i, rules := range lists {
		if got := strings.Join(append(slices.Clone(rules), included(t, rules)...), "|"); got != want[i] {
			t.Errorf("%q: got %q, want %q", rules, got, want[i])
		}
	}
}

// TestGoldenOfRsync compares the golden file with the installed rsync.
func TestGoldenOfRsync(t *testing.T) {
	_, err := exec.LookPath("rsync")
	if err != nil && os.Getenv("IBVERBX_CI") == "1" {
		t.Fatal("rsync is not installed")
	}
	if err != nil {
		t.Skip("needs rsync: install the Debian package rsync")
	}
	from := t.TempDir()
	for _, name := range tree {
		if path := filepath.Join(from, name); strings.HasSuffix(name, "/") {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for _, rules := range lists {
		to := t.TempDir()
		args := []string{"-r"}
		for _, r := range rules {
			args = append(args, "--filter="+r)
		}
		if out, err := exec.Command("rsync", append(args, from+"/", to)...).CombinedOutput(); err != nil {
			t.Fatalf("rsync %q: %v: %s", args, err, out)
		}
		var paths []string
		for _, name := range tree {
			if path := strings.TrimSuffix(name, "/"); exists(filepath.Join(to, path)) {
				paths = append(paths, path)
			}
		}
		slices.Sort(paths)
		lines = append(lines, strings.Join(append(slices.Clone(rules), paths...), "|"))
	}
	text := strings.Join(lines, "\n") + "\n"
	if os.Getenv("IBVERBX_TEST_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(golden); err != nil || string(b) != text {
		t.Errorf("rsync copies %q (%v), the golden file has %q", text, err, b)
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// TestInvalidRules: rules of other forms are refused.
func TestInvalidRules(t *testing.T) {
	for _, text := range []string{"", "-", "- ", "a", "-a", "* a", "- a\nb", "- a\x00"} {
		if _, err := New([]string{text}); !errors.Is(err, ErrRule) {
			t.Errorf("New(%q): got %v, want %v", text, err, ErrRule)
		}
	}
	if _, err := New([]string{"- " + strings.Repeat("x", MaxLen)}); err == nil {
		t.Error("New of rules that are too long: got no error")
	}
}

// FuzzMatch: no pattern makes the filter panic, and a pattern of literal characters matches itself only.
func FuzzMatch(f *testing.F) {
	for _, rules := range lists {
		for _, r := range rules {
			f.Add(r[2:], "dir/sub/a")
		}
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		x, err := New([]string{"- " + pattern})
		if err != nil || len(path) > 1000 {
			return
		}
		got := x.Excludes(path, false)
		if !strings.ContainsAny(pattern, "*?[\\/") && !strings.Contains(path, "/") && got != (pattern == path) {
			t.Errorf("pattern %q excludes %q: %v", pattern, path, got)
		}
	})
}

// TestPaths: with paths, only they, their parents and their contents are left, and patterns still exclude.
func TestPaths(t *testing.T) {
	f, err := New([]string{"- *.o", "= a/b/c", "= d", "= x.o"})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"a": false, "a/b": false, "a/b/c": false, "a/b/c/e": false, "a/b/d": true, "a/f": true, "d": false, "d/e/f": false, "d/e.o": true, "x.o": true, "z": true,
	} {
		if got := f.Excludes(path, false); got != want {
			t.Errorf("Excludes(%q) = %t, want %t", path, got, want)
		}
	}
	names := f.Paths()
	if slices.Sort(names); !slices.Equal(names, []string{"a/b/c", "d"}) {
		t.Errorf("Paths() = %q, want those that no pattern excludes", names)
	}
	for _, rule := range []string{"= /a", "= ../a", "= a//b", "= .", "= a/"} {
		if _, err := New([]string{rule}); err == nil {
			t.Errorf("New(%q) succeeds, want an error", rule)
		}
	}
}
