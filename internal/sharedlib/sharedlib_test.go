package sharedlib

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sample is a library of one file. Its build also leaves an intermediate file.
func sample(t *testing.T, builds *int) *Library {
	t.Helper()
	l := &Library{Name: "sample", Variable: "SAMPLE_LIB", Files: []string{"libsample.so"}, Source: t.TempDir()}
	if err := os.Mkdir(filepath.Join(l.Source, "shim"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.Compile = func(_ context.Context, _ *Tools, dir string) error {
		*builds++
		return errors.Join(os.WriteFile(filepath.Join(dir, "libsample.so"), []byte("x"), 0o644),
			os.WriteFile(filepath.Join(dir, "sample.h"), nil, 0o644))
	}
	return l
}

// named returns a lookup with one variable.
func named(name, value string) func(string) (string, bool) {
	return func(n string) (string, bool) { return value, n == name }
}

// TestFind: the library is built once in the named directory, even if that exists with other files, and without intermediate files.
func TestFind(t *testing.T) {
	builds := 0
	l := sample(t, &builds)
	if _, err := l.findTools(t.Context()); err != nil {
		t.Skip(err.Error())
	}
	for _, exists := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "lib")
		if exists {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		builds = 0
		var notes bytes.Buffer
		for range 2 {
			got, err := l.Find(t.Context(), named("SAMPLE_LIB", dir), &notes)
			if err != nil || got != dir || !l.In(dir) {
				t.Fatalf("Find = %q, %v, want the library in %s", got, err, dir)
			}
		}
		if builds != 1 || strings.Count(notes.String(), "building") != 1 {
			t.Errorf("%d builds, and notes %q, want one of each", builds, &notes)
		}
		if _, err := os.Stat(filepath.Join(dir, "sample.h")); err == nil {
			t.Error("an intermediate file is in the library's directory")
		}
	}
}

// TestCannotBuild: without tools the error lists everything missing and the variable that avoids the build.
func TestCannotBuild(t *testing.T) {
	builds := 0
	l := sample(t, &builds)
	l.Needs = func(context.Context, string) string { return "a header" }
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CC", "no-such-compiler")
	err := l.Build(t.Context(), t.TempDir(), &bytes.Buffer{})
	if !errors.Is(err, ErrCannotBuild) || builds != 0 {
		t.Fatalf("Build without tools = %v after %d builds, want ErrCannotBuild", err, builds)
	}
	if strings.Contains(err.Error(), "this is") {
		t.Skip("the libraries exist for Linux on amd64 and arm64 only")
	}
	for _, want := range []string{"the go command", "a C compiler", "SAMPLE_LIB"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not mention %s", err, want)
		}
	}
}
