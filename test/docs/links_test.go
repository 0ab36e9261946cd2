package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

// linked returns the files that a page links to, relative to the root of the repository.
func linked(t *testing.T, page string) (files []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	enginetest.Must(t, err)
	for _, m := range link.FindAllStringSubmatch(string(text), -1) {
		files = append(files, filepath.Join(filepath.Dir(page), m[1]))
	}
	return files
}

// TestLinks: links lead to files that exist.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	enginetest.Must(t, err)
	for i := range pages {
		pages[i] = strings.TrimPrefix(pages[i], "../../")
	}
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md", "SECURITY.md") {
		for _, file := range linked(t, page) {
			if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
				t.Errorf("%s links to %s: %v", page, file, err)
			}
		}
	}
}

// TestReachable: every page and every example is linked from README.md or docs/README.md.
func TestReachable(t *testing.T) {
	reached := map[string]bool{}
	for _, page := range []string{"README.md", "docs/README.md"} {
		for _, file := range linked(t, page) {
			reached[file] = true
		}
	}
	for _, pattern := range []string{"docs/*.md", "examples/*"} {
		files, err := filepath.Glob("../../" + pattern)
		enginetest.Must(t, err)
		for _, file := range files {
			if file = strings.TrimPrefix(file, "../../"); !reached[file] && file != "docs/README.md" {
				t.Errorf("neither README.md nor docs/README.md links to %s", file)
			}
		}
	}
}

// TestREADME: README.md is short and names every public package.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	enginetest.Must(t, err)
	if n := strings.Count(string(text), "\n"); n > 130 {
		t.Errorf("README.md has %d lines, want at most 130", n)
	}
	enginetest.Must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(path, "../.."), "/"))
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "" || d.Name() == "internal" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !d.IsDir() || name == "":
			return nil
		case name == "cmd" || name == "examples" || name == "test" || name == "docs":
			return filepath.SkipDir
		}
		files, err := filepath.Glob(path + "/*.go")
		if err != nil || len(files) == 0 || strings.HasSuffix(files[0], "_test.go") || isCommand(files[0]) {
			return err
		}
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("README.md does not name the package %s", name)
		}
		return nil
	}))
}

// TestArchitecture: docs/architecture.md can be read in ten minutes, and the files that it names exist.
func TestArchitecture(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	enginetest.Must(t, err)
	if n := strings.Count(string(text), "\n"); n > 200 {
		t.Errorf("docs/architecture.md has %d lines, want at most 200", n)
	}
	names := map[string]bool{}
	enginetest.Must(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		names[filepath.Base(path)] = true
		return err
	}))
	for _, m := range regexp.MustCompile("`([a-z0-9_/]+\\.go)`").FindAllStringSubmatch(string(text), -1) {
		if !names[filepath.Base(m[1])] {
			t.Errorf("docs/architecture.md names %s, which does not exist", m[1])
		}
	}
}

// isCommand reports whether a file is part of a program.
func isCommand(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && strings.Contains(string(text), "\npackage main\n")
}
