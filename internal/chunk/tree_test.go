package chunk

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// TestTree: a tree is listed in order and recreated, including read-only directories and dangling
// links.
func TestTree(t *testing.T) {
	from, dir := newRoot(t)
	for _, d := range []string{"top", "top/a", "top/a/b", "top/empty"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	for _, f := range []string{"top/a/b/file", "top/a/.file.ibx-partial", "top/z"} {
		must(t, os.WriteFile(filepath.Join(dir, f), []byte(f), 0o640))
	}
	must(t, os.Symlink("../nowhere", filepath.Join(dir, "top/a/link")))
	must(t, os.Chmod(filepath.Join(dir, "top/a/b"), 0o500))
	must(t, os.Chtimes(filepath.Join(dir, "top/a/b"), someDay, someDay))
	t.Cleanup(func() { must(t, os.Chmod(filepath.Join(dir, "top/a/b"), 0o700)) })
	var names []string
	var dirs []Entry
	to, made := newRoot(t)
	must(t, os.Symlink("other", filepath.Join(made, "old")))
	var walk func(dir string)
	walk = func(dir string) {
		listing, err := List(from, path.Join("top", dir), 100)
		must(t, err)
		for after := ""; ; {
			list, err := listing.After(after, 2)
			must(t, err)
			if len(list) == 0 {
				return
			}
			for _, e := range list {
				after = e.Name
				e.Name = path.Join(dir, e.Name)
				names = append(names, e.Name)
				must(t, Make(to, &e))
				if e.Mode.IsDir() {
					dirs = append(dirs, e)
					walk(e.Name)
				}
			}
		}
	}
	walk(".")
	if want := []string{"a", "a/b", "a/b/file", "a/link", "empty", "z"}; !slices.Equal(names, want) {
		t.Errorf("List found %q, want %q", names, want)
	}
	must(t, os.WriteFile(filepath.Join(made, "a/b/file"), nil, 0o600))
	must(t, Finish(to, dirs, SyncDir))
	t.Cleanup(func() { must(t, os.Chmod(filepath.Join(made, "a/b"), 0o700)) })
	info, err := os.Stat(filepath.Join(made, "a/b"))
	must(t, err)
	if info.Mode().Perm() != 0o500 || !info.ModTime().Equal(someDay) {
		t.Errorf("a directory has %v and %v", info.Mode(), info.ModTime())
	}
	if link, err := os.Readlink(filepath.Join(made, "a/link")); link != "../nowhere" {
		t.Errorf("the link is to %q, %v", link, err)
	}
	e := Entry{Name: "old", Mode: fs.ModeSymlink, Link: "new"}
	for range 2 {
		must(t, Make(to, &e))
	}
	if link, err := os.Readlink(filepath.Join(made, "old")); link != "new" {
		t.Errorf("a link that was there is to %q, %v", link, err)
	}
}

// TestTreeEscapes: no entry of a peer's tree leaves the directory or creates a special file.
func TestTreeEscapes(t *testing.T) {
	root, dir := newRoot(t)
	outside := t.TempDir()
	must(t, os.Symlink(outside, filepath.Join(dir, "out")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	for _, e := range []Entry{
		{Name: "../x", Mode: fs.ModeDir},
		{Name: "/x", Mode: fs.ModeDir},
		{Name: "a/../../x", Mode: fs.ModeDir},
		{Name: "out/x", Mode: fs.ModeDir},
		{Name: "out/x/y", Mode: 0o600},
		{Name: "out/link", Mode: fs.ModeSymlink, Link: "x"},
		{Name: "out", Mode: fs.ModeDir},
		{Name: "file", Mode: fs.ModeDir},
		{Name: "file", Mode: fs.ModeSymlink, Link: "x"},
		{Name: "link", Mode: fs.ModeSymlink, Link: "a\x00b"},
		{Name: "link", Mode: fs.ModeSymlink},
		{Name: ".", Mode: fs.ModeSymlink, Link: "x"},
		{Name: "device", Mode: fs.ModeDevice},
		{Name: "pipe", Mode: fs.ModeNamedPipe},
		{Name: "f", Size: -1},
	} {
		if err := Make(root, &e); err == nil {
			t.Errorf("%+v was made", e)
		}
	}
	if left, err := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

// TestListLimit: a directory with more names than the limit is an error.
func TestListLimit(t *testing.T) {
	root, dir := newRoot(t)
	for i := range 3 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	l, err := List(root, ".", 3)
	must(t, err)
	if l.Len() != 3 {
		t.Errorf("got %d names, want 3", l.Len())
	}
	_, err = List(root, ".", 2)
	wants(t, err, ErrTooMany, "two of three names")
}
