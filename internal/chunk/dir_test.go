package chunk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// TestTreesStartTogether: several Trees begin to write to one directory at the same time. Each can lock its new lock file, although
// others look for the lock files of killed processes, and removes it.
func TestTreesStartTogether(t *testing.T) {
	root, _ := newRoot(t)
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for range 300 {
				x, err := NewTree(root, TreeConfig{Sync: SyncNever, KeepTop: true})
				if err == nil {
					err = writeOne(x, fmt.Sprint(i))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	if left, err := partialNames(root); err != nil || len(left) > 0 {
		t.Errorf("%q are left (%v), want none", left, err)
	}
}

// writeOne writes a small file with a Tree and closes it.
func writeOne(x *Tree, name string) error {
	top, err := x.Top(Entry{ModTime: someDay}, false)
	if err != nil {
		return errors.Join(err, x.Close(false))
	}
	s, err := top.Write(&Entry{Name: name, Mode: 0o600, ModTime: someDay}, []byte(name), Digest([]byte(name)))
	if err == nil {
		err = errors.Join(s.Flush(), s.Commit())
	}
	return errors.Join(err, top.Release(), x.Close(err == nil))
}

// TestRemoveKeepsMode: a directory with kept contents has its old mode afterwards.
func TestRemoveKeepsMode(t *testing.T) {
	root, dir := newRoot(t)
	for _, name := range []string{"old/x", "old/sub/keep", "old/sub/y", "gone/z"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	modes := map[string]fs.FileMode{"old/sub": fs.ModeDir | 0o550, "old": fs.ModeDir | fs.ModeSetgid | 0o555, "gone": fs.ModeDir | 0o500}
	for _, name := range []string{"old/sub", "old", "gone"} {
		must(t, os.Chmod(filepath.Join(dir, name), modes[name]))
	}
	t.Cleanup(func() {
		must(t, os.Chmod(filepath.Join(dir, "old"), 0o700))
		must(t, os.Chmod(filepath.Join(dir, "old/sub"), 0o700))
	})
	x, err := NewTree(root, TreeConfig{KeepTop: true})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	must(t, top.Release())
	keep := func(name string, _ bool) bool { return path.Base(name) == "keep" }
	n, err := x.Remove(t.Context(), &ExtraNames{Path: ".", Entry: top.Attributes(), Names: []string{"gone", "old"}}, keep)
	if n != 4 || err != nil {
		t.Errorf("Remove: got %d, %v, want 4 entries", n, err)
	}
	must(t, x.Close(true))
	for _, name := range []string{"old", "old/sub"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if must(t, err); info.Mode() != modes[name] {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), modes[name])
		}
	}
}

// TestKeepTopKeepsSpecialBits: a directory that keeps its attributes keeps its set-group-ID and sticky bits, even if it is made writable
// meanwhile.
func TestKeepTopKeepsSpecialBits(t *testing.T) {
	root, dir := newRoot(t)
	const want = fs.ModeDir | fs.ModeSetgid | fs.ModeSticky | 0o555
	must(t, os.Chmod(dir, want))
	t.Cleanup(func() { must(t, os.Chmod(dir, 0o700)) })
	check := func(after string) {
		t.Helper()
		info, err := os.Stat(dir)
		if must(t, err); info.Mode() != want {
			t.Errorf("after %s the mode is %v, want %v", after, info.Mode(), want)
		}
	}
	x, err := NewTree(root, TreeConfig{KeepTop: true})
	must(t, err)
	must(t, writeOne(x, "f"))
	check("a new file")
	x, err = NewTree(root, TreeConfig{KeepTop: true})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	must(t, top.Release())
	n, err := x.Remove(t.Context(), &ExtraNames{Path: ".", Entry: top.Attributes(), Names: []string{"f"}}, func(string, bool) bool { return false })
	if n != 1 || err != nil {
		t.Errorf("Remove: got %d, %v, want 1 entry", n, err)
	}
	check("a removed file")
	must(t, x.Close(true))
	check("Close")
}

// TestCanceledRemove: Remove stops when its context is canceled, at any depth.
func TestCanceledRemove(t *testing.T) {
	for at := range 4 {
		root, dir := newRoot(t)
		names := []string{"a", "b/c", "b/d/e", "f"}
		for _, name := range names {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		}
		x, err := NewTree(root, TreeConfig{})
		must(t, err)
		top, err := x.Top(Entry{ModTime: someDay}, false)
		must(t, err)
		must(t, top.Release())
		ctx, cancel := context.WithCancelCause(t.Context())
		files := 0
		keep := func(_ string, dir bool) bool {
			if !dir && files == at {
				cancel(ErrBusy)
			}
			if !dir {
				files++
			}
			return false
		}
		_, err = x.Remove(ctx, &ExtraNames{Path: ".", Entry: top.Attributes(), Names: []string{"a", "b", "f"}}, keep)
		must(t, x.Close(false))
		left := 0
		for _, name := range names {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				left++
			}
		}
		if last := at == 3; errors.Is(err, ErrBusy) == last || left != 3-at {
			t.Errorf("canceled at file %d: got %v, and %d files are left, want %d", at, err, left, 3-at)
		}
	}
}
