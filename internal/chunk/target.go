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

// partialSuffix is the suffix of a partial file's name, which begins with a dot.
const partialSuffix = ".ibx-partial"

// maxName is the maximum length of a name's last element on most file systems, in bytes.
const maxName = 255

// Target is a file being received. Methods for different chunks may be called concurrently.
type Target struct {
	root *os.Root
	name string
	size int64
	file *os.File // the partial file, locked
	// base is the existing file with the name, or nil. Identical chunks are reused. baseInfo is its
	// initial state.
	base     *os.File
	baseInfo fs.FileInfo
	// writing is held while a chunk is written. The kernel serializes writes to a file too, but
	// lets the waiters spin.
	writing sync.Mutex
	chunks  Table[state]
	left    atomic.Int64
	touched atomic.Bool // the partial file has usable data
	// kept is set by Commit if the existing file was equal.
	kept bool
}

// state is a Target's state of a chunk.
type state struct {
	// digest covers the data in the partial file if had is set, and the data in base if borrowed is
	// set.
	digest        uint32
	had, borrowed bool
	// zero is set if all bytes are zero and not stored in the partial file.
	zero bool
	// done is set once the chunk is available.
	done bool
}

// Create starts or resumes receiving a file of size bytes below root. name is relative and uses
// slashes. The directory must exist. fresh ignores existing data.
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

// checkName rejects names that leave the directory or belong to partial files.
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

// open opens and locks the partial file. One that another user owns is an error, even if it is locked. One that others can write to is
// replaced.
func (t *Target) open() error {
	for {
		if err := t.regular(partial(t.name)); err != nil {
			return err // otherwise a link would be followed
		}
		f, err := t.openPartial()
		if errors.Is(err, fs.ErrExist) {
			continue // another Target has just created it
		}
		if err != nil {
			return err
		}
		again, err := t.adopt(f)
		if err == nil && !again {
			t.file = f
			return nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// adopt locks an opened partial file and checks that it is private and still has its name. again is set if the name now belongs to another
// file, or to none.
func (t *Target) adopt(f *os.File) (again bool, err error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	foreign, distrusted := t.distrust(mine)
	if foreign {
		return false, fmt.Errorf("%s: %w: use a directory that only you can write to", partial(t.name), distrusted)
	}
	if err := lock(f); err != nil {
		if errors.Is(err, errLocked) {
			err = fmt.Errorf("%s: %w, by this process or another", t.name, ErrBusy)
		}
		return false, err
	}
	// Another Target may have renamed the file before this one had the lock.
	if there, err := t.root.Lstat(partial(t.name)); err != nil || !os.SameFile(mine, there) {
		return true, nil
	}
	if distrusted != nil {
		return true, t.root.Remove(partial(t.name))
	}
	return false, nil
}

// openPartial opens the partial file, or creates it. The error wraps fs.ErrExist if another process creates it at the same time. An
// interrupted Commit may have left the file with the final permissions.
func (t *Target) openPartial() (*os.File, error) {
	const flags = os.O_RDWR | openNoWait
	name := partial(t.name)
	f, err := t.root.OpenFile(name, flags, 0)
	if errors.Is(err, fs.ErrPermission) && t.root.Chmod(name, 0o600) == nil {
		f, err = t.root.OpenFile(name, flags, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		f, err = t.root.OpenFile(name, flags|os.O_CREATE|os.O_EXCL, 0o600)
	}
	return f, err
}

// distrust returns why an existing file with the target's name must not be continued or reused.
func (t *Target) distrust(info fs.FileInfo) (foreign bool, err error) {
	return distrust(info, func() (uint32, error) { return probeOwner(t.root, path.Dir(t.name)) })
}

// regular returns ErrKind if name exists and is not a regular file.
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

// prepare sets the size of the partial file, and opens the existing file for reuse.
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
		if err == nil {
			_, err = t.distrust(t.baseInfo) // a digest does not protect against someone who chooses the bytes
		}
		if err != nil { // not private, or replaced just now, perhaps by a link
			if err := f.Close(); err != nil {
				return err
			}
			f = nil
		}
		t.base = f
	}
	return t.file.Truncate(t.size)
}

// Have returns the Fingerprint of chunk k as stored in the partial file, or else in the existing
// file. ok is false if neither has data for it. b must have space for a chunk, and is overwritten.
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

// load reads chunk k of a file. ok is false for a hole, for a chunk of zeros, and if the file is
// too short.
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

// Keep accepts the stored chunk k if Have found it with that digest, and returns ErrDigest
// otherwise. Chunks of the existing file are copied by Commit, if needed.
func (t *Target) Keep(k int64, digest uint32) error {
	if s := t.chunks.Get(k); (!s.had && !s.borrowed) || s.digest != digest {
		return wrongDigest(t.name, k, s.digest, digest)
	}
	t.finish(k, digest)
	return nil
}

// Write stores chunk k and verifies it. The digest is computed after the write, so it detects a
// peer that changes b meanwhile. A chunk with a wrong digest counts as missing, and the next Target
// detects it as well.
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

// WriteZero sets chunk k to zeros, without using disk space if possible.
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

// There reports whether Have may find any data.
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

// Left returns the number of missing chunks.
func (t *Target) Left() int64 { return t.left.Load() }

// Sync selects what is on disk when Commit returns.
type Sync uint8

// Durability levels of Commit.
const (
	SyncBatch Sync = iota // the data before the name changes, and then the name, once per directory of a Tree
	SyncFile              // the data; after a system crash the file may have its old name
	SyncNever             // no guarantee
)

// Commit verifies that the file is complete and matches want, renames the partial file to its final
// name, and closes the Target. If it fails before the rename, the existing file is unchanged and
// the partial file remains.
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
	if sync == SyncBatch {
		err = errors.Join(err, syncDir(t.root, path.Dir(t.name)))
	}
	return err
}

// Kept reports whether Commit found the existing file equal and kept it.
func (t *Target) Kept() bool { return t.kept }

// sync flushes the data to disk. If that fails, the page cache may hold data that never reaches the
// disk, so the data is not reused, unless the disk was only full.
func (t *Target) sync() error {
	err := t.file.Sync()
	if err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		t.touched.Store(false)
	}
	return err
}

