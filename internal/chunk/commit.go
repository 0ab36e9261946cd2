package chunk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"
)

// Sync selects the data flushed to disk before Commit returns.
type Sync uint8

// Durability levels of Commit.
const (
	SyncBatch Sync = iota // the data before the rename, then the directory, once for all files of a Tree in it
	SyncFile              // the data; after a system crash the file may have its old name
	SyncNever             // no guarantee
)

// Commit verifies that the file is complete and matches want, gives it the attributes of e, renames the partial file to its
// final name, and closes the Target. If it fails before the rename, the existing file is unchanged and
// the partial file remains. It returns the cause of ctx if that is done while reused chunks are copied.
func (t *Target) Commit(ctx context.Context, want Sum, e *Entry, sync Sync) error {
	if left := t.Left(); left > 0 {
		return fmt.Errorf("%s: %w: %d of %d", t.name, ErrIncomplete, left, t.chunks.Len())
	}
	if got := Total(t.size, func(k int64) uint32 { return t.chunks.Get(k).digest }); got != want {
		return fmt.Errorf("%s: %w: the whole has %x, want %x", t.name, ErrDigest, got[:8], want[:8])
	}
	if err := t.checkRegular(t.name); err != nil {
		return err
	}
	if t.equalsExisting() {
		return t.keepExisting(e, sync)
	}
	if err := t.copyReused(ctx); err != nil {
		return err
	}
	if sync != SyncNever {
		if err := t.sync(); err != nil {
			return err
		}
	}
	if e.Xattrs != nil {
		if err := setXattrs(t.file, e.Xattrs); err != nil {
			return err
		}
	}
	if err := t.root.Chtimes(partial(t.name), time.Time{}, e.ModTime); err != nil {
		return err
	}
	mode := e.Mode.Perm()
	if err := t.file.Chmod(mode &^ othersWrite); err != nil {
		return err
	}
	if err := t.root.Rename(partial(t.name), t.name); err != nil {
		return err
	}
	t.hasData.Store(true)
	// The owner and write access for others are set only now: a process killed before the rename would
	// leave a partial file that the next Target does not trust.
	var err error
	if e.Owner != nil {
		err = t.file.Chown(int(e.Owner.UID), int(e.Owner.GID))
	}
	if err == nil && (e.Owner != nil || mode&othersWrite != 0) {
		err = t.file.Chmod(mode)
	}
	err = errors.Join(err, t.Close())
	if sync == SyncBatch {
		err = errors.Join(err, syncDir(t.root, path.Dir(t.name)))
	}
	return err
}

// othersWrite are the permissions that a partial file must not have.
const othersWrite = 0o022

// Kept reports whether Commit kept the existing file because its contents were equal.
func (t *Target) Kept() bool { return t.kept }

// sync flushes the data to disk. If that fails, the page cache may hold data that never reaches the
// disk, so the data is not reused, unless the disk was only full.
func (t *Target) sync() error {
	err := t.file.Sync()
	if err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		t.hasData.Store(false)
	}
	return err
}

// equalsExisting reports whether the existing file equals the received one, so that the partial file is
// not needed.
func (t *Target) equalsExisting() bool {
	if t.existing == nil || t.existingInfo.Size() != t.size || t.hasData.Load() || t.checkExisting() != nil {
		return false
	}
	room := make([]byte, Size)
	for k := range t.chunks.Len() {
		if s := t.chunks.Get(k); !s.reused && (!s.zero || !t.zeroInExisting(k, room)) {
			return false
		}
	}
	return true
}

// zeroInExisting reports whether chunk k of the existing file is all zeros. buf has the size of a chunk.
func (t *Target) zeroInExisting(k int64, buf []byte) bool {
	b := buf[:Len(t.size, k)]
	if isHole(t.existing, k*Size, int64(len(b))) {
		return true
	}
	n, _ := t.existing.ReadAt(b, k*Size) // a short read returns false
	return n == len(b) && Zero(b)
}

// checkExisting returns ErrChanged if the existing file has changed since Create.
func (t *Target) checkExisting() error {
	now, err := t.root.Lstat(t.name)
	if err != nil || !os.SameFile(now, t.existingInfo) || !sameVersion(now, t.existingInfo) {
		return fmt.Errorf("%s: %w while it was received", t.name, ErrChanged)
	}
	return nil
}

// keepExisting is Commit for an unchanged file. It only updates attributes that differ: any update changes
// ctime, so a Source that is reading the file would report ErrChanged.
func (t *Target) keepExisting(e *Entry, sync Sync) error {
	t.kept = true
	if sync != SyncNever {
		if err := t.existing.Sync(); err != nil && !cannotSync(err) {
			return err
		}
	}
	at := *e
	at.Name = t.name
	if err := chown(t.root, &at, t.existingInfo); err != nil {
		return err
	}
	if err := updateXattrs(t.root, &at, t.existingInfo); err != nil {
		return err
	}
	if t.existingInfo.Mode().Perm() != e.Mode.Perm() {
		if err := t.existing.Chmod(e.Mode.Perm()); err != nil {
			return err
		}
	}
	if !t.existingInfo.ModTime().Equal(e.ModTime) {
		if err := t.root.Chtimes(t.name, time.Time{}, e.ModTime); err != nil {
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

// copyReused copies reused chunks from the existing file to the partial file.
func (t *Target) copyReused(ctx context.Context) error {
	var room []byte
	for k := range t.chunks.Len() {
		s := t.chunks.Get(k)
		if !s.reused {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if room == nil {
			room = make([]byte, Size)
		}
		b := room[:Len(t.size, k)]
		if _, err := t.existing.ReadAt(b, k*Size); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := t.Write(k, b, s.digest); err != nil {
			return err
		}
	}
	return nil
}
