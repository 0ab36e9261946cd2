package chunk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// stranger is a user other than the test's.
const stranger = 4321

// plant creates a partial file for f with content that a Target would continue.
func plant(t *testing.T, dir string, b []byte) string {
	t.Helper()
	name := filepath.Join(dir, partial("f"))
	must(t, os.WriteFile(name, b, 0o600))
	return name
}

// TestPlantedPartialFile: another user has planted the partial file in a directory that everyone can write to. It is neither continued nor
// removed, even while the other user holds its lock.
func TestPlantedPartialFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user")
	}
	root, dir := newRoot(t)
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	b := content(2*Size, 1)
	name := plant(t, dir, b)
	must(t, os.Chmod(name, 0o666))
	must(t, os.Chown(name, stranger, stranger))
	for _, locked := range []bool{false, true} {
		if locked {
			f, err := os.Open(name)
			must(t, err)
			defer f.Close()
			must(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
		}
		_, err := Create(root, "f", int64(len(b)), true)
		wants(t, err, ErrForeign, "a partial file of another user")
	}
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the other user's file: %d bytes, error %v; want it unchanged", len(got), err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v are left, want the planted file only", left, err)
	}
}

// TestPartialFileOfManyWriters: the partial file belongs to this user, and others can or could write to it. It is neither continued nor
// removed.
func TestPartialFileOfManyWriters(t *testing.T) {
	b := content(Size, 2)
	for what, spoil := range map[string]func(name string) error{
		"group": func(name string) error { return os.Chmod(name, 0o660) },
		"other": func(name string) error { return os.Chmod(name, 0o602) },
		"link":  func(name string) error { return os.Link(name, name+"-too") },
	} {
		root, dir := newRoot(t)
		name := plant(t, dir, b)
		must(t, spoil(name))
		for _, fresh := range []bool{false, true} {
			_, err := Create(root, "f", int64(len(b)), fresh)
			wants(t, err, ErrForeign, what)
		}
		expect(t, dir, partial("f"), b)
	}
}

// TestPlantedFile: the file to be replaced belongs to another user, or others can write to it. Its chunks are not reused, and the result is
// this user's own file.
func TestPlantedFile(t *testing.T) {
	b := content(2*Size, 3)
	for what, spoil := range map[string]func(name string) error{
		"group": func(name string) error { return os.Chmod(name, 0o660) },
		"link":  func(name string) error { return os.Link(name, name+"-too") },
		"owner": func(name string) error { return os.Chown(name, stranger, stranger) },
	} {
		root, dir := newRoot(t)
		name := filepath.Join(dir, "f")
		must(t, os.WriteFile(name, b, 0o600))
		if err := spoil(name); errors.Is(err, os.ErrPermission) {
			continue // only root can give files away
		}
		x := create(t, root, "f", len(b), false)
		if _, ok, err := x.StoredFingerprint(0, make([]byte, Size)); ok || err != nil {
			t.Errorf("%s: the chunk is used (error %v), want it ignored", what, err)
		}
		x.write(t, b, 0, 1)
		must(t, x.Commit(t.Context(), total(b), attributes(0o644), SyncNever))
		info, err := os.Stat(name)
		must(t, err)
		s := info.Sys().(*syscall.Stat_t)
		if int(s.Uid) != os.Geteuid() || s.Nlink != 1 || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: the result has owner %d, %d links and mode %v; want this user's own file", what, s.Uid, s.Nlink, info.Mode())
		}
	}
}

// TestTopOfAnotherUser: a tree is received in a directory that another user owns, whose mode and time stay. A file there that cannot be
// removed is not counted as removed.
func TestTopOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user")
	}
	root, dir := newRoot(t)
	must(t, os.WriteFile(filepath.Join(dir, "old"), nil, 0o600))
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(t, syscall.Setfsuid(stranger))
	defer func() { must(t, syscall.Setfsuid(0)) }()
	x, err := NewTree(root, TreeConfig{})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	f, err := top.Write(&Entry{Name: "f", Mode: 0o600, ModTime: someDay}, []byte("f"), Digest([]byte("f")))
	must(t, err)
	must(t, errors.Join(f.Flush(), f.Commit(), top.Release()))
	keep := func(string, bool) bool { return false }
	n, err := x.Remove(t.Context(), &ExtraNames{Path: ".", Entry: top.Attributes(), Names: []string{"f"}}, keep)
	if n != 1 || err != nil {
		t.Errorf("Remove of a file: got %d, %v, want 1", n, err)
	}
	n, err = x.Remove(t.Context(), &ExtraNames{Path: ".", Entry: top.Attributes(), Names: []string{"old"}}, keep)
	if n != 0 || !errors.Is(err, os.ErrPermission) {
		t.Errorf("Remove of another user's file: got %d, %v, want 0 and %v", n, err, os.ErrPermission)
	}
	must(t, x.Close(true))
}
