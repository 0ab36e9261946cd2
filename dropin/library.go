package dropin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// LibraryVariable names the directory of the library. If the library is not there yet, it is built there.
const LibraryVariable = prefix + "LIB"

// Files of the library. The shim looks for the core beside itself.
const (
	shimFile    = "libibverbs.so.1"
	coreFile    = "libibverbx-core.so"
	preloadFile = "libibverbx-preload.so"
)

// Library is the drop-in library, in a directory.
type Library struct{ Dir string }

// complete reports whether the directory has all files.
func (l Library) complete() bool {
	for _, name := range []string{shimFile, coreFile, preloadFile} {
		if info, err := os.Stat(filepath.Join(l.Dir, name)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// Env returns the variables that make a program use the library. environ is the environment that the program will
// have otherwise: libraries that it preloads stay preloaded.
func (l Library) Env(environ []string) ([]string, error) {
	if strings.ContainsAny(l.Dir, ": \t\n") {
		return nil, fmt.Errorf("the library is in %q: LD_PRELOAD cannot name a path with spaces or colons; set %s to another directory",
			l.Dir, LibraryVariable)
	}
	preload := filepath.Join(l.Dir, preloadFile) + ":" + filepath.Join(l.Dir, shimFile)
	for _, v := range environ {
		if old, ok := strings.CutPrefix(v, "LD_PRELOAD="); ok && old != "" && old != preload {
			preload += ":" + old
		}
	}
	return []string{"LD_PRELOAD=" + preload}, nil
}

// Find returns the library: the one in the directory that lookup has under LibraryVariable, one beside this executable, or one
// in the user's cache. If there is none, Find builds one and says so on notes.
func Find(ctx context.Context, lookup func(string) (string, bool), notes io.Writer) (Library, error) {
	if dir, ok := lookup(LibraryVariable); ok && dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return Library{}, err
		}
		return build(ctx, Library{dir}, notes)
	}
	exe, err := os.Executable()
	if err != nil {
		return Library{}, err
	}
	for _, dir := range []string{filepath.Dir(exe), filepath.Join(filepath.Dir(exe), "..", "lib", "ibverbx")} {
		if l := (Library{filepath.Clean(dir)}); l.complete() {
			return l, nil
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Library{}, fmt.Errorf("no directory for the library: %w; set %s to one", err, LibraryVariable)
	}
	id, err := identity(exe)
	if err != nil {
		return Library{}, err
	}
	return build(ctx, Library{filepath.Join(cache, "ibverbx", "dropin-"+id)}, notes)
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
