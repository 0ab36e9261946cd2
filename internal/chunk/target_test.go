package chunk

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const fourAndABit = 4*Size + 123

// TestReceive: chunks that arrive in any order, even concurrently, form the file.
func TestReceive(t *testing.T) {
	root, dir := newRoot(t)
	want := content(fourAndABit, 1)
	x := create(t, root, "f", len(want), false)
	var wg sync.WaitGroup
	for k := range Count(x.Size()) {
		wg.Go(func() {
			if err := x.Write(k, piece(want, k), Digest(piece(want, k))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must(t, x.Commit(t.Context(), total(want), attributes(0o640), SyncBatch))
	expect(t, dir, "f", want)
	info, err := os.Stat(filepath.Join(dir, "f"))
	must(t, err)
	if info.Mode() != 0o640 || !info.ModTime().Equal(someDay) {
		t.Errorf("mode %v and time %v, want -rw-r----- and %v", info.Mode(), info.ModTime(), someDay)
	}
}

// TestEmptyFile: an empty file does not have chunks.
func TestEmptyFile(t *testing.T) {
	root, dir := newRoot(t)
	x := create(t, root, "f", 0, false)
	must(t, x.Commit(t.Context(), total(nil), attributes(0o600), SyncNever))
	expect(t, dir, "f", nil)
}

// TestResume: a new Target resumes after Close or a killed process. Half-written chunks and chunks
// with other content are detected.
func TestResume(t *testing.T) {
	root, dir := newRoot(t)
	want := content(fourAndABit, 2)
	x := create(t, root, "f", len(want), false)
	x.write(t, want, 0, 3)
	_, err := x.file.WriteAt(want[Size:Size+1000], Size) // killed in the middle of chunk 1
	must(t, err)
	must(t, x.Close())

	x = create(t, root, "f", len(want), false)
	buf := make([]byte, Size)
	for k, kept := range []bool{true, false, false, true, false} {
		k := int64(k)
		digest := Digest(piece(want, k))
		got, ok, err := x.StoredFingerprint(k, buf)
		must(t, err)
		if (ok && got == FingerprintOf(piece(want, k), digest)) != kept {
			t.Fatalf("chunk %d: Have = %#x, %v; want its digest: %v", k, got, ok, kept)
		}
		if kept {
			must(t, x.Keep(k, digest))
			continue
		}
		wants(t, x.Keep(k, digest), ErrDigest, "a chunk that is not there")
		wants(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncNever), ErrIncomplete, "a file with a chunk missing")
		x.write(t, want, k)
	}
	must(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncFile))
	expect(t, dir, "f", want)
}

// TestResumeOfWrongContent: a partial file with other content, or longer than the file, only wastes
// its chunks.
func TestResumeOfWrongContent(t *testing.T) {
	root, dir := newRoot(t)
	other, want := content(9*Size, 3), content(fourAndABit, 4)
	x := create(t, root, "f", len(other), false)
	x.write(t, other, 0, 1, 2, 3, 4, 8)
	must(t, x.Close())
	x = create(t, root, "f", len(want), false)
	_, _, err := x.StoredFingerprint(0, make([]byte, Size))
	must(t, err)
	wants(t, x.Keep(0, Digest(piece(want, 0))), ErrDigest, "a chunk of another file")
	x.write(t, want, 0, 1, 2, 3, 4)
	must(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncNever))
	expect(t, dir, "f", want)
}

// TestCanceledCommit: Commit stops copying chunks of the existing file, which can be large, when its context is canceled. Another Target
// resumes.
func TestCanceledCommit(t *testing.T) {
	root, dir := newRoot(t)
	old := content(4*Size, 5)
	want := bytes.Clone(old)
	want[3*Size] ^= 1
	must(t, os.WriteFile(filepath.Join(dir, "f"), old, 0o600))
	for _, canceled := range []bool{true, false} {
		x := create(t, root, "f", len(want), false)
		for k := range int64(4) {
			if got, _, err := x.StoredFingerprint(k, make([]byte, Size)); err == nil && got.Digest() == Digest(piece(want, k)) {
				must(t, x.Keep(k, got.Digest()))
			} else if must(t, err); !canceled {
				t.Errorf("chunk %d is not reused", k)
			}
		}
		if canceled {
			x.write(t, want, 3)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errLocked)
			wants(t, x.Commit(ctx, total(want), attributes(0o600), SyncNever), errLocked, "a canceled Commit")
			if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, old) {
				t.Errorf("the existing file has changed (%v)", err)
			}
			must(t, x.Close())
			continue
		}
		must(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncNever))
	}
	expect(t, dir, "f", want)
}

