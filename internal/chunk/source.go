package chunk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Source is a regular file, read in chunks. Its methods are safe for concurrent use.
type Source struct {
	root *os.Root
	name string
	file *os.File
	info fs.FileInfo
	// sparse is set if the file may have holes.
	sparse bool
}

// OpenSource opens a file below root. name is relative and uses slashes. Partial files are treated
// as missing.
func OpenSource(root *os.Root, name string) (*Source, error) {
	if hasPartial(name) {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	f, err := root.OpenFile(name, os.O_RDONLY|openNoWait, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w: want a regular file", name, ErrKind)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	waitTimeTick(info)
	return &Source{root: root, name: name, file: f, info: info, sparse: isSparse(info)}, nil
}

// timeTick exceeds the interval at which the kernel advances the modification times that it
// assigns. Before Linux 6.13 it is a tick, at most 10 ms.
const timeTick = 20 * time.Millisecond

// waitTimeTick waits until the clock of modification times has advanced beyond a file's. Any later write then changes the
// modification time, so a copy with the same time has the contents read now.
func waitTimeTick(info fs.FileInfo) {
	if age := time.Since(info.ModTime()); age >= 0 && age < timeTick {
		time.Sleep(timeTick - age)
	}
}

// Entry describes the file when it was opened. Its Name is empty.
func (s *Source) Entry() Entry {
	return Entry{Mode: s.Mode(), Size: s.Size(), ModTime: s.ModTime(), Sparse: s.sparse}
}

// Add adds attributes to the file's entry.
func (s *Source) Add(e *Entry, want Want) (err error) {
	if want.Owner {
		e.Owner = ownerOf(s.info)
	}
	if want.Xattrs {
		e.Xattrs, err = listXattrs(s.file)
	}
	return err
}

// Size returns the length of the file when it was opened.
func (s *Source) Size() int64 { return s.info.Size() }

// Mode returns the file's permissions.
func (s *Source) Mode() fs.FileMode { return s.info.Mode().Perm() }

// ModTime returns the file's modification time.
func (s *Source) ModTime() time.Time { return s.info.ModTime() }

// Read reads chunk k into b, which must be large enough, and returns its length and digest. zero is
// set if all bytes are zero. If the file was truncated, Read returns ErrChanged.
func (s *Source) Read(k int64, b []byte) (n int, digest uint32, zero bool, err error) {
	size := s.Size()
	if k < 0 || k >= Count(size) {
		return 0, 0, false, fmt.Errorf("%s: chunk %d does not exist: the file has %d", s.name, k, Count(size))
	}
	n = Len(size, k)
	b = b[:n]
	if s.sparse && isHole(s.file, k*Size, int64(n)) {
		clear(b)
		return n, Digest(b), true, nil
	}
	if _, err := s.file.ReadAt(b, k*Size); errors.Is(err, io.EOF) {
		return 0, 0, false, s.changed("it has become shorter than %d bytes", size)
	} else if err != nil {
		return 0, 0, false, err
	}
	return n, Digest(b), Zero(b), nil
}

// Check returns ErrChanged if the file was replaced or written to since it was opened. On Linux,
// changed permissions or links count as well, because ctime covers both.
func (s *Source) Check() error {
	now, err := s.file.Stat()
	if err != nil {
		return err
	}
	if !sameVersion(now, s.info) {
		return s.changed("it had %d bytes and was changed at %v, it has %d and was changed at %v",
			s.Size(), s.ModTime(), now.Size(), now.ModTime())
	}
	if there, err := s.root.Lstat(s.name); err == nil && os.SameFile(there, now) {
		return nil
	} else if link, err := s.root.Stat(s.name); err == nil && os.SameFile(link, now) {
		return nil // opened through a symbolic link
	}
	return s.changed("another file has its name")
}

// sameVersion reports whether a file is unchanged between two calls of Stat.
func sameVersion(a, b fs.FileInfo) bool {
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && changeTime(a) == changeTime(b)
}

func (s *Source) changed(format string, args ...any) error {
	return fmt.Errorf("%s: %w while it was read: %s", s.name, ErrChanged, fmt.Sprintf(format, args...))
}

// Close closes the file.
func (s *Source) Close() error { return s.file.Close() }
