package chunk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDiskFull: a full disk is an error, and data written before it is kept.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("no file system that can be filled: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, 0)) })
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer func() { must(t, root.Close()) }()
	want := content(5*Size, 1)
	x, err := Create(root, "f", int64(len(want)), false)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "ballast"), content(Size+Size/2, 2), 0o600))
	x.write(t, want, 0, 1)
	err = x.Write(2, piece(want, 2), Digest(piece(want, 2)))
	wants(t, err, syscall.ENOSPC, "a chunk that does not fit")
	must(t, x.Close())
	must(t, os.Remove(filepath.Join(dir, "ballast")))
	want = want[:4*Size-4096]
	x, err = Create(root, "f", int64(len(want)), false)
	must(t, err)
	defer func() { must(t, x.Close()) }()
	buf := make([]byte, Size)
	for k := range int64(3) {
		_, _, err := x.StoredFingerprint(k, buf)
		must(t, err)
	}
	for k := range int64(2) {
		must(t, x.Keep(k, Digest(piece(want, k))))
	}
	wants(t, x.Keep(2, Digest(piece(want, 2))), ErrDigest, "a chunk that was half written")
}

// TestPipesDoNotBlock: a named pipe fails immediately instead of blocking.
func TestPipesDoNotBlock(t *testing.T) {
	root, dir := newRoot(t)
	must(t, syscall.Mkfifo(filepath.Join(dir, "f"), 0o600))
	must(t, syscall.Mkfifo(filepath.Join(dir, partial("g")), 0o600))
	failed := make(chan error, 2)
	go func() {
		_, err := OpenSource(root, "f")
		failed <- err
		_, err = Create(root, "g", 1, false)
		failed <- err
	}()
	for range 2 {
		select {
		case err := <-failed:
			if err == nil || errors.Is(err, ErrBusy) {
				t.Errorf("a named pipe: error %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a named pipe blocks")
		}
	}
}

// TestChangedWithOldTime: a file is changed even if its modification time was restored after a
// write.
func TestChangedWithOldTime(t *testing.T) {
	root, dir := newRoot(t)
	name := filepath.Join(dir, "f")
	must(t, os.WriteFile(name, make([]byte, 100), 0o600))
	s := openSource(t, root, "f")
	must(t, s.Check())
	for limit := time.Now().Add(time.Minute); s.Check() == nil; time.Sleep(time.Millisecond) { // until the file system's clock has advanced
		if time.Now().After(limit) {
			t.Fatal("a file that was written to passes Check")
		}
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("x"), 50)
		must(t, err)
		must(t, f.Close())
		must(t, os.Chtimes(name, time.Time{}, s.ModTime()))
	}
	wants(t, s.Check(), ErrChanged, "a file with its old time")
}

// TestResumeAfterKillInCommit: a process was killed after the partial file had received the final,
// read-only permissions. Root may write anyway, so the test switches to another user.
func TestResumeAfterKillInCommit(t *testing.T) {
	root, dir := newRoot(t)
	if os.Getuid() == 0 {
		const nobody = 65534
		must(t, os.Chown(dir, nobody, nobody))
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		old, err := unix.SetfsuidRetUid(nobody)
		must(t, err)
		defer func() {
			_, err := unix.SetfsuidRetUid(old)
			must(t, err)
		}()
	}
	b := content(2*Size, 1)
	first, err := Create(root, "f", int64(len(b)), false)
	must(t, err)
	first.write(t, b, 0, 1)
	must(t, first.file.Chmod(0o444))
	must(t, first.file.Close())
	if f, err := root.OpenFile(partial("f"), os.O_RDWR, 0); err == nil {
		t.Fatalf("%s can be written, so this test shows nothing", f.Name())
	}
	second, err := Create(root, "f", int64(len(b)), false)
	must(t, err)
	for k := range int64(2) {
		_, ok, err := second.StoredFingerprint(k, make([]byte, Size))
		must(t, err)
		if !ok {
			t.Errorf("chunk %d is gone, want it kept", k)
		}
		must(t, second.Keep(k, Digest(piece(b, k))))
	}
	must(t, second.Commit(t.Context(), total(b), attributes(0o444), SyncFile))
}

// TestEnterWithoutDescriptors: a directory that cannot be opened keeps its mode.
func TestEnterWithoutDescriptors(t *testing.T) { // not parallel: it limits the whole process
	root, dir := newRoot(t)
	name := filepath.Join(dir, "sub")
	const want = fs.ModeDir | 0o300
	must(t, os.Mkdir(name, 0o700))
	must(t, os.Chmod(name, want))
	x, err := NewTree(root, TreeConfig{KeepTop: true})
	must(t, err)
	top, err := x.Top(Entry{ModTime: someDay}, false)
	must(t, err)
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	_, err = top.Enter(&Entry{Name: "sub", Mode: fs.ModeDir | 0o500, ModTime: someDay})
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	wants(t, err, syscall.EMFILE, "Enter")
	info, err := os.Lstat(name)
	if must(t, err); info.Mode() != want {
		t.Errorf("the mode is %v, want %v", info.Mode(), want)
	}
	must(t, errors.Join(top.Release(), x.Close(false)))
}