// TestReuseOfExistingFile: chunks of the existing file are reused, and it stays until the new one is complete.
func TestReuseOfExistingFile(t *testing.T) {
	root, dir := newRoot(t)
	old := content(3*Size, 5)
	want := append(bytes.Clone(old), content(Size, 6)...)
	want[Size] ^= 1
	must(t, os.WriteFile(filepath.Join(dir, "f"), old, 0o600))
	x := create(t, root, "f", len(want), false)
	buf := make([]byte, Size)
	for k, kept := range []bool{true, false, true, false} {
		k := int64(k)
		if got, ok, err := x.StoredFingerprint(k, buf); err != nil || (ok && got.Digest() == Digest(piece(want, k))) != kept {
			t.Fatalf("chunk %d: Have = %#x, %v, %v; want its digest: %v", k, got, ok, err, kept)
		}
		if kept {
			must(t, x.Keep(k, Digest(piece(want, k))))
		} else {
			x.write(t, want, k)
		}
	}
	expectOld, err := os.ReadFile(filepath.Join(dir, "f"))
	must(t, err)
	if !bytes.Equal(expectOld, old) {
		t.Error("the old file has changed before the new one was complete")
	}
	must(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncNever))
	expect(t, dir, "f", want)
}

// TestUnchanged: an identical existing file is not rewritten, but its permissions and time are
// updated. If another process changes it meanwhile, it is replaced.
func TestUnchanged(t *testing.T) {
	root, dir := newRoot(t)
	want := content(fourAndABit, 5)
	name := filepath.Join(dir, "f")
	must(t, os.WriteFile(name, want, 0o600))
	before, err := os.Stat(name)
	must(t, err)
	for _, changed := range []bool{false, true} {
		x := create(t, root, "f", len(want), false)
		buf := make([]byte, Size)
		for k := range Count(int64(len(want))) {
			got, ok, err := x.StoredFingerprint(k, buf)
			must(t, err)
			if !ok || got.Digest() != Digest(piece(want, k)) {
				t.Fatalf("chunk %d: Have = %#x, %v", k, got, ok)
			}
			must(t, x.Keep(k, got.Digest()))
		}
		if changed {
			must(t, os.Chtimes(name, someDay.Add(1), someDay.Add(1)))
		}
		must(t, x.Commit(t.Context(), total(want), attributes(0o640), SyncFile))
		expect(t, dir, "f", want)
		after, err := os.Stat(name)
		must(t, err)
		if os.SameFile(before, after) == changed || after.Mode().Perm() != 0o640 || !after.ModTime().Equal(someDay) {
			t.Errorf("changed %v: the same file %v, mode %v, time %v", changed, os.SameFile(before, after), after.Mode(), after.ModTime())
		}
	}
}

// TestFresh: existing data is ignored.
func TestFresh(t *testing.T) {
	root, dir := newRoot(t)
	want := content(2*Size, 7)
	must(t, os.WriteFile(filepath.Join(dir, "f"), want, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, partial("f")), want, 0o600))
	x := create(t, root, "f", len(want), true)
	for k := range int64(2) {
		if _, ok, err := x.StoredFingerprint(k, make([]byte, Size)); ok || err != nil {
			t.Errorf("chunk %d: Have = %v, %v; want nothing", k, ok, err)
		}
	}
}

// TestWrongBytes: data without a matching digest is rejected, and so is a file without a matching
// Sum.
func TestWrongBytes(t *testing.T) {
	root, _ := newRoot(t)
	want := content(Size+10, 8)
	x := create(t, root, "f", len(want), false)
	bad := bytes.Clone(piece(want, 0))
	bad[17] ^= 4
	wants(t, x.Write(0, bad, Digest(piece(want, 0))), ErrDigest, "a flipped bit")
	wants(t, x.Write(1, want[:11], Digest(want[:11])), ErrDigest, "a chunk that is too long")
	if x.Left() != 2 {
		t.Errorf("%d chunks are missing, want 2", x.Left())
	}
	x.write(t, want, 0, 1)
	wants(t, x.Commit(t.Context(), total(content(Size+10, 9)), attributes(0o600), SyncNever), ErrDigest, "another Sum")
}

