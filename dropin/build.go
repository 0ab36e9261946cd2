package dropin

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"ibverbx/internal/sharedlib"
)

// ErrCannotBuild means that the library does not exist and cannot be built. The wrapping error names the
// reason, such as missing tools.
var ErrCannotBuild = sharedlib.ErrCannotBuild

// shared describes the library.
func shared() *sharedlib.Library {
	return &sharedlib.Library{
		Name: "dropin", Variable: LibraryVariable, Files: []string{coreFile, preloadFile, linkFile, shimFile}, Source: sharedlib.SourceDir(),
		Needs: func(ctx context.Context, cc string) string {
			if stockLibrary(ctx, cc) == "" {
				return "rdma-core's headers and library (Debian: libibverbs-dev)"
			}
			return ""
		},
		Compile: compile,
	}
}

// stockLibrary returns the libibverbs.so that the compiler would link, or "".
func stockLibrary(ctx context.Context, cc string) string {
	out, err := exec.CommandContext(ctx, cc, "-print-file-name=libibverbs.so").Output()
	name := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(name) { // without a directory: not found
		return ""
	}
	return name
}

// compile builds the files of the library in a directory.
func compile(ctx context.Context, t *sharedlib.Tools, dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	sources, err := filepath.Glob(filepath.Join(t.Source, "shim", "*.c"))
	if err != nil {
		return err
	}
	preload, err := filepath.Glob(filepath.Join(t.Source, "preload", "*.c"))
	if err != nil {
		return err
	}
	flags := t.Flags()
	if err := t.Run(ctx, dir, t.CC, slices.Concat(flags, []string{"-nostdlib", "-r", "-o", at("shim.o"), t.Loader()}, sources)...); err != nil {
		return err
	}
	if err := writeStubs(stockLibrary(ctx, t.CC), at("shim.o"), at("stubs.c"), at("versions.map")); err != nil {
		return err
	}
	link := []string{
		"-shared", "-Wl,-soname," + shimFile, "-Wl,--version-script=" + at("versions.map"), "-Wl,-z,nodelete",
		"-o", at(shimFile), at("shim.o"), at("stubs.c"), "-ldl",
	}
	if err := t.Run(ctx, dir, t.CC, slices.Concat(flags, link)...); err != nil {
		return err
	}
	link = []string{
		"-shared", "-nostdlib", "-Wl,-soname," + linkFile, "-Wl,--no-as-needed", "-Wl,-z,nodelete", "-o", at(linkFile), at(shimFile),
	}
	if err := t.Run(ctx, dir, t.CC, link...); err != nil {
		return err
	}
	if err := t.Run(ctx, dir, t.CC, slices.Concat(flags, []string{"-shared", "-o", at(preloadFile)}, preload, []string{"-ldl"})...); err != nil {
		return err
	}
	return t.Core(ctx, at(coreFile))
}