// unchanged reports whether the existing file equals the received one, so that the partial file is
// not needed.
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

// zeroInBase reports whether chunk k of the existing file is all zeros. room is a buffer of one
// chunk.
func (t *Target) zeroInBase(k int64, room []byte) bool {
	b := room[:Len(t.size, k)]
	if isHole(t.base, k*Size, int64(len(b))) {
		return true
	}
	n, _ := t.base.ReadAt(b, k*Size) // a short read returns false
	return n == len(b) && Zero(b)
}

// sameBase returns ErrChanged if the existing file has changed since Create.
func (t *Target) sameBase() error {
	now, err := t.root.Lstat(t.name)
	if err != nil || !os.SameFile(now, t.baseInfo) || !sameVersion(now, t.baseInfo) {
		return fmt.Errorf("%s: %w while it was received", t.name, ErrChanged)
	}
	return nil
}

// confirm is Commit for an unchanged file. It only updates attributes that differ, because readers
// would take any update for a change of the file.
func (t *Target) confirm(mode fs.FileMode, modified time.Time, sync Sync) error {
	t.kept = true
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
	if sync == SyncBatch {
		err = errors.Join(err, syncDir(t.root, path.Dir(t.name)))
	}
	return err
}

// cannotSync reports whether err means that the system cannot sync a file opened for reading.
func cannotSync(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EBADF) || errors.Is(err, syscall.EINVAL)
}

// copyBorrowed copies reused chunks from the existing file to the partial file.
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

// Close closes the partial file and removes it if it has no usable data. It may be called after
// Commit.
func (t *Target) Close() error {
	if t.file == nil {
		return nil
	}
	var errs []error
	if !t.touched.Load() {
		errs = append(errs, t.root.Remove(partial(t.name)))
	}
	errs = append(errs, t.file.Close()) // releases the lock
	if t.base != nil {
		errs = append(errs, t.base.Close())
	}
	t.file, t.base = nil, nil
	return errors.Join(errs...)
}

// Discard removes the partial file and closes the Target.
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
