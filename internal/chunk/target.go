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
	// existing is the existing file with the name, or nil. Identical chunks are reused. existingInfo is its
	// initial state.
	existing     *os.File
	existingInfo fs.FileInfo
	// writing is held while a chunk is written. The kernel serializes writes to a file too, but
	// lets the waiters spin.
	writing sync.Mutex
	chunks  Table[state]
	left    atomic.Int64
	hasData atomic.Bool // the partial file has usable data
	// sparse is set if blocks of zeros are not stored.
	sparse bool
	// kept is set by Commit if the existing file was equal.
	kept bool
}

// state is a chunk's state in a Target.
type state struct {
	// digest covers the data in the partial file if stored is set, and the data in the existing file if reused is
	// set.
	digest         uint32
	stored, reused bool
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

// open opens and locks the partial file. It fails if another user owns the file or others can write to it, even if the
// file is locked.
func (t *Target) open() error {
	for {
		if err := t.checkRegular(partial(t.name)); err != nil {
			return err // otherwise a link would be followed
		}
		f, err := t.openPartial()
		if errors.Is(err, fs.ErrExist) {
			continue // another Target has just created it
		}
		if err != nil {
			return err
		}
		again, err := t.lockPartial(f)
		if err == nil && !again {
			t.file = f
			return nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// lockPartial locks an opened partial file, and checks that it is private and still has its name. again is set if the
// name now belongs to another file, or to none.
func (t *Target) lockPartial(f *os.File) (again bool, err error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	distrusted := t.checkPrivate(mine)
	if distrusted == nil {
		if err := lock(f); err != nil {
			if errors.Is(err, errLocked) {
				err = fmt.Errorf("%s: %w, by this process or another", t.name, ErrBusy)
			}
			return false, err
		}
	}
	// Another Target may have renamed the file before this one had the lock.
	if there, err := t.root.Lstat(partial(t.name)); err != nil || !os.SameFile(mine, there) {
		return true, nil
	}
	if distrusted != nil {
		return false, fmt.Errorf("%s: %w: remove it, or use a directory that only you can write to", partial(t.name), distrusted)
	}
	return false, nil
}

// openPartial opens the partial file, or creates it. The error wraps fs.ErrExist if another process has just created it.
// An interrupted Commit may have left the file with its final permissions.
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

// checkPrivate returns an error if a partial or existing file must not be reused: see the function checkPrivate.
func (t *Target) checkPrivate(info fs.FileInfo) error {
	return checkPrivate(info, func() (uint32, error) { return probeOwner(t.root, path.Dir(t.name)) })
}

// checkRegular returns ErrKind if name exists and is not a regular file.
func (t *Target) checkRegular(name string) error {
	info, err := t.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w: the name is in use: %s", name, ErrKind, info.Mode().Type())
	}
	return nil
}

// prepare sets the size of the partial file, and opens the existing file for reuse.
func (t *Target) prepare(fresh bool) error {
	info, err := t.file.Stat()
	if err != nil {
		return err
	}
	t.hasData.Store(info.Size() > 0)
	if err := t.checkRegular(t.name); err != nil {
		return err
	}
	if fresh {
		if err := t.file.Truncate(0); err != nil {
			return err
		}
		t.hasData.Store(false)
		return t.file.Truncate(t.size)
	}
	if f, err := t.root.OpenFile(t.name, os.O_RDONLY|openNoWait, 0); err == nil {
		if t.existingInfo, err = f.Stat(); err == nil {
			err = t.checkExisting()
		}
		if err == nil {
			err = t.checkPrivate(t.existingInfo) // a digest does not protect against someone who chooses the bytes
		}
		if err != nil { // not private, or replaced just now, perhaps by a link
			if err := f.Close(); err != nil {
				return err
			}
			f = nil
		}
		t.existing = f
	}
	return t.file.Truncate(t.size)
}

// StoredFingerprint returns the Fingerprint of chunk k as stored in the partial file, or else in the existing
// file. ok is false if neither has data for it. b must have space for a chunk, and is overwritten.
func (t *Target) StoredFingerprint(k int64, b []byte) (f Fingerprint, ok bool, err error) {
	b = b[:Len(t.size, k)]
	had, err := readStored(t.file, k, b)
	ok = had
	if !ok && err == nil && t.existing != nil {
		ok, err = readStored(t.existing, k, b)
	}
	if !ok || err != nil {
		return 0, false, err
	}
	s := t.chunks.At(k)
	s.digest, s.stored, s.reused = Digest(b), had, !had
	return FingerprintOf(b, s.digest), true, nil
}

// readStored reads chunk k of a file. ok is false for a hole, for a chunk of zeros, and if the file is
// too short.
func readStored(f *os.File, k int64, b []byte) (ok bool, err error) {
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

// Keep accepts the stored chunk k if StoredFingerprint found it with that digest, and returns ErrDigest
// otherwise. Chunks of the existing file are copied by Commit, if needed.
func (t *Target) Keep(k int64, digest uint32) error {
	if s := t.chunks.Get(k); (!s.stored && !s.reused) || s.digest != digest {
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
	s.stored, s.reused, s.zero = false, false, false
	t.writing.Lock()
	err := t.writeData(b, k*Size)
	t.writing.Unlock()
	if err != nil {
		return err
	}
	t.hasData.Store(true)
	if got := Digest(b); got != digest {
		return wrongDigest(t.name, k, got, digest)
	}
	s.stored = true
	t.finish(k, digest)
	return nil
}

// KeepHoles makes later writes store blocks of zeros as holes, if the file system supports them.
func (t *Target) KeepHoles() { t.sparse = true }

// writeData writes a chunk to the partial file.
func (t *Target) writeData(b []byte, off int64) error {
	if t.sparse && (isHole(t.file, off, int64(len(b))) || punch(t.file, off, int64(len(b))) == nil) {
		return writeSparse(t.file, b, off)
	}
	_, err := t.file.WriteAt(b, off)
	return err
}

// WriteZero sets chunk k to zeros, without using disk space if possible.
func (t *Target) WriteZero(k int64) error {
	b := zeros[:Len(t.size, k)]
	s := t.chunks.At(k)
	s.stored, s.reused, s.zero = false, false, true
	if !isHole(t.file, k*Size, int64(len(b))) {
		if err := punch(t.file, k*Size, int64(len(b))); err != nil {
			if _, err := t.file.WriteAt(b, k*Size); err != nil {
				return err
			}
		}
	}
	s.stored = true
	t.finish(k, Digest(b))
	return nil
}

// HasData reports whether StoredFingerprint may find any data.
func (t *Target) HasData() bool { return t.existing != nil || t.hasData.Load() }

func (t *Target) finish(k int64, digest uint32) {
	s := t.chunks.At(k)
	if s.digest = digest; !s.done {
		s.done = true
		t.left.Add(-1)
	}
}

// Size returns the length of the file.
func (t *Target) Size() int64 { return t.size }

// Left returns the number of missing chunks.
func (t *Target) Left() int64 { return t.left.Load() }

// Close closes the partial file, and removes it if it holds no usable data. It may be called after
// Commit.
func (t *Target) Close() error {
	if t.file == nil {
		return nil
	}
	var errs []error
	if !t.hasData.Load() {
		errs = append(errs, t.root.Remove(partial(t.name)))
	}
	errs = append(errs, t.file.Close()) // releases the lock
	if t.existing != nil {
		errs = append(errs, t.existing.Close())
	}
	t.file, t.existing = nil, nil
	return errors.Join(errs...)
}

// Discard removes the partial file and closes the Target.
func (t *Target) Discard() error {
	t.hasData.Store(false)
	return t.Close()
}

// syncDir flushes directory name below root to disk.
func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