// TestSparse: chunks of zeros are holes at both ends, even where the partial file had other data.
func TestSparse(t *testing.T) {
	root, dir := newRoot(t)
	want := content(64*Size, 10)
	clear(want[Size : 62*Size])
	must(t, os.WriteFile(filepath.Join(dir, partial("f")), content(4*Size, 11), 0o600))
	x := create(t, root, "f", len(want), false)
	x.write(t, want, 0, 62, 63)
	for k := int64(1); k < 62; k++ {
		must(t, x.WriteZero(k))
	}
	must(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncNever))
	expect(t, dir, "f", want)
	info, err := os.Stat(filepath.Join(dir, "f"))
	must(t, err)
	if !isSparse(info) {
		if !isHole(openFile(t, dir, "f"), Size, Size) {
			t.Skip("the file system has no holes")
		}
		t.Error("the file has no holes")
	}
	s, err := OpenSource(root, "f")
	must(t, err)
	defer func() { must(t, s.Close()) }()
	buf := make([]byte, Size)
	for k := range Count(s.Size()) {
		n, digest, zero, err := s.Read(k, buf)
		if err != nil || !bytes.Equal(buf[:n], piece(want, k)) || digest != Digest(piece(want, k)) || zero != (k > 0 && k < 62) {
			t.Fatalf("chunk %d: Read = %d, %#x, %v, %v", k, n, digest, zero, err)
		}
	}
}

func openFile(t *testing.T, dir, name string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

// TestBusy: two Targets cannot receive the same file concurrently.
func TestBusy(t *testing.T) {
	root, dir := newRoot(t)
	x := create(t, root, "f", 100, false)
	_, err := Create(root, "f", 100, false)
	wants(t, err, ErrBusy, "a second Target")
	must(t, x.Close())
	y := create(t, root, "f", 100, false)
	want := content(100, 12)
	y.write(t, want, 0)
	must(t, y.Commit(t.Context(), total(want), attributes(0o600), SyncNever))
	expect(t, dir, "f", want)
}

// TestNoEmptyPartialFile: a Target closed before any data arrived, or discarded, does not leave a partial
// file.
func TestNoEmptyPartialFile(t *testing.T) {
	root, dir := newRoot(t)
	must(t, create(t, root, "f", 3*Size, false).Close())
	x := create(t, root, "g", Size, false)
	x.write(t, content(Size, 13), 0)
	must(t, x.Discard())
	if names, err := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestNames: names that leave the directory or could belong to a partial file are rejected.
func TestNames(t *testing.T) {
	root, _ := newRoot(t)
	must(t, root.Symlink("/", "out"))
	for _, name := range []string{"", ".", "..", "../f", "/f", "a/../f", "a//f", "a/", ".f.ibx-partial", ".d.ibx-partial/f", "a/.d.ibx-partial/f", strings.Repeat("x", 250)} {
		_, err := Create(root, name, 1, false)
		wants(t, err, ErrName, "name "+name)
	}
	if _, err := Create(root, "out/tmp/f", 1, false); err == nil {
		t.Error("a symbolic link leads out of the directory")
	}
	x := create(t, root, "d", 0, false)
	must(t, root.Mkdir("d", 0o700))
	wants(t, x.Commit(t.Context(), total(nil), attributes(0o600), SyncNever), ErrKind, "the name of a directory")
}

// TestRenameIsAtomic: opening the file while it is replaced yields either the old or the new one.
func TestRenameIsAtomic(t *testing.T) {
	root, dir := newRoot(t)
	a, b := content(Size/4, 14), content(Size/4, 15)
	must(t, os.WriteFile(filepath.Join(dir, "f"), a, 0o600))
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			got, err := os.ReadFile(filepath.Join(dir, "f"))
			if err != nil || (!bytes.Equal(got, a) && !bytes.Equal(got, b)) {
				t.Errorf("found %d bytes that are neither, %v", len(got), err)
				return
			}
		}
	})
	for i := range 50 {
		want := [][]byte{b, a}[i%2]
		x := create(t, root, "f", len(want), true)
		x.write(t, want, 0)
		must(t, x.Commit(t.Context(), total(want), attributes(0o600), SyncNever))
	}
	done.Store(true)
	wg.Wait()
}

