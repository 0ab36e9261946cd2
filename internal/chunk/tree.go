package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
)

// Tree is a directory tree being received. Its files are written under temporary names, which have the random id of the
// Tree. A lock at the top of the tree, held while there may be such files, shows the next Tree whether a killed process has
// left any.
type Tree struct {
	root *os.Root
	cfg  TreeConfig
	// id is the prefix of temporary file names, fixed once lock is set. stale holds the prefixes of killed processes.
	id    string
	stale []staleRun
	// owner returns the owner of files that this process creates below root.
	owner func() (uint32, error)

	// creating is held while a small file is created. Concurrent creators in one directory compete for the same inodes: on
	// ext4 without a journal, after the removal of a tree of 10,000 files, two take twice as long as one.
	creating sync.Mutex

	mu sync.Mutex
	// top is the top directory, nil until Top.
	top *Dir
	// lock is the locked file of this Tree, nil until something is written.
	lock *os.File
}

// TreeConfig configures a Tree.
type TreeConfig struct {
	// Sync selects the durability of files and directories.
	Sync Sync
	// DryRun leaves everything as it is.
	DryRun bool
	// KeepTop leaves the attributes of an existing top directory.
	KeepTop bool
}

// trusted reports whether a local file belongs to the owner in e, or to the user of this process.
func (t *Tree) trusted(e *Entry, info fs.FileInfo) bool {
	if o := ownerOf(info); e.Owner != nil && o != nil && o.UID == e.Owner.UID {
		return true
	}
	return checkOwner(info, t.owner) == nil
}

// staleRun is the lock file of a killed process, now locked by this one.
type staleRun struct {
	id   string
	file *os.File
}

// lockSuffix is the suffix of a Tree's lock file; temporary files never have it.
const lockSuffix = "-tree" + partialSuffix

// NewTree starts receiving a tree in the directory root. The caller closes root after the Tree. In a dry run, a nil root is
// a directory that does not exist.
func NewTree(root *os.Root, cfg TreeConfig) (*Tree, error) {
	t := newTree(root, cfg)
	if !cfg.DryRun {
		if err := t.findStale(); err != nil {
			return nil, errors.Join(err, t.Close(false))
		}
	}
	return t, nil
}

func newTree(root *os.Root, cfg TreeConfig) *Tree {
	owner := sync.OnceValues(func() (uint32, error) { return probeOwner(root, ".") })
	return &Tree{root: root, cfg: cfg, id: treeID(), owner: owner}
}

func treeID() string { return fmt.Sprintf(".%016x", rand.Uint64()) }

