package chunk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// partialSuffix ends the name of a partial file, which begins with a dot.
const partialSuffix = ".ibx-partial"

// maxName is how many bytes the last element of a name has on most file systems.
const maxName = 255

// Target is a file that is being received. Methods about different chunks may be called at the same time, from any
// goroutine.
type Target struct {
	root *os.Root
	name string
	size int64
	file *os.File // the partial file, locked
	// base is the file that has the name already, nil if there is none. Its chunks are used where they are the same. baseInfo is what it was
	// at first.
	base     *os.File
	baseInfo fs.FileInfo
	// writing is held while a chunk is written. The system writes to a file one at a time too, but lets the others spin.
	writing sync.Mutex
	chunks  Table[state]
	left    atomic.Int64
	touched atomic.Bool // something of use is in the partial file
}

// state is what a Target knows of a chunk.
type state struct {
	// digest is that of the bytes in the partial file if had is set, and of those in base if borrowed is set.
	digest        uint32
	had, borrowed bool
	// zero says that all bytes are zero, and that the partial file has none of them.
	zero bool
	// done says that the chunk is not missing.
	done bool
}

// Create begins to receive a file of size bytes below root, or goes on with it. name has slashes, and is relative. The directory must
// exist. fresh means that nothing that is there is used.
func Create(root *os.Root, name string, size int64, fresh bool) (*Target, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, fmt.Errorf("%s: %w: the size is %d", name, fs.ErrInvalid, size)
	}
	t := &Target{root: root, name: name, size: size}
	if err := t.open(); err != nil {
		return nil, err
	}
	n := Count(size)
	t.chunks = NewTable[state](n)
	t.left.Store(n)
	if err := t.prepare(fresh); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// checkName refuses names that leave the directory, or that partial files have.
func checkName(name string) error {
	switch base := path.Base(name); {
	case !fs.ValidPath(name) || name == ".":
		return fmt.Errorf("%q: %w: want a relative path without dots as elements", name, ErrName)
	case hasPartial(name):
		return fmt.Errorf("%q: %w: an element is that of a partial file", name, ErrName)
	case len(base)+len(partialSuffix)+1 > maxName:
		return fmt.Errorf("%q: %w: it has more than %d bytes", name, ErrName, maxName-len(partialSuffix)-1)
	}
	return nil
}

// partial returns the name of the partial file of name.
func partial(name string) string {
	dir, base := path.Split(name)
	return dir + "." + base + partialSuffix
}

// open opens and locks the partial file.
func (t *Target) open() error {
	for {
		if err := t.regular(partial(t.name)); err != nil {
			return err // otherwise a link would be followed
		}
		f, err := t.openPartial()
		if err != nil {
			return err
		}
		if err := lock(f); err != nil {
			if errors.Is(err, errLocked) {
				err = fmt.Errorf("%s: %w, by this process or another", t.name, ErrBusy)
			}
			return errors.Join(err, f.Close())
		}
		// Another Target may have renamed the file before this one had the lock.
		mine, err := f.Stat()
		if err != nil {
			return errors.Join(err, f.Close())
		}
		if there, err := t.root.Lstat(partial(t.name)); err != nil || !os.SameFile(mine, there) {
			if err := f.Close(); err != nil {
				return err
			}
			continue
		}
		t.file = f
		return nil
	}
}

// openPartial opens the partial file. A Commit that did not come to its end may have left it with the permissions of the file.
func (t *Target) openPartial() (*os.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | openNoWait
	f, err := t.root.OpenFile(partial(t.name), flags, 0o600)
	if errors.Is(err, fs.ErrPermission) && t.root.Chmod(partial(t.name), 0o600) == nil {
		f, err = t.root.OpenFile(partial(t.name), flags, 0o600)
	}
	return f, err
}

// regular returns ErrKind if a name is that of something else than a regular file.
func (t *Target) regular(name string) error {
	info, err := t.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w: something else has the name: %s", name, ErrKind, info.Mode().Type())
	}
	return nil
}

// prepare gives the partial file its size, and finds what else can be used.
func (t *Target) prepare(fresh bool) error {
	info, err := t.file.Stat()
	if err != nil {
		return err
	}
	t.touched.Store(info.Size() > 0)
	if err := t.regular(t.name); err != nil {
		return err
	}
	if fresh {
		if err := t.file.Truncate(0); err != nil {
			return err
		}
		t.touched.Store(false)
		return t.file.Truncate(t.size)
	}
	if f, err := t.root.OpenFile(t.name, os.O_RDONLY|openNoWait, 0); err == nil {
		if t.baseInfo, err = f.Stat(); err == nil {
			err = t.sameBase()
		}
		if err != nil { // it was replaced just now, perhaps by a link
			if err := f.Close(); err != nil {
				return err
			}
			f = nil
		}
		t.base = f
	}
	return t.file.Truncate(t.size)
}