// TestWriteSeesLateChange: data that changes between check and write must not be stored as
// verified.
func TestWriteSeesLateChange(t *testing.T) {
	root, _ := newRoot(t)
	want := content(Size, 1)
	x := create(t, root, "f", Size, false)
	b := bytes.Clone(want)
	x.writing.Lock()
	done := make(chan error, 1)
	go func() { done <- x.Write(0, b, Digest(want)) }()
	time.Sleep(20 * time.Millisecond) // a Write that computes the digest first has done so
	b[7]++
	x.writing.Unlock()
	wants(t, <-done, ErrDigest, "a chunk that changes before it is written")
	if x.Left() != 1 {
		t.Errorf("%d chunks are missing, want 1", x.Left())
	}
	must(t, x.Write(0, want, Digest(want)))
}

// TestPartialIsSymlink: a symbolic link with the name of the partial file is refused and not
// followed.
func TestPartialIsSymlink(t *testing.T) {
	for _, to := range []string{"victim", "absent"} {
		root, dir := newRoot(t)
		must(t, os.WriteFile(filepath.Join(dir, "victim"), []byte("victim"), 0o600))
		must(t, os.Symlink(to, filepath.Join(dir, partial("f"))))
		done := make(chan error, 1)
		go func() {
			_, err := Create(root, "f", 10, true)
			done <- err
		}()
		select {
		case err := <-done:
			wants(t, err, ErrKind, "a link to "+to)
		case <-time.After(time.Minute):
			t.Fatal("Create does not return")
		}
		expect(t, dir, "victim", []byte("victim"))
		if _, err := os.Lstat(filepath.Join(dir, "absent")); err == nil {
			t.Error("the target of the link was made")
		}
	}
}

// TestNameOfNonRegularFile: if the name exists and is not a file, Create fails immediately and preserves
// the partial file of an earlier Target, including its length.
func TestNameOfNonRegularFile(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		root, dir := newRoot(t)
		must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
		must(t, os.Symlink("d", filepath.Join(dir, "l")))
		for _, name := range []string{"d", "l"} {
			want := content(3*Size, 1)
			must(t, os.WriteFile(filepath.Join(dir, partial(name)), want, 0o600))
			_, err := Create(root, name, 2*Size, fresh)
			wants(t, err, ErrKind, name)
			expect(t, dir, partial(name), want)
		}
	}
}

// getAgain receives a file like Get: existing data is kept.
func getAgain(t *testing.T, root *os.Root, b []byte) {
	t.Helper()
	target := create(t, root, "f", len(b), false)
	room := make([]byte, Size)
	for k := range Count(int64(len(b))) {
		p := piece(b, k)
		f, ok, err := target.StoredFingerprint(k, room)
		must(t, err)
		switch {
		case ok && f.Digest() == Digest(p):
			must(t, target.Keep(k, f.Digest()))
		case Zero(p):
			must(t, target.WriteZero(k))
		default:
			must(t, target.Write(k, p, Digest(p)))
		}
	}
	must(t, target.Commit(t.Context(), total(b), attributes(0o640), SyncBatch))
}

// TestUnchangedWithZeros: an identical existing file with a chunk of zeros is not rewritten.
func TestUnchangedWithZeros(t *testing.T) {
	root, dir := newRoot(t)
	b := content(3*Size, 1)
	clear(b[Size : 2*Size])
	getAgain(t, root, b)
	before, err := root.Lstat("f")
	must(t, err)
	getAgain(t, root, b)
	after, err := root.Lstat("f")
	must(t, err)
	if !os.SameFile(before, after) {
		t.Error("the file was written again, want it left as it was")
	}
	expect(t, dir, "f", b)
	for i := range b { // zeros elsewhere differ from the file
		b[i] ^= 1
	}
	clear(b[:Size])
	getAgain(t, root, b)
	expect(t, dir, "f", b)
}

// TestUnchangedForReaders: receiving an identical file again is not a change for its readers.
func TestUnchangedForReaders(t *testing.T) {
	root, _ := newRoot(t)
	b := content(2*Size, 1)
	getAgain(t, root, b)
	source := openSource(t, root, "f")
	getAgain(t, root, b)
	must(t, source.Check())
}