// findStale locks the lock files of killed processes.
func (t *Tree) findStale() error {
	names, err := partialNames(t.root)
	if err != nil {
		return err
	}
	for _, name := range names {
		id, ok := strings.CutSuffix(name, lockSuffix)
		if !ok || len(id) != len(t.id) {
			continue
		}
		f, err := t.root.OpenFile(name, os.O_RDWR|openNoWait, 0)
		if err != nil {
			continue // it has just been removed, or belongs to another user
		}
		if tryLock(f) {
			t.stale = append(t.stale, staleRun{id, f})
		} else if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// createLock creates the lock file, before the first temporary file.
func (t *Tree) createLock() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lock != nil {
		return nil
	}
	if err := t.top.makeWritable(); err != nil {
		return err
	}
	for t.lock == nil {
		f, err := t.root.OpenFile(t.id+lockSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err = lock(f); err == nil {
			t.lock = f
		} else if closed := errors.Join(t.removeLock(t.id), f.Close()); closed != nil || !errors.Is(err, errLocked) {
			return errors.Join(err, closed)
		} else {
			t.id = treeID() // another Tree mistook the file for a killed process's, and locked it
		}
	}
	t.top.changed.Store(true) // by the lock file
	return nil
}

// Close removes the lock files and completes the top directory, after all directories have been released. complete is set
// if every directory was visited, so that no temporary file of a killed process is left.
func (t *Tree) Close(complete bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	if t.lock != nil {
		errs = append(errs, t.removeLock(t.id), t.lock.Close())
	}
	for _, s := range t.stale {
		if complete {
			t.top.changed.Store(true)
			errs = append(errs, t.top.makeWritable())
			errs = append(errs, t.removeLock(s.id))
		}
		errs = append(errs, s.file.Close())
	}
	if t.top != nil {
		errs = append(errs, t.top.finish())
	}
	t.lock, t.stale, t.top = nil, nil, nil
	return errors.Join(errs...)
}

// removeLock removes a lock file. Another Tree that considers it stale may have removed it already.
func (t *Tree) removeLock(id string) error {
	err := t.root.Remove(id + lockSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeStale removes the temporary files of killed processes from a directory.
func (t *Tree) removeStale(dir *os.Root) error {
	if len(t.stale) == 0 {
		return nil
	}
	names, err := partialNames(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		for _, s := range t.stale {
			if strings.HasPrefix(name, s.id+".") {
				_ = dir.Remove(name) // at worst it stays
			}
		}
	}
	return nil
}

// temporary returns a random name for a temporary file.
func (t *Tree) temporary() string {
	return fmt.Sprintf("%s.%016x%s", t.id, rand.Uint64(), partialSuffix)
}

// partialNames returns the names of temporary and partial files in a directory.
func partialNames(dir *os.Root) (names []string, err error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	for {
		some, err := d.Readdirnames(1024)
		for _, name := range some {
			if isPartial(name) {
				names = append(names, name)
			}
		}
		if len(some) == 0 {
			return names, errors.Join(notEOF(err), d.Close())
		}
	}
}

// Relation is the relation of a local file to a peer's file of the same name.
type Relation uint8

// Relations.
const (
	// Missing means that no local file exists.
	Missing Relation = iota
	// Differs means that the contents differ.
	Differs
	// SameSize means that the contents may be equal.
	SameSize
	// Equal means that the contents are equal, judging from size and modification time.
	Equal
)

// Compare compares a local file or symbolic link with an entry of the peer, without opening it. trust accepts a
// modification time. The error wraps ErrKind if the local file is of another type.
func (d *Dir) Compare(e *Entry, trust bool) (Relation, error) {
	if err := e.Check(); err != nil {
		return Missing, err
	}
	if d.root == nil {
		return Missing, nil // not created, for a dry run
	}
	info, err := d.root.Lstat(e.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Missing, nil
	case err != nil:
		return Missing, err
	case info.Mode().Type() != e.Mode.Type():
		return Missing, fmt.Errorf("%s: %w: the name is in use: %s", e.Name, ErrKind, kindName(info.Mode()))
	case e.Mode.Type() == fs.ModeSymlink:
		if link, err := d.root.Readlink(e.Name); err != nil || link != e.Link {
			return Differs, err
		}
		return Equal, d.updateLink(e, info)
	case info.Size() != e.Size:
		return Differs, nil
	case !trust || !info.ModTime().Equal(e.ModTime) || !d.tree.trusted(e, info):
		return SameSize, nil
	}
	return Equal, d.updateAttributes(e, info)
}

// kindName names the type of a file.
func kindName(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a regular file"
	case m.IsDir():
		return "a directory"
	case m.Type() == fs.ModeSymlink:
		return "a symbolic link"
	}
	return m.Type().String()
}

// updateAttributes sets the attributes of an existing file that differ.
func (d *Dir) updateAttributes(e *Entry, info fs.FileInfo) error {
	if d.tree.cfg.DryRun {
		return nil
	}
	if err := chown(d.root, e, info); err != nil {
		return err
	}
	if err := updateXattrs(d.root, e, info); err != nil {
		return err
	}
	if info.Mode().Perm() != e.Mode.Perm() {
		if err := d.root.Chmod(e.Name, e.Mode.Perm()); err != nil {
			return err
		}
	}
	if !info.ModTime().Equal(e.ModTime) {
		return d.root.Chtimes(e.Name, noTime, e.ModTime)
	}
	return nil
}

// Fingerprint reads the local file for an entry completely, into b, and returns its Fingerprint, and its state for Keep. The
// state is nil if the file cannot be reused, for example because others can write to it.
func (d *Dir) Fingerprint(e *Entry, b []byte) (f Fingerprint, state fs.FileInfo) {
	file, err := d.root.OpenFile(e.Name, os.O_RDONLY|openNoWait, 0)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != e.Size {
		return 0, nil
	}
	if err := checkPrivate(info, d.tree.owner); err != nil {
		return 0, nil
	}
	b = b[:e.Size]
	if err := readWhole(file, &Entry{Name: e.Name, ModTime: info.ModTime()}, b); err != nil {
		return 0, nil
	}
	return FingerprintOf(b, Digest(b)), info
}

// Keep keeps the local file for an entry and sets its attributes. state is from Fingerprint, whose result is known to be
// equal. The error wraps ErrChanged if the file has changed since.
func (d *Dir) Keep(e *Entry, state fs.FileInfo) error {
	info, err := d.root.Lstat(e.Name)
	if err != nil {
		return err
	}
	if !os.SameFile(info, state) || !sameVersion(info, state) {
		return fmt.Errorf("%s: %w while it was compared", e.Name, ErrChanged)
	}
	return d.updateAttributes(e, info)
}
