package chunk

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
)

// must fails the test if err is not nil.
var must = enginetest.Must

func wants(tb testing.TB, err, want error, when string) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Fatalf("%s: error %v, want %v", when, err, want)
	}
}

// newRoot returns a directory as a root, and its path.
func newRoot(tb testing.TB) (*os.Root, string) {
	tb.Helper()
	dir := tb.TempDir()
	return rootAt(tb, dir), dir
}

func rootAt(tb testing.TB, dir string) *os.Root {
	tb.Helper()
	root, err := os.OpenRoot(dir)
	must(tb, err)
	tb.Cleanup(func() { must(tb, root.Close()) })
	return root
}

// content returns n pseudo-random bytes.
func content(n int, seed uint64) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = src.Read(b)
	return b
}

func create(tb testing.TB, root *os.Root, name string, size int, fresh bool) *Target {
	tb.Helper()
	t, err := Create(root, name, int64(size), fresh)
	must(tb, err)
	tb.Cleanup(func() { must(tb, t.Close()) })
	return t
}

// piece returns chunk k of b.
func piece(b []byte, k int64) []byte { return b[k*Size:][:Len(int64(len(b)), k)] }

// write writes chunks of b.
func (t *Target) write(tb testing.TB, b []byte, ks ...int64) {
	tb.Helper()
	for _, k := range ks {
		must(tb, t.Write(k, piece(b, k), Digest(piece(b, k))))
	}
}

func total(b []byte) Sum {
	return Total(int64(len(b)), func(k int64) uint32 { return Digest(piece(b, k)) })
}

var someDay = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)

// expect checks the content of a file, and that its partial file was removed.
func expect(tb testing.TB, dir, name string, want []byte) {
	tb.Helper()
	got, err := os.ReadFile(filepath.Join(dir, name))
	must(tb, err)
	if !bytes.Equal(got, want) {
		tb.Fatalf("%s has %d bytes that differ from the %d that were sent", name, len(got), len(want))
	}
	if _, err := os.Lstat(filepath.Join(dir, partial(name))); !errors.Is(err, os.ErrNotExist) {
		tb.Fatalf("the partial file: error %v, want that it is gone", err)
	}
}

// attributes returns the entry of a file with permissions.
func attributes(mode fs.FileMode) *Entry { return &Entry{Mode: mode, ModTime: someDay} }
