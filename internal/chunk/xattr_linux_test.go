package chunk

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestModeAfterFailedXattrs: a read-only file or directory, opened for writing to set its extended attributes, has its old mode
// after that failed.
func TestModeAfterFailedXattrs(t *testing.T) {
	root, dir := newRoot(t)
	refused := []Xattr{{Name: XattrPrefix + strings.Repeat("x", 300), Value: "x"}} // longer than the kernel allows
	b := content(Size+1, 1)
	file, sub := filepath.Join(dir, "f"), filepath.Join(dir, "d")
	must(t, os.WriteFile(file, b, 0o600))
	must(t, os.Chmod(file, 0o444))
	must(t, os.Mkdir(sub, 0o700))
	must(t, os.Chmod(sub, 0o500))
	t.Cleanup(func() { must(t, os.Chmod(sub, 0o700)) })
	check := func(when, name string, want fs.FileMode, err error) {
		t.Helper()
		wants(t, err, unix.ERANGE, when)
		info, err := os.Stat(name)
		if must(t, err); info.Mode() != want {
			t.Errorf("%s: the mode is %v, want %v", when, info.Mode(), want)
		}
	}

	tree, err := NewTree(root, TreeConfig{KeepTop: true})
	must(t, err)
	top, err := tree.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	info, err := os.Stat(file)
	must(t, err)
	_, err = top.Compare(&Entry{Name: "f", Mode: 0o440, Size: info.Size(), ModTime: info.ModTime(), Xattrs: refused}, true)
	check("an equal file of a tree", file, 0o444, err)

	d, err := top.Enter(&Entry{Name: "d", Mode: fs.ModeDir | 0o550, ModTime: someDay, Xattrs: refused})
	must(t, err)
	check("a directory", sub, fs.ModeDir|0o500, d.Release())

	d, err = top.Enter(&Entry{Name: "d", Mode: fs.ModeDir | 0o550, ModTime: someDay, Xattrs: refused})
	must(t, err)
	inner, err := d.Enter(&Entry{Name: "new", Mode: fs.ModeDir | 0o700, ModTime: someDay})
	must(t, err)
	must(t, inner.Release())
	check("a directory with a new entry", sub, fs.ModeDir|0o500, d.Release())
	must(t, tree.Close(true))

	x := create(t, root, "f", len(b), false)
	for k := range int64(2) {
		_, _, err := x.StoredFingerprint(k, make([]byte, Size))
		must(t, err)
		must(t, x.Keep(k, Digest(piece(b, k))))
	}
	check("an equal file", file, 0o444, x.Commit(t.Context(), total(b), &Entry{Mode: 0o440, ModTime: someDay, Xattrs: refused}, SyncNever))
}
