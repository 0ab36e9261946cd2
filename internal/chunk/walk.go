package chunk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// MaxDepth is the maximum number of nested directories in a tree.
const MaxDepth = 128

// Step is an entry of a Walk.
type Step struct {
	// Entry has the last element of the path as its Name.
	Entry
	// Depth is the number of directories between the top of the tree and the entry.
	Depth int
	// Err is the reason why the entry or the contents of a directory are missing, nil otherwise.
	Err error
}

// Walk lists a directory tree in depth-first order, sorted by name within each directory. A directory precedes its
// contents. Only the names in the open directories are in memory. Symbolic links are listed, not followed.
type Walk struct {
	open []level
	// exclude reports whether a path is omitted, with its contents. It may be nil.
	exclude func(path string, dir bool) bool
	want    Want
	limit   int // names in open directories
	names   int
}

// level is an open directory of a Walk.
type level struct {
	path  string // with a slash at the end, empty for the top
	root  *os.Root
	names []string // sorted, without the listed ones
	count int
}

// NewWalk starts a Walk of directory dir below root, after the entry with the path after, relative
// to dir. A path with a trailing slash names a directory whose contents follow. limit bounds the
// names of all open directories. Paths for which exclude returns true are left out with their
// contents; it may be nil. want selects attributes of the entries.
func NewWalk(root *os.Root, dir, after string, limit int, exclude func(path string, dir bool) bool, want Want) (*Walk, error) {
	top, err := root.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	w := &Walk{limit: limit, exclude: exclude, want: want}
	if err := w.push("", top); err != nil {
		return nil, err
	}
	if err := w.seek(after); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// seek skips all entries up to a path, and none after it.
func (w *Walk) seek(after string) error {
	parts := strings.Split(after, "/")
	for i, name := range parts {
		if name == "" {
			return nil
		}
		l := &w.open[len(w.open)-1]
		at, found := slices.BinarySearch(l.names, name)
		if found {
			at++
		}
		if l.names = l.names[at:]; i == len(parts)-1 {
			return nil
		}
		if !found {
			return nil // removed since
		}
		info, err := l.root.Lstat(name)
		if err == nil && (!info.IsDir() || w.exclude != nil && w.exclude(l.path+name, true)) {
			return nil
		}
		if err == nil {
			err = w.enter(name, info)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Next returns the next entry, or io.EOF after the last one. Entries removed meanwhile and partial files are omitted. Once ctx is done,
// it returns the cause; there can be any number of excluded entries.
func (w *Walk) Next(ctx context.Context) (s Step, err error) {
	for len(w.open) > 0 {
		if ctx.Err() != nil {
			return Step{}, context.Cause(ctx)
		}
		l := &w.open[len(w.open)-1]
		if len(l.names) == 0 {
			w.leave()
			continue
		}
		name := l.names[0]
		l.names = l.names[1:]
		s.Depth = len(w.open) - 1
		info, err := l.root.Lstat(name)
		if err == nil && w.exclude != nil && w.exclude(l.path+name, info.IsDir()) {
			continue
		}
		if err == nil {
			s.Entry, err = Describe(l.root, name, info)
		}
		if err == nil && w.want != (Want{}) {
			err = s.Add(l.root, info, w.want)
		}
		if err == nil && info.IsDir() {
			err = w.enter(name, info)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			s = Step{}
			continue
		case err != nil:
			s.Name, s.Err = name, err
		}
		return s, nil
	}
	return s, io.EOF
}

// enter opens a directory of the innermost level.
func (w *Walk) enter(name string, info fs.FileInfo) error {
	if len(w.open) > MaxDepth {
		return fmt.Errorf("%w: more than %d nested directories", ErrTooMany, MaxDepth)
	}
	l := &w.open[len(w.open)-1]
	sub, err := openDir(l.root, name, info)
	if err != nil {
		return err
	}
	return w.push(l.path+name+"/", sub)
}

// openDir opens a directory whose FileInfo is known. It never follows a symbolic link: if the name now belongs to
// another file, the error wraps ErrChanged.
func openDir(root *os.Root, name string, info fs.FileInfo) (*os.Root, error) {
	sub, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if now, err := sub.Stat("."); err != nil || !os.SameFile(now, info) {
		return nil, errors.Join(fmt.Errorf("%s: %w: another file has its name", name, ErrChanged), sub.Close())
	}
	return sub, nil
}

// push reads an open directory and makes it the innermost one. It closes the directory if that fails.
func (w *Walk) push(path string, dir *os.Root) error {
	names, err := readNames(dir, ".", w.limit-w.names)
	if err != nil {
		return errors.Join(err, dir.Close())
	}
	w.names += len(names)
	w.open = append(w.open, level{path, dir, names, len(names)})
	return nil
}

// leave closes the innermost directory.
func (w *Walk) leave() {
	last := len(w.open) - 1
	w.names -= w.open[last].count
	_ = w.open[last].root.Close() // it was only read
	w.open[last] = level{}
	w.open = w.open[:last]
}

// Close closes all directories.
func (w *Walk) Close() {
	for len(w.open) > 0 {
		w.leave()
	}
}

// readNames returns the sorted names in directory dir below root without partial files, or ErrTooMany for more than
// limit.
func readNames(root *os.Root, dir string, limit int) (names []string, err error) {
	d, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	for err == nil {
		var some []string
		some, err = d.Readdirnames(1024)
		names = append(names, slices.DeleteFunc(some, isPartial)...)
		if len(names) > limit {
			err = fmt.Errorf("%s: %w: more than %d", dir, ErrTooMany, limit)
		}
	}
	if err = errors.Join(notEOF(err), d.Close()); err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// FileReader reads whole small files of a tree. Successive files in one directory share its handle.
type FileReader struct {
	root *os.Root
	// dir is the path of sub, the directory of the last file.
	dir string
	sub *os.Root
}

// NewFileReader returns a FileReader of files below root.
func NewFileReader(root *os.Root) *FileReader { return &FileReader{root: root} }

// Read reads the whole file name into b and returns its Digest. If the size differs from len(b),
// the modification time from want's, or the file changes meanwhile, the error wraps ErrChanged.
func (p *FileReader) Read(name string, want *Entry, b []byte) (digest uint32, err error) {
	if hasPartial(name) {
		return 0, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	dir, base := path.Split(name)
	if p.sub == nil || p.dir != dir {
		p.Close()
		if p.sub, err = p.root.OpenRoot(path.Clean("./" + dir)); err != nil {
			return 0, err
		}
		p.dir = dir
	}
	f, err := p.sub.OpenFile(base, os.O_RDONLY|openNoWait, 0)
	if err != nil {
		return 0, err
	}
	err = readWhole(f, want, b)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return Digest(b), err
}

// readWhole reads a file that must have the size and time of want. A file modified just now is read a moment later: its
// next modification then has another time.
func readWhole(f *os.File, want *Entry, b []byte) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w: want a regular file", want.Name, ErrKind)
	}
	changed := func() error { return fmt.Errorf("%s: %w", want.Name, ErrChanged) }
	if info.Size() != int64(len(b)) || !info.ModTime().Equal(want.ModTime) {
		return changed()
	}
	waitTimeTick(info)
	for n := 0; n < len(b); { // ReadFull would read past the end for EOF
		k, err := f.Read(b[n:])
		if n += k; errors.Is(err, io.EOF) {
			return changed()
		} else if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
	if now, err := f.Stat(); err != nil {
		return err
	} else if !sameVersion(now, info) {
		return changed()
	}
	return nil
}

// Close closes the directory of the last file.
func (p *FileReader) Close() {
	if p.sub != nil {
		_ = p.sub.Close() // it was only read
		p.sub = nil
	}
}
