// Package sharedlib finds and builds shared libraries for C programs ([Library.Find]): the drop-in and the NCCL plugin. Such a library
// consists of thin C libraries and a Go core, built with -buildmode=c-shared. loader.c, in directory c, is compiled into the C libraries. It
// loads the core and keeps the signal handlers of the process.
package sharedlib

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// ErrCannotBuild means that the library does not exist and cannot be built. The wrapping error names the reason, such as missing tools.
var ErrCannotBuild = errors.New("the library is not installed and cannot be built")

// Library describes a library that Find returns.
type Library struct {
	// Name identifies the library in the cache and in messages.
	Name string
	// Variable is the environment variable with the library's directory. If the library does not exist there, it is built there.
	Variable string
	// Files are the files of the library.
	Files []string
	// Source is the directory with its source. The subdirectory shim must exist.
	Source string
	// Needs returns the missing build requirements of this machine, or "". It may be nil.
	Needs func(ctx context.Context, cc string) string
	// Compile builds all Files in a directory. Other files there are deleted.
	Compile func(ctx context.Context, t *Tools, dir string) error
}

// SourceDir returns the directory of the caller's source file.
func SourceDir() string {
	_, file, _, _ := runtime.Caller(1)
	return filepath.Dir(file)
}

// In reports whether a directory has all files of the library.
func (l *Library) In(dir string) bool {
	for _, name := range l.Files {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// Find returns the library's directory: the one that lookup returns for Variable, the one of this executable, or one in the user's cache.
// If the library does not exist, Find builds it and reports that on notes. It returns ErrCannotBuild if that is impossible.
func (l *Library) Find(ctx context.Context, lookup func(string) (string, bool), notes io.Writer) (string, error) {
	if dir, ok := lookup(l.Variable); ok && dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		return dir, l.Build(ctx, dir, notes)
	}
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	for _, dir := range []string{filepath.Dir(exe), filepath.Join(filepath.Dir(exe), "..", "lib", "ibverbx")} {
		if l.In(dir) {
			return filepath.Clean(dir), nil
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no directory for the library: %w; set %s to one", err, l.Variable)
	}
	id, err := identity(exe)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "ibverbx", l.Name+"-"+id)
	return dir, l.Build(ctx, dir, notes)
}

// identity names the build of an executable. A library in the cache belongs to the executable that built it.
func identity(exe string) (id string, err error) {
	f, err := os.Open(exe)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// Tools are the programs that a build uses.
type Tools struct {
	// Source is Library.Source.
	Source string
	// CC and Go are the paths of the C compiler and the go command.
	CC, Go string
}

// findTools finds the tools of a build. Its error lists everything missing.
func (l *Library) findTools(ctx context.Context) (t Tools, err error) {
	var missing []string
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		return t, fmt.Errorf("%w: it exists for Linux on amd64 and arm64, this is %s on %s", ErrCannotBuild, runtime.GOOS, runtime.GOARCH)
	}
	t.Source = l.Source
	if info, err := os.Stat(filepath.Join(t.Source, "shim")); err != nil || !info.IsDir() {
		missing = append(missing, "the source of ibverbx, which was at "+t.Source)
	}
	if t.Go, err = exec.LookPath("go"); err != nil {
		missing = append(missing, "the go command")
	}
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if t.CC == "" && name != "" {
			t.CC, _ = exec.LookPath(name) // empty if it is missing
		}
	}
	if t.CC == "" {
		missing = append(missing, "a C compiler (Debian: gcc libc6-dev)")
	} else if l.Needs != nil {
		if what := l.Needs(ctx, t.CC); what != "" {
			missing = append(missing, what)
		}
	}
	if len(missing) > 0 {
		return t, fmt.Errorf("%w: missing are %s; or set %s to a directory that has it", ErrCannotBuild, strings.Join(missing, ", "), l.Variable)
	}
	return t, nil
}

// Build builds the library in a directory unless it exists there. Concurrent builds do not disturb each other: each is complete before it
// is moved into the directory.
func (l *Library) Build(ctx context.Context, dir string, notes io.Writer) error {
	if l.In(dir) {
		return nil
	}
	t, err := l.findTools(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(notes, "ibverbx: building the library in %s\n", dir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "."+l.Name+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // it no longer exists if the build succeeded
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := l.Compile(ctx, &t, tmp); err != nil {
		return err
	}
	if err := l.clean(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err == nil || l.In(dir) {
		return nil
	}
	// The directory exists and has other files.
	for _, name := range l.Files {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// clean deletes the intermediate files of a build.
func (l *Library) clean(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(l.Files, e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// Flags returns the options for compiling C code.
func (t *Tools) Flags() []string {
	return []string{"-std=gnu11", "-O2", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-I" + t.loader()}
}

// loader is the directory of the C code that loads the core.
func (*Tools) loader() string { return filepath.Join(SourceDir(), "c") }

// Loader returns the C source that loads the core.
func (t *Tools) Loader() string { return filepath.Join(t.loader(), "loader.c") }

// Core builds the Go core, the package in the directory core of the source, as the given file.
func (t *Tools) Core(ctx context.Context, file string) error {
	return t.Run(ctx, filepath.Join(t.Source, "core"), t.Go, "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", file, ".")
}

// Run runs a tool in a directory. If it fails, the error contains the tool's output.
func (t *Tools) Run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// A preloaded drop-in must not affect a compiler.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CC="+t.CC, "LD_PRELOAD=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the library: %s: %w\n%s", filepath.Base(name), err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}
