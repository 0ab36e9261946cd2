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

// Entry is a file, a directory or a symbolic link of a tree.
type Entry struct {
	// Name is relative to the root of the tree and has slashes. The tree itself is ".".
	Name string
	// Mode has the type and the permissions.
	Mode fs.FileMode
	// Size is the length of a file in bytes.
	Size    int64
	ModTime time.Time
	// Link is what a symbolic link points to. Nothing of this package follows it out of a root.
	Link string
}

// Check returns ErrName or ErrKind if the entry of a peer's tree cannot be made.
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

// hasPartial reports whether an element of a name is that of a partial file.
func hasPartial(name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), isPartial)
}

// Listing is what was in a directory when it was read.
type Listing struct {
	root *os.Root
	dir  string
	// names are in order.
	names []string
}

// List reads directory dir below root. It leaves out partial files, and everything that is not a file, a directory or a symbolic link. More than
// limit names are ErrTooMany.
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
			if !isPartial(e.Name()) && e.Type()&^(fs.ModeDir|fs.ModeSymlink) == 0 {
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

// After returns the entries whose names come after a name, in the order of names, at most limit of them. Their Names have no directory.
// Entries that have vanished are left out.
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
		case e.Mode.Type()&^(fs.ModeDir|fs.ModeSymlink) == 0:
			list = append(list, e)
		}
	}
	return list, nil
}

// Describe returns the entry of a file, whose Name has no directory.
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

// Make makes the directory or the symbolic link of an entry below root, and the directories that it is in. A directory can be
// written to until Finish. A symbolic link replaces another one at once. Anything else of another kind that has the name is
// ErrKind. For a file only the directories are made.
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

// Finish gives directories their permissions and times, when everything in them is there. With SyncDir the names of directories and symbolic
// links are on the disk when it returns. Commit has done so for those of files.
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
			continue // it is the user's
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