// Have returns the Fingerprint of chunk k as it is there, in the partial file or else in the file that has the name. ok is false if
// there is nothing but a hole. b must have room for a chunk, and is overwritten.
func (t *Target) Have(k int64, b []byte) (f Fingerprint, ok bool, err error) {
	b = b[:Len(t.size, k)]
	had, err := load(t.file, k, b)
	ok = had
	if !ok && err == nil && t.base != nil {
		ok, err = load(t.base, k, b)
	}
	if !ok || err != nil {
		return 0, false, err
	}
	s := t.chunks.At(k)
	s.digest, s.had, s.borrowed = Digest(b), had, !had
	return FingerprintOf(b, s.digest), true, nil
}

// load reads chunk k of a file. ok is false if there is a hole, if all bytes are zero, or if the file is too short.
func load(f *os.File, k int64, b []byte) (ok bool, err error) {
	if isHole(f, k*Size, int64(len(b))) {
		return false, nil
	}
	if n, err := f.ReadAt(b, k*Size); n < len(b) {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return false, err
	}
	return !Zero(b), nil
}

// Keep takes chunk k as it is there, if Have found it with that digest, and returns ErrDigest otherwise. What is in the file that
// has the name is copied by Commit, if at all.
func (t *Target) Keep(k int64, digest uint32) error {
	if s := t.chunks.Get(k); (!s.had && !s.borrowed) || s.digest != digest {
		return wrongDigest(t.name, k, s.digest, digest)
	}
	t.finish(k, digest)
	return nil
}

// Write writes the bytes of chunk k and checks them. The digest is computed after the write: if a peer changes b meanwhile, it is wrong. A
// chunk with a wrong digest counts as missing, and the next Target finds that it differs.
func (t *Target) Write(k int64, b []byte, digest uint32) error {
	if want := Len(t.size, k); len(b) != want {
		return fmt.Errorf("%s: %w: chunk %d has %d bytes, want %d", t.name, ErrDigest, k, len(b), want)
	}
	s := t.chunks.At(k)
	s.had, s.borrowed, s.zero = false, false, false
	t.writing.Lock()
	_, err := t.file.WriteAt(b, k*Size)
	t.writing.Unlock()
	if err != nil {
		return err
	}
	t.touched.Store(true)
	if got := Digest(b); got != digest {
		return wrongDigest(t.name, k, got, digest)
	}
	s.had = true
	t.finish(k, digest)
	return nil
}

// WriteZero makes all bytes of chunk k zero, without using room on the disk where that is possible.
func (t *Target) WriteZero(k int64) error {
	b := zeros[:Len(t.size, k)]
	s := t.chunks.At(k)
	s.had, s.borrowed, s.zero = false, false, true
	if !isHole(t.file, k*Size, int64(len(b))) {
		if err := punch(t.file, k*Size, int64(len(b))); err != nil {
			if _, err := t.file.WriteAt(b, k*Size); err != nil {
				return err
			}
		}
	}
	s.had = true
	t.finish(k, Digest(b))
	return nil
}

// There reports whether anything is there that Have could find.
func (t *Target) There() bool { return t.base != nil || t.touched.Load() }

func (t *Target) finish(k int64, digest uint32) {
	s := t.chunks.At(k)
	if s.digest = digest; !s.done {
		s.done = true
		t.left.Add(-1)
	}
}

// Size is the length of the file.
func (t *Target) Size() int64 { return t.size }

// Left returns how many chunks are missing.
func (t *Target) Left() int64 { return t.left.Load() }

// Sync says what is on the disk when Commit returns.
type Sync uint8

// What Commit waits for.
const (
	SyncFile  Sync = iota // the bytes of the file; after a crash of the system it may have its old name
	SyncDir               // its name as well
	SyncNever             // whatever the system has written
)

