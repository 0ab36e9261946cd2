package chunk

import (
	"errors"
	"fmt"
	"io/fs"
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
	// Same is equal for all names of a file with several hard links. Zero means that the file has
	// one name.
	Same Identity
	// Sparse is set if a file may have holes.
	Sparse bool
	// Owner is nil, and Xattrs is nil, unless they are to be copied. Xattrs is sorted by name.
	Owner  *Owner
	Xattrs []Xattr
}

// Identity identifies a file on one host.
type Identity struct{ Device, Inode uint64 }

// Owner is the owner of a file.
type Owner struct{ UID, GID uint32 }

// Xattr is an extended attribute of a file or directory. Its Name begins with XattrPrefix.
type Xattr struct{ Name, Value string }

// XattrPrefix begins the names of all copied extended attributes. Others belong to the system.
const XattrPrefix = "user."

// MaxXattrs is the total size of a file's extended attributes in bytes.
const MaxXattrs = 32 << 10

// Want selects the attributes of entries to copy in addition to permissions and times.
type Want struct{ Owner, Xattrs bool }

// Check validates an entry of a peer's tree. Its errors wrap ErrName, ErrKind or fs.ErrInvalid.
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
	for _, x := range e.Xattrs {
		if !strings.HasPrefix(x.Name, XattrPrefix) || strings.ContainsRune(x.Name, 0) {
			return fmt.Errorf("%q: %w: an extended attribute %q", e.Name, ErrName, x.Name)
		}
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
	names, err := readNames(root, dir, limit)
	if err != nil {
		return nil, err
	}
	return &Listing{root, dir, names}, nil
}

// Len returns the number of names.
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
		e.Size, e.Same, e.Sparse = info.Size(), identity(info), isSparse(info)
	case fs.ModeSymlink:
		e.Link, err = root.Readlink(name)
	default:
	}
	return e, err
}

// Add adds the attributes selected by want to the entry of a file in directory root. info describes that file.
func (e *Entry) Add(root *os.Root, info fs.FileInfo, want Want) (err error) {
	if want.Owner {
		e.Owner = ownerOf(info)
	}
	if want.Xattrs {
		e.Xattrs, err = readXattrs(root, e.Name, info)
	}
	return err
}

// MakeDir creates directory name below root and its parents, private to this user, unless they exist. It never follows a
// symbolic link out of root.
func MakeDir(root *os.Root, name string) error {
	if name == "." {
		return nil
	}
	if err := checkName(name); err != nil {
		return err
	}
	return root.MkdirAll(name, 0o700)
}

// OpenDir opens directory name below root, and fails with ErrKind if it is a symbolic link.
func OpenDir(root *os.Root, name string) (*os.Root, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s: %w: it is not a directory", name, ErrKind)
	}
	return openDir(root, name, info)
}

// SyncParents flushes the directories above name to disk, up to root.
func SyncParents(root *os.Root, name string) error {
	for name != "." {
		name = path.Dir(name)
		if err := syncDir(root, name); err != nil {
			return err
		}
	}
	return nil
}
