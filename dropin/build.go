package dropin

import (
	"bytes"
	"context"
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

// ErrCannotBuild means that the library does not exist and cannot be built. The wrapping error names the
// reason, such as missing tools.
var ErrCannotBuild = errors.New("the library is not installed and cannot be built")

// tools are what a build needs.
type tools struct {
	// source is the directory of this package.
	source    string
	cc, gocmd string
	// stock is the libibverbs.so of the installed rdma-core.
	stock string
}

// findTools finds what a build needs, or says all that is missing.
func findTools(ctx context.Context) (t tools, err error) {
	var missing []string
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		return t, fmt.Errorf("%w: it exists for Linux on amd64 and arm64, this is %s on %s", ErrCannotBuild, runtime.GOOS, runtime.GOARCH)
	}
	_, file, _, _ := runtime.Caller(0)
	t.source = filepath.Dir(file)
	if info, err := os.Stat(filepath.Join(t.source, "shim")); err != nil || !info.IsDir() {
		missing = append(missing, "the source of ibverbx, which was at "+t.source)
	}
	if t.gocmd, err = exec.LookPath("go"); err != nil {
		missing = append(missing, "the go command")
	}
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if t.cc == "" && name != "" {
			t.cc, _ = exec.LookPath(name) // empty if it is missing
		}
	}
	if t.cc == "" {
		missing = append(missing, "a C compiler (Debian: gcc libc6-dev)")
	} else if t.stock = stockLibrary(ctx, t.cc); t.stock == "" {
		missing = append(missing, "rdma-core's headers and library (Debian: libibverbs-dev)")
	}
	if len(missing) > 0 {
		return t, fmt.Errorf("%w: missing are %s; or set %s to a directory that has it", ErrCannotBuild, strings.Join(missing, ", "), LibraryVariable)
	}
	return t, nil
}

// stockLibrary returns the libibverbs.so that the compiler would link, empty if there is none.
func stockLibrary(ctx context.Context, cc string) string {
	out, err := exec.CommandContext(ctx, cc, "-print-file-name=libibverbs.so").Output()
	name := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(name) { // without a directory: not found
		return ""
	}
	return name
}

// build makes the library unless it is there already. Two builds at once do no harm: each is complete before it takes
// its place.
func build(ctx context.Context, l Library, notes io.Writer) (Library, error) {
	if l.complete() {
		return l, nil
	}
	t, err := findTools(ctx)
	if err != nil {
		return Library{}, err
	}
	fmt.Fprintf(notes, "ibverbx: building the library in %s\n", l.Dir)
	if err := os.MkdirAll(filepath.Dir(l.Dir), 0o755); err != nil {
		return Library{}, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(l.Dir), ".dropin-")
	if err != nil {
		return Library{}, err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // nothing is there if the build succeeded
	if err := os.Chmod(tmp, 0o755); err != nil {
		return Library{}, err
	}
	if err := t.compile(ctx, tmp); err != nil {
		return Library{}, err
	}
	if err := os.Rename(tmp, l.Dir); err == nil || l.complete() {
		return l, nil
	}
	// The directory exists and has other files.
	for _, name := range files() {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(l.Dir, name)); err != nil {
			return Library{}, err
		}
	}
	return l, nil
}

// compile builds the files of the library in a directory.
func (t *tools) compile(ctx context.Context, dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	sources, err := filepath.Glob(filepath.Join(t.source, "shim", "*.c"))
	if err != nil {
		return err
	}
	preload, err := filepath.Glob(filepath.Join(t.source, "preload", "*.c"))
	if err != nil {
		return err
	}
	flags := []string{"-std=gnu11", "-O2", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Wno-missing-field-initializers"}
	if err := t.run(ctx, dir, t.cc, slices.Concat(flags, []string{"-nostdlib", "-r", "-o", at("shim.o")}, sources)...); err != nil {
		return err
	}
	if err := writeStubs(t.stock, at("shim.o"), at("stubs.c"), at("versions.map")); err != nil {
		return err
	}
	link := []string{
		"-shared", "-Wl,-soname," + shimFile, "-Wl,--version-script=" + at("versions.map"), "-Wl,-z,nodelete",
		"-o", at(shimFile), at("shim.o"), at("stubs.c"), "-ldl",
	}
	if err := t.run(ctx, dir, t.cc, slices.Concat(flags, link)...); err != nil {
		return err
	}
	link = []string{
		"-shared", "-nostdlib", "-Wl,-soname," + linkFile, "-Wl,--no-as-needed", "-Wl,-z,nodelete", "-o", at(linkFile), at(shimFile),
	}
	if err := t.run(ctx, dir, t.cc, link...); err != nil {
		return err
	}
	if err := t.run(ctx, dir, t.cc, slices.Concat(flags, []string{"-shared", "-o", at(preloadFile)}, preload, []string{"-ldl"})...); err != nil {
		return err
	}
	if err := t.run(ctx, filepath.Join(t.source, "core"), t.gocmd, "build", "-buildmode=c-shared", "-ldflags=-s -w", "-o", at(coreFile), "."); err != nil {
		return err
	}
	for _, name := range []string{"shim.o", "stubs.c", "versions.map", strings.TrimSuffix(coreFile, ".so") + ".h"} {
		if err := os.Remove(at(name)); err != nil {
			return err
		}
	}
	return nil
}

// run runs a tool. If it fails, the error has what the tool said.
func (t *tools) run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	// A drop-in that is preloaded already has no business in a compiler.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "CC="+t.cc, "LD_PRELOAD=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the library: %s: %w\n%s", filepath.Base(name), err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}
