package chunk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// copyTree copies a tree, as two processes do it, and returns the paths in the order of the Walk.
func copyTree(t *testing.T, from, to *os.Root, dir string) (paths []string) {
	t.Helper()
	w, err := NewWalk(from, dir, "", 100, nil, Want{})
	must(t, err)
	x, err := NewTree(to, TreeConfig{Sync: SyncBatch})
	must(t, err)
	top, err := x.Top(Entry{Mode: fs.ModeDir | 0o750, ModTime: someDay}, true)
	must(t, err)
	dirs, names := []*Dir{top}, []string{dir}
	leave := func(outer int) {
		for i := len(dirs) - 1; i >= outer; i-- {
			must(t, dirs[i].Release())
		}
		dirs, names = dirs[:outer], names[:outer]
	}
	files := NewFileReader(from)
	for {
		s, err := w.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, errors.Join(err, s.Err))
		leave(s.Depth + 1)
		name := path.Join(path.Join(names...), s.Name)
		paths = append(paths, name)
		d := dirs[s.Depth]
		relation, err := d.Compare(&s.Entry, true)
		switch {
		case s.Mode.IsDir():
			sub, err := d.Enter(&s.Entry)
			must(t, err)
			dirs, names = append(dirs, sub), append(names, s.Name)
			continue
		case err != nil || relation == Equal:
			must(t, err)
		case s.Mode.IsRegular():
			b := make([]byte, s.Size)
			digest, err := files.Read(name, &s.Entry, b)
			must(t, err)
			f, err := d.Write(&s.Entry, b, digest)
			must(t, err)
			must(t, errors.Join(f.Flush(), f.Commit()))
		default:
			must(t, d.Link(&s.Entry))
		}
	}
	leave(0)
	files.Close()
	must(t, x.Close(true))
	return paths
}