// Commit gives the file its place, if it is complete and has that Sum. The Target is closed then. With an error the partial file
// stays, and so does the file that had the name.
func (t *Target) Commit(want Sum, mode fs.FileMode, modified time.Time, sync Sync) error {
	if left := t.Left(); left > 0 {
		return fmt.Errorf("%s: %w: %d of %d", t.name, ErrIncomplete, left, t.chunks.Len())
	}
	if got := Total(t.size, func(k int64) uint32 { return t.chunks.Get(k).digest }); got != want {
		return fmt.Errorf("%s: %w: the whole has %x, want %x", t.name, ErrDigest, got[:8], want[:8])
	}
	if err := t.regular(t.name); err != nil {
		return err
	}
	if t.unchanged() {
		return t.confirm(mode, modified, sync)
	}
	if err := t.copyBorrowed(); err != nil {
		return err
	}
	if sync != SyncNever {
		if err := t.sync(); err != nil {
			return err
		}
	}
	if err := t.root.Chtimes(partial(t.name), time.Time{}, modified); err != nil {
		return err
	}
	if err := t.file.Chmod(mode.Perm()); err != nil {
		return err
	}
	if err := t.root.Rename(partial(t.name), t.name); err != nil {
		return err
	}
	t.touched.Store(true)
	err := t.Close()
	if sync == SyncDir {
		err = errors.Join(err, syncDir(t.root, path.Dir(t.name)))
	}
	return err
}

// sync writes the bytes to the disk. If that fails, what is in memory may never get there, although it reads well. So nothing of it is used again,
// unless the disk was only full.
func (t *Target) sync() error {
	err := t.file.Sync()
	if err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		t.touched.Store(false)
	}
	return err
}

// unchanged reports whether the file that has the name is the one that was received, so that the partial file is not needed.
func (t *Target) unchanged() bool {
	if t.base == nil || t.baseInfo.Size() != t.size || t.touched.Load() || t.sameBase() != nil {
		return false
	}
	room := make([]byte, Size)
	for k := range t.chunks.Len() {
		if s := t.chunks.Get(k); !s.borrowed && (!s.zero || !t.zeroInBase(k, room)) {
			return false
		}
	}
	return true
}

// zeroInBase reports whether the file that has the name has only zeros in chunk k. room is for a chunk.
func (t *Target) zeroInBase(k int64, room []byte) bool {
	b := room[:Len(t.size, k)]
	if isHole(t.base, k*Size, int64(len(b))) {
		return true
	}
	n, _ := t.base.ReadAt(b, k*Size) // less than all is an answer too
	return n == len(b) && Zero(b)
}

// sameBase returns ErrChanged if the file that has the name is not the one that it was at first.
func (t *Target) sameBase() error {
	now, err := t.root.Lstat(t.name)
	if err != nil || !os.SameFile(now, t.baseInfo) || !sameVersion(now, t.baseInfo) {
		return fmt.Errorf("%s: %w while it was received", t.name, ErrChanged)
	}
	return nil
}

// confirm is Commit of a file that has its place already. It changes nothing that is right, because those who read the file would take that for
// a change of the file.
func (t *Target) confirm(mode fs.FileMode, modified time.Time, sync Sync) error {
	if sync != SyncNever {
		if err := t.base.Sync(); err != nil && !cannotSync(err) {
			return err
		}
	}
	if t.baseInfo.Mode().Perm() != mode.Perm() {
		if err := t.base.Chmod(mode.Perm()); err != nil {
			return err
		}
	}
	if !t.baseInfo.ModTime().Equal(modified) {
		if err := t.root.Chtimes(t.name, time.Time{}, modified); err != nil {
			return err
		}
	}
	err := t.Close()
	if sync == SyncDir {
		err = errors.Join(err, syncDir(t.root, path.Dir(t.name)))
	}
	return err
}

// cannotSync reports whether a system refuses to sync a file that is open for reading.
func cannotSync(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EINVAL)
}

// copyBorrowed copies chunks of the file that has the name to the partial file.
func (t *Target) copyBorrowed() error {
	var room []byte
	for k := range t.chunks.Len() {
		s := t.chunks.Get(k)
		if !s.borrowed {
			continue
		}
		if room == nil {
			room = make([]byte, Size)
		}
		b := room[:Len(t.size, k)]
		if _, err := t.base.ReadAt(b, k*Size); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := t.Write(k, b, s.digest); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the use of the partial file, which stays unless nothing is in it. It may be called after Commit.
func (t *Target) Close() error {
	if t.file == nil {
		return nil
	}
	var errs []error
	if !t.touched.Load() {
		errs = append(errs, t.root.Remove(partial(t.name)))
	}
	errs = append(errs, t.file.Close()) // and the lock with it
	if t.base != nil {
		errs = append(errs, t.base.Close())
	}
	t.file, t.base = nil, nil
	return errors.Join(errs...)
}

// Discard is Close, and removes the partial file.
func (t *Target) Discard() error {
	t.touched.Store(false)
	return t.Close()
}

func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
