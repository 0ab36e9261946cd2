package chunk

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// Entry is a file, directory or symbolic link in a tree.
type Entry struct {
	// Name is relative to the root of the tree and uses slashes. The tree itself is ".".
	Name string
	// Mode has the type and the permissions.
	Mode fs.FileMode
	// Size is the length of a file in bytes.
	Size    int64
	ModTime time.Time
	// Link is the target of a symbolic link. This package never follows it out of a root.
	Link string
}

// Check returns ErrName or ErrKind if an entry of a peer's tree is invalid.
func (e *Entry) Check() error {
	if e.Name != "." || !e.Mode.IsDir() {
		if err := checkName(e.Name); err != nil {
			return err
		}
	}
	switch e.Mode.Type() {
	case 0:
		if e.Size < 0 {
			return fmt.Errorf("%q: %w: the size is %d", e.Name, fs.ErrInvalid, e.Size)
		}
	case fs.ModeDir:
	case fs.ModeSymlink:
		if e.Link == "" || strings.ContainsRune(e.Link, 0) {
			return fmt.Errorf("%q: %w: a symbolic link to %q", e.Name, ErrName, e.Link)
		}
	default:
		return fmt.Errorf("%q: %w: %s", e.Name, ErrKind, e.Mode.Type())
	}
	return nil
}

func isPartial(base string) bool {
	return strings.HasPrefix(base, ".") && strings.HasSuffix(base, partialSuffix)
}

// hasPartial reports whether an element of name is the name of a partial file.
func hasPartial(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), isPartial)
}

// Listing is a snapshot of a directory.
type Listing struct {
	root *os.Root
	dir  string
	// names is sorted.
	names []string
}

// Special reports whether m is the mode of a special file: not a regular file, a directory or a
// symbolic link. Special files, such as FIFOs, sockets and devices, are listed but not transferred.
func Special(m fs.FileMode) bool { return m.Type()&^(fs.ModeDir|fs.ModeSymlink) != 0 }

// List reads directory dir below root. It omits partial files. It returns ErrTooMany for more than
// limit names.
func List(root *os.Root, dir string, limit int) (*Listing, error) {
	d, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	l := &Listing{root: root, dir: dir}
	if err = errors.Join(l.read(d, limit), d.Close()); err != nil {
		return nil, err
	}
	slices.Sort(l.names)
	return l, nil
}

// read reads the names of a directory.
func (l *Listing) read(d *os.File, limit int) error {
	for {
		some, err := d.ReadDir(1024)
		for _, e := range some {
			if !isPartial(e.Name()) {
				l.names = append(l.names, e.Name())
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(l.names) > limit:
			return fmt.Errorf("%s: %w: more than %d", l.dir, ErrTooMany, limit)
		}
	}
}

// Len is the number of names.
func (l *Listing) Len() int { return len(l.names) }

// After returns up to limit entries with names greater than after, sorted by name. Their Names do
// not include the directory. Entries removed meanwhile are omitted.
func (l *Listing) After(after string, limit int) ([]Entry, error) {
	from, found := slices.BinarySearch(l.names, after)
	if found {
		from++
	}
	var list []Entry
	for _, name := range l.names[from:] {
		if len(list) == limit {
			break
		}
		full := path.Join(l.dir, name)
		info, err := l.root.Lstat(full)
		var e Entry
		if err == nil {
			e, err = Describe(l.root, full, info)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			list = append(list, e)
		}
	}
	return list, nil
}

// Describe returns the entry of a file. Its Name does not include the directory.
func Describe(root *os.Root, name string, info fs.FileInfo) (e Entry, err error) {
	e = Entry{Name: path.Base(name), Mode: info.Mode() & (fs.ModeType | fs.ModePerm), ModTime: info.ModTime()}
	switch e.Mode.Type() {
	case 0:
		e.Size = info.Size()
	case fs.ModeSymlink:
		e.Link, err = root.Readlink(name)
	default:
	}
	return e, err
}

// Make creates the directory or symbolic link of an entry below root, and its parent directories. A
// directory stays writable until Finish. A symbolic link atomically replaces an existing one. An
// existing file of another type is ErrKind. For a file, Make only creates the parent directories.
func Make(root *os.Root, e *Entry) error {
	if err := e.Check(); err != nil {
		return err
	}
	if up := path.Dir(e.Name); up != "." {
		if err := root.MkdirAll(up, 0o700); err != nil {
			return err
		}
	}
	switch e.Mode.Type() {
	case fs.ModeDir:
		return makeDir(root, e)
	case fs.ModeSymlink:
		return makeLink(root, e)
	default:
		return nil
	}
}

func makeDir(root *os.Root, e *Entry) error {
	if e.Name == "." {
		return nil
	}
	err := root.Mkdir(e.Name, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(e.Name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: %w: it is not a directory", e.Name, ErrKind)
	}
	return root.Chmod(e.Name, info.Mode().Perm()|0o700)
}

func makeLink(root *os.Root, e *Entry) error {
	info, err := root.Lstat(e.Name)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSymlink:
		return fmt.Errorf("%s: %w: it is not a symbolic link", e.Name, ErrKind)
	case err == nil:
		if old, err := root.Readlink(e.Name); err == nil && old == e.Link {
			return nil
		}
	}
	dir, base := path.Split(e.Name)
	temporary := fmt.Sprintf("%s.%.200s.%08x%s", dir, base, rand.Uint32(), partialSuffix)
	if err := root.Symlink(e.Link, temporary); err != nil {
		return err
	}
	if err := root.Rename(temporary, e.Name); err != nil {
		return errors.Join(err, root.Remove(temporary))
	}
	return nil
}

// Finish sets the permissions and times of directories, once their contents are complete. With
// SyncDir, the names of directories and symbolic links are on disk when it returns. Commit has
// already synced file names.
func Finish(root *os.Root, dirs []Entry, sync Sync) error {
	if sync == SyncDir {
		if err := syncDir(root, "."); err != nil {
			return err
		}
		for _, d := range dirs {
			if err := syncDir(root, d.Name); err != nil {
				return err
			}
		}
	}
	deepest := slices.SortedFunc(slices.Values(dirs), func(a, b Entry) int {
		return cmp.Compare(strings.Count(b.Name, "/"), strings.Count(a.Name, "/"))
	})
	for _, d := range deepest {
		if d.Name == "." {
			continue // the user's own directory
		}
		if err := root.Chmod(d.Name, d.Mode.Perm()); err != nil {
			return err
		}
		if err := root.Chtimes(d.Name, time.Time{}, d.ModTime); err != nil {
			return err
		}
	}
	return nil
}