// TestTree: a tree is listed in order and recreated, including read-only directories, dangling
// links and all times. A second copy leaves the tree unchanged.
func TestTree(t *testing.T) {
	from, dir := newRoot(t)
	for _, d := range []string{"top", "top/a", "top/a/b", "top/empty"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	for _, f := range []string{"top/a/b/file", "top/a/.file.ibx-partial", "top/a-", "top/z"} {
		must(t, os.WriteFile(filepath.Join(dir, f), []byte(f), 0o640))
		must(t, os.Chtimes(filepath.Join(dir, f), someDay, someDay))
	}
	must(t, os.Symlink("../nowhere", filepath.Join(dir, "top/a/link")))
	must(t, os.Chmod(filepath.Join(dir, "top/a/b"), 0o500))
	must(t, os.Chtimes(filepath.Join(dir, "top/a/b"), someDay, someDay))
	to, made := newRoot(t)
	must(t, os.Mkdir(filepath.Join(made, "a"), 0o500)) // to be written to
	must(t, os.Symlink("old", filepath.Join(made, "z2")))
	t.Cleanup(func() {
		must(t, os.Chmod(filepath.Join(dir, "top/a/b"), 0o700))
		must(t, os.Chmod(filepath.Join(made, "a/b"), 0o700))
	})
	want := []string{"top/a", "top/a/b", "top/a/b/file", "top/a/link", "top/a-", "top/empty", "top/z"}
	for range 2 {
		if paths := copyTree(t, from, to, "top"); !slices.Equal(paths, want) {
			t.Errorf("Walk found %q, want %q", paths, want)
		}
		for _, name := range want {
			source, err := os.Lstat(filepath.Join(dir, name))
			must(t, err)
			info, err := os.Lstat(filepath.Join(made, strings.TrimPrefix(name, "top/")))
			must(t, err)
			if info.Mode() != source.Mode() || runtime.GOOS == "linux" && !info.ModTime().Equal(source.ModTime()) {
				t.Errorf("%s has %v and %v, want %v and %v", name, info.Mode(), info.ModTime(), source.Mode(), source.ModTime())
			}
		}
		if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o750 || !info.ModTime().Equal(someDay) {
			t.Errorf("the top has %v and %v (%v), want those that were given", info.Mode(), info.ModTime(), err)
		}
		if left, err := partialNames(to); len(left) > 0 || err != nil {
			t.Errorf("%q are left (%v), want none", left, err)
		}
	}
	if link, err := os.Readlink(filepath.Join(made, "a/link")); link != "../nowhere" {
		t.Errorf("the link is to %q, %v", link, err)
	}
}

// TestWalkContinues: a Walk continues behind any of its entries, even a removed one.
func TestWalkContinues(t *testing.T) {
	root, dir := newRoot(t)
	for _, f := range []string{"a/b/c", "a/b/d", "a/e", "a-", "f"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
	}
	for after, want := range map[string][]string{
		"": {"a", "b", "c", "d", "e", "a-", "f"}, "a/": {"b", "c", "d", "e", "a-", "f"}, "a": {"a-", "f"}, "a/b/": {"c", "d", "e", "a-", "f"},
		"a/b/c": {"d", "e", "a-", "f"}, "a/b/d": {"e", "a-", "f"}, "a/b/gone": {"e", "a-", "f"}, "a/gone/x": {"a-", "f"}, "f": nil, "f/": nil,
		"../x": {"a", "b", "c", "d", "e", "a-", "f"}, "a/../f": {"b", "c", "d", "e", "a-", "f"},
	} {
		w, err := NewWalk(root, ".", after, 100, nil, Want{})
		must(t, err)
		var got []string
		for s, err := w.Next(t.Context()); !errors.Is(err, io.EOF); s, err = w.Next(t.Context()) {
			must(t, errors.Join(err, s.Err))
			got = append(got, s.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %q: got %q, want %q", after, got, want)
		}
	}
}

// TestWalkContinuesBehindExcluded: a Walk that continues in an excluded directory does not list its contents.
func TestWalkContinuesBehindExcluded(t *testing.T) {
	root, dir := newRoot(t)
	for _, f := range []string{"a/b/c", "a/b/d", "e"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
	}
	for after, excluded := range map[string]string{"a/": "a", "a/b/c": "a", "a/b/": "a/b", "a/b/a": "a/b"} {
		w, err := NewWalk(root, ".", after, 100, func(path string, dir bool) bool { return path == excluded && dir }, Want{})
		must(t, err)
		if s, err := w.Next(t.Context()); err != nil || s.Name != "e" || s.Depth != 0 {
			t.Errorf("after %q: got %q at depth %d, %v, want the entry behind %q", after, s.Name, s.Depth, err, excluded)
		}
		w.Close()
	}
}

// TestWalkCanceled: a Walk that excludes one entry after another returns when its context is canceled.
func TestWalkCanceled(t *testing.T) {
	root, dir := newRoot(t)
	for i := range 10 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	calls := 0
	w, err := NewWalk(root, ".", "", 100, func(string, bool) bool {
		if calls++; calls == 3 {
			cancel(ErrBusy)
		}
		return true
	}, Want{})
	must(t, err)
	defer w.Close()
	_, err = w.Next(ctx)
	if wants(t, err, ErrBusy, "a canceled Walk"); calls != 3 {
		t.Errorf("%d entries were read, want 3", calls)
	}
}

// TestWalkLimit: a directory with too many names is an entry with an error, and the rest follows.
func TestWalkLimit(t *testing.T) {
	root, dir := newRoot(t)
	must(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
	for i := range 3 {
		must(t, os.WriteFile(filepath.Join(dir, "a", fmt.Sprint(i)), nil, 0o600))
	}
	must(t, os.WriteFile(filepath.Join(dir, "b"), nil, 0o600))
	w, err := NewWalk(root, ".", "", 4, nil, Want{})
	must(t, err)
	s, err := w.Next(t.Context())
	must(t, err)
	wants(t, s.Err, ErrTooMany, "a directory of three names")
	if s, err := w.Next(t.Context()); s.Name != "b" || s.Err != nil || err != nil {
		t.Errorf("got %+v, %v, want the next entry", s, err)
	}
	w.Close()
	_, err = NewWalk(root, ".", "a/0", 4, nil, Want{})
	wants(t, err, ErrTooMany, "a Walk that continues in a directory of three names") // otherwise the others would be missing
	_, err = NewWalk(root, "a", "", 2, nil, Want{})
	wants(t, err, ErrTooMany, "a top of three names")
}

// TestTreeEscapes: no entry of a peer's tree leaves the directory, follows a link or creates a special file.
func TestTreeEscapes(t *testing.T) {
	root, dir := newRoot(t)
	outside := t.TempDir()
	must(t, os.Symlink(outside, filepath.Join(dir, "out")))
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	must(t, os.Symlink("sub", filepath.Join(dir, "in")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	x, err := NewTree(root, TreeConfig{})
	must(t, err)
	top, err := x.Top(Entry{}, false)
	must(t, err)
	for _, e := range []Entry{
		{Name: "../x", Mode: fs.ModeDir},
		{Name: "/x", Mode: fs.ModeDir},
		{Name: "..", Mode: fs.ModeDir},
		{Name: "out", Mode: fs.ModeDir},
		{Name: "in", Mode: fs.ModeDir},
		{Name: "file", Mode: fs.ModeDir},
		{Name: "out"},
		{Name: "in"},
		{Name: "sub"},
		{Name: "../x"},
		{Name: ".f.ibx-partial"},
		{Name: "file", Mode: fs.ModeSymlink, Link: "x"},
		{Name: "link", Mode: fs.ModeSymlink, Link: "a\x00b"},
		{Name: "link", Mode: fs.ModeSymlink},
		{Name: "device", Mode: fs.ModeDevice},
		{Name: "pipe", Mode: fs.ModeNamedPipe},
		{Name: "f", Size: -1},
	} {
		if e.Mode.IsDir() {
			_, err = top.Enter(&e)
		} else {
			_, err = top.Compare(&e, true)
		}
		if err == nil {
			t.Errorf("%+v was accepted", e)
		}
	}
	must(t, errors.Join(top.Release(), x.Close(true)))
	for _, d := range []string{outside, filepath.Join(dir, "sub")} {
		if left, err := os.ReadDir(d); len(left) != 0 {
			t.Errorf("%s has %v, %v", d, left, err)
		}
	}
}

// TestTreeReplacedByLink: a directory of the tree is replaced by a symbolic link while the tree is received.
func TestTreeReplacedByLink(t *testing.T) {
	root, dir := newRoot(t)
	outside := t.TempDir()
	x, err := NewTree(root, TreeConfig{})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	d, err := top.Enter(&Entry{Name: "d", Mode: fs.ModeDir | 0o700})
	must(t, err)
	must(t, os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "moved")))
	must(t, os.Symlink(outside, filepath.Join(dir, "d")))
	f, err := d.Write(&Entry{Name: "f", ModTime: someDay}, []byte("f"), Digest([]byte("f")))
	must(t, err)
	must(t, errors.Join(f.Flush(), f.Commit()))
	if _, err := top.Enter(&Entry{Name: "d", Mode: fs.ModeDir | 0o700}); !errors.Is(err, ErrKind) {
		t.Errorf("Enter of a link: got %v, want %v", err, ErrKind)
	}
	must(t, errors.Join(d.Release(), top.Release(), x.Close(true)))
	if left, err := os.ReadDir(outside); len(left) != 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

// TestWriteWrongDigest: a small file with a wrong digest leaves nothing behind.
func TestWriteWrongDigest(t *testing.T) {
	root, dir := newRoot(t)
	x, err := NewTree(root, TreeConfig{})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	_, err = top.Write(&Entry{Name: "f"}, []byte("f"), Digest([]byte("g")))
	wants(t, err, ErrDigest, "another content")
	must(t, errors.Join(top.Release(), x.Close(true)))
	if left, err := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v, %v are left, want nothing", left, err)
	}
}

// TestRemoveStale: the next complete Tree removes the temporary files of a killed process, and no files of a running one.
func TestRemoveStale(t *testing.T) {
	root, dir := newRoot(t)
	begin := func() (*Tree, *Dir, *Dir) {
		x, err := NewTree(root, TreeConfig{})
		must(t, err)
		top, err := x.Top(Entry{ModTime: someDay}, false)
		must(t, err)
		d, err := top.Enter(&Entry{Name: "d", Mode: fs.ModeDir | 0o700})
		must(t, err)
		return x, top, d
	}
	write := func(d *Dir) {
		_, err := d.Write(&Entry{Name: "f"}, []byte("f"), Digest([]byte("f")))
		must(t, err)
	}
	count := func() int {
		left, err := filepath.Glob(filepath.Join(dir, "*", ".*"))
		must(t, err)
		more, err := filepath.Glob(filepath.Join(dir, ".*"))
		must(t, err)
		return len(left) + len(more)
	}
	killed, _, d := begin()
	write(d)
	must(t, killed.lock.Close()) // as the kernel does it
	running, _, d := begin()     // locks the file of the killed one
	write(d)
	if got := count(); got != 3 {
		t.Errorf("%d files, want the two lock files and a temporary one", got)
	}
	must(t, running.lock.Close())
	for _, s := range running.stale {
		must(t, s.file.Close())
	}
	last, top, d := begin()
	must(t, errors.Join(d.Release(), top.Release(), last.Close(true)))
	if got := count(); got != 0 {
		t.Errorf("%d files are left, want none", got)
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

// TestLockRemovedByAnother: a Tree closes without an error if another Tree has removed its lock file.
func TestLockRemovedByAnother(t *testing.T) {
	root, dir := newRoot(t)
	begin := func() (*Tree, *Dir) {
		x, err := NewTree(root, TreeConfig{})
		must(t, err)
		top, err := x.Top(Entry{ModTime: someDay}, false)
		must(t, err)
		return x, top
	}
	killed, top := begin()
	must(t, top.prepareChange())
	must(t, killed.lock.Close()) // as the kernel does it
	x, top := begin()            // locks the file of the killed one
	must(t, top.prepareChange())
	locks, err := filepath.Glob(filepath.Join(dir, ".*"+lockSuffix))
	must(t, err)
	if len(locks) != 2 || len(x.stale) != 1 {
		t.Fatalf("%q are there, want 2 lock files", locks)
	}
	for _, name := range locks {
		must(t, os.Remove(name))
	}
	must(t, errors.Join(top.Release(), x.Close(true)))
}

// TestKeepOfChangedFile: a file that has changed since its Fingerprint was computed is not kept, even if its size is the same.
func TestKeepOfChangedFile(t *testing.T) {
	root, dir := newRoot(t)
	name := filepath.Join(dir, "f")
	must(t, os.WriteFile(name, []byte("old"), 0o600))
	x, err := NewTree(root, TreeConfig{})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	e := &Entry{Name: "f", Size: 3, Mode: 0o600, ModTime: someDay}
	_, state := top.Fingerprint(e, make([]byte, 3))
	must(t, top.Keep(e, state))
	for what, change := range map[string]func() error{
		"written": func() error { return os.WriteFile(name, []byte("new"), 0o600) },
		"replaced": func() error {
			return errors.Join(os.WriteFile(name+"2", []byte("new"), 0o600), os.Rename(name+"2", name))
		},
	} {
		_, state := top.Fingerprint(e, make([]byte, 3))
		must(t, change())
		wants(t, top.Keep(e, state), ErrChanged, "a file that was "+what)
	}
	must(t, errors.Join(top.Release(), x.Close(true)))
}

// TestRemoveDepth: directories nested deeper than in a Walk are kept, so that removing them cannot exhaust the file descriptors of the
// process.
func TestRemoveDepth(t *testing.T) {
	for _, c := range []struct {
		depth int
		want  error
	}{{MaxDepth, nil}, {MaxDepth + 1, ErrTooMany}} {
		root, dir := newRoot(t)
		must(t, root.MkdirAll(strings.Repeat("a/", c.depth-1)+"a", 0o700))
		x, err := NewTree(root, TreeConfig{})
		must(t, err)
		top := Entry{Name: ".", Mode: fs.ModeDir | 0o700, ModTime: someDay}
		_, err = x.Top(top, true)
		must(t, err)
		removed, err := x.Remove(t.Context(), &ExtraNames{Path: ".", Entry: top, Names: []string{"a"}}, func(string, bool) bool { return false })
		if c.want == nil && (err != nil || removed != int64(c.depth)) || !errors.Is(err, c.want) {
			t.Errorf("Remove of %d nested directories = %d, %v, want %v", c.depth, removed, err, c.want)
		}
		if _, err := os.Lstat(filepath.Join(dir, "a")); errors.Is(err, fs.ErrNotExist) != (c.want == nil) {
			t.Errorf("after Remove of %d nested directories, the first one: %v", c.depth, err)
		}
		must(t, x.Close(true))
	}
}
