package chunk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"time"
)

// noTime leaves a time unchanged.
var noTime time.Time

// Dir is a directory of a Tree. It stays open while its contents are received: see Hold and Release. Its methods may be
// called concurrently for different names.
type Dir struct {
	tree   *Tree
	parent *Dir
	// root is nil if the directory does not exist, in a dry run.
	root *os.Root
	// entry has the final attributes.
	entry Entry
	// info is the initial state of an existing directory, nil for a new one.
	info fs.FileInfo
	// users counts the subdirectories and files being received, and the traversal.
	users atomic.Int64
	// keepsMode is set for a top directory that keeps its mode. It may belong to another user, and then keeps its own time.
	keepsMode bool
	// changed is set before the first name is created, replaced or removed. modeChanged is set if that required
	// another mode.
	changed, modeChanged atomic.Bool
}

// Top returns the top directory. With mode set, it gets the permissions of e.
func (t *Tree) Top(e Entry, mode bool) (*Dir, error) {
	if t.root == nil {
		t.top = &Dir{tree: t, entry: e}
		t.top.users.Store(1)
		return t.top, nil
	}
	info, err := t.root.Stat(".")
	if err != nil {
		return nil, err
	}
	if e.Name = "."; !mode {
		e.Mode = info.Mode()
	}
	d := &Dir{tree: t, root: t.root, entry: e, info: info, keepsMode: !mode}
	d.users.Store(1)
	t.top = d
	return d, t.removeStale(t.root)
}

// NewDir returns a directory for Compare only: root is not locked, and Targets receive the files in it. Of cfg, only
// DryRun is used.
func NewDir(root *os.Root, cfg TreeConfig) *Dir { return &Dir{tree: newTree(root, cfg), root: root} }

// Enter returns a subdirectory and creates it if it is missing. It never follows a symbolic link.
func (d *Dir) Enter(e *Entry) (*Dir, error) {
	if err := e.Check(); err != nil {
		return nil, err
	}
	sub := &Dir{tree: d.tree, parent: d, entry: *e}
	if err := sub.open(); err != nil {
		return nil, err
	}
	sub.users.Store(1)
	d.Hold()
	return sub, nil
}

func (d *Dir) open() (err error) {
	up, name := d.parent, d.entry.Name
	if up.root == nil {
		return nil
	}
	d.info, err = up.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && d.tree.cfg.DryRun:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return d.create()
	case err != nil:
		return err
	case !d.info.IsDir():
		return fmt.Errorf("%s: %w: it is not a directory", name, ErrKind)
	}
	if d.info.Mode().Perm()&0o500 != 0o500 && !d.tree.cfg.DryRun {
		d.modeChanged.Store(true)
		if err := up.root.Chmod(name, d.info.Mode()|0o700); err != nil {
			return err
		}
	}
	if d.root, err = openDir(up.root, name, d.info); err == nil {
		err = d.tree.removeStale(d.root)
	}
	if err != nil {
		err = errors.Join(err, d.abandon())
	}
	return err
}

// abandon undoes open after an error.
func (d *Dir) abandon() (err error) {
	if d.modeChanged.Load() {
		err = d.parent.root.Chmod(d.entry.Name, d.info.Mode())
	}
	if d.root != nil {
		err = errors.Join(err, d.root.Close())
	}
	return err
}

// create creates the directory. It stays private to this user until it is complete.
func (d *Dir) create() error {
	up, name := d.parent, d.entry.Name
	if err := up.prepareChange(); err != nil {
		return err
	}
	if err := up.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	info, err := up.root.Lstat(name)
	if err != nil {
		return err
	}
	d.changed.Store(true)
	d.root, err = openDir(up.root, name, info)
	return err
}

// prepareChange makes the directory writable.
func (d *Dir) prepareChange() error {
	if d.changed.Load() {
		return nil
	}
	if err := d.tree.createLock(); err != nil {
		return err
	}
	if err := d.makeWritable(); err != nil {
		return err
	}
	d.changed.Store(true)
	return nil
}

// makeWritable changes the mode of an existing directory so that this user can write to it.
func (d *Dir) makeWritable() error {
	if d.info == nil || d.info.Mode().Perm()&0o700 == 0o700 {
		return nil
	}
	d.modeChanged.Store(true)
	return d.root.Chmod(".", d.info.Mode()|0o700)
}

// Root returns the directory, for a Target in it, and makes it writable.
func (d *Dir) Root() (*os.Root, error) { return d.root, d.prepareChange() }

// Hold keeps the directory open until another Release.
func (d *Dir) Hold() { d.users.Add(1) }

// Release ends one use of the directory. The last one sets its attributes, flushes it to disk if needed, and closes it.
// Tree.Close does that for the top directory.
func (d *Dir) Release() error {
	var errs []error
	for ; d.users.Add(-1) == 0 && d.parent != nil; d = d.parent {
		if d.root == nil {
			continue
		}
		if err := d.finish(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.path(), err))
		}
		errs = append(errs, d.root.Close())
	}
	return errors.Join(errs...)
}

// path returns the path in the tree.
func (d *Dir) path() string {
	if d.parent == nil {
		return d.entry.Name
	}
	return path.Join(d.parent.path(), d.entry.Name)
}

// finish sets the attributes of a complete directory and flushes it.
func (d *Dir) finish() error {
	t := d.tree
	if t.cfg.DryRun {
		return nil
	}
	changed := d.changed.Load()
	if d.keepsMode && t.cfg.KeepTop {
		return d.finishKept(changed)
	}
	if err := d.setAttributes(); err != nil {
		return errors.Join(err, d.restoreMode())
	}
	if d.info == nil || d.modeChanged.Load() || d.info.Mode().Perm() != d.entry.Mode.Perm() {
		if err := d.root.Chmod(".", d.entry.Mode); err != nil {
			return err
		}
	}
	if changed || !d.info.ModTime().Equal(d.entry.ModTime) {
		if err := d.setTime(d.root, d.entry.ModTime); err != nil {
			return err
		}
	}
	if t.cfg.Sync == SyncBatch && (changed || len(t.stale) > 0) {
		return syncDir(d.root, ".")
	}
	return nil
}

// finishKept is finish for a top directory that keeps its attributes.
func (d *Dir) finishKept(changed bool) error {
	if err := d.restoreMode(); err != nil {
		return err
	}
	if changed && d.tree.cfg.Sync == SyncBatch {
		return syncDir(d.root, ".")
	}
	return nil
}

// restoreMode undoes the changes of the mode by open and makeWritable.
func (d *Dir) restoreMode() error {
	if !d.modeChanged.Load() {
		return nil
	}
	return d.root.Chmod(".", d.info.Mode())
}

// setAttributes sets the owner and the extended attributes.
func (d *Dir) setAttributes() error {
	e := d.entry
	if e.Owner == nil && e.Xattrs == nil || d.keepsMode {
		return nil
	}
	e.Name = "."
	info, err := d.root.Stat(".")
	if err != nil {
		return err
	}
	if err := chown(d.root, &e, info); err != nil {
		return err
	}
	return updateXattrs(d.root, &e, info)
}

// setTime sets the modification time of the directory, open as root.
func (d *Dir) setTime(root *os.Root, modified time.Time) error {
	if d.keepsMode && d.tree.cfg.KeepTop {
		return nil
	}
	err := root.Chtimes(".", noTime, modified)
	if d.keepsMode && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// Link creates or replaces the symbolic link of an entry atomically.
func (d *Dir) Link(e *Entry) error {
	if err := d.prepareChange(); err != nil {
		return err
	}
	temporary := d.tree.temporary()
	if err := d.root.Symlink(e.Link, temporary); err != nil {
		return err
	}
	err := d.setLinkTime(temporary, e.ModTime)
	if err == nil && e.Owner != nil {
		err = d.root.Lchown(temporary, int(e.Owner.UID), int(e.Owner.GID))
	}
	if err == nil {
		err = d.root.Rename(temporary, e.Name)
	}
	if err != nil {
		err = errors.Join(err, d.root.Remove(temporary))
	}
	return err
}

// updateLink sets the modification time of an existing symbolic link.
func (d *Dir) updateLink(e *Entry, info fs.FileInfo) error {
	if d.tree.cfg.DryRun {
		return nil
	}
	if err := chown(d.root, e, info); err != nil || info.ModTime().Equal(e.ModTime) {
		return err
	}
	return d.setLinkTime(e.Name, e.ModTime)
}

// setLinkTime sets the modification time of a symbolic link. It does nothing on systems other than Linux.
func (d *Dir) setLinkTime(name string, modified time.Time) error {
	f, err := d.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(linkTime(f, name, modified), f.Close())
}

// Small is a small file of a Tree, complete under a temporary name.
type Small struct {
	dir             *Dir
	name, temporary string
	// file is nil if it need not be flushed.
	file *os.File
}

// Write writes a small file completely, under a temporary name. The digest is computed after the write, so it detects a
// peer that changes b meanwhile: the error then wraps ErrDigest.
func (d *Dir) Write(e *Entry, b []byte, digest uint32) (*Small, error) {
	if err := d.prepareChange(); err != nil {
		return nil, err
	}
	s := &Small{dir: d, name: e.Name, temporary: d.tree.temporary()}
	d.tree.creating.Lock()
	f, err := d.root.OpenFile(s.temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	d.tree.creating.Unlock()
	if err != nil {
		return nil, err
	}
	s.file = f
	if err = writeSmall(f, e, b); err == nil {
		err = f.Chmod(e.Mode.Perm())
	}
	if err == nil {
		err = d.root.Chtimes(s.temporary, noTime, e.ModTime)
	}
	if got := Digest(b); err == nil && got != digest {
		err = wrongDigest(e.Name, 0, got, digest)
	}
	if err == nil && d.tree.cfg.Sync == SyncNever {
		s.file = nil
		err = f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, s.Discard())
	}
	return s, nil
}

// writeSmall writes the contents and the attributes of a new file.
func writeSmall(f *os.File, e *Entry, b []byte) (err error) {
	if e.Sparse {
		err = writeSparse(f, b, 0)
		if err == nil {
			err = f.Truncate(int64(len(b)))
		}
	} else {
		_, err = f.Write(b)
	}
	if err == nil && len(e.Xattrs) > 0 {
		err = setXattrs(f, e.Xattrs)
	}
	if err == nil && e.Owner != nil {
		err = f.Chown(int(e.Owner.UID), int(e.Owner.GID))
	}
	return err
}

// sparseBlock is the size of the smallest hole.
const sparseBlock = 4096

// writeSparse writes b at off of a file that has a hole there, without its blocks of zeros.
func writeSparse(f *os.File, b []byte, off int64) error {
	for at := 0; at < len(b); {
		end := min(at+sparseBlock, len(b))
		zero := Zero(b[at:end])
		for end < len(b) && Zero(b[end:min(end+sparseBlock, len(b))]) == zero {
			end = min(end+sparseBlock, len(b))
		}
		if !zero {
			if _, err := f.WriteAt(b[at:end], off+int64(at)); err != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// Flush writes the contents to disk, if the Tree's Sync requires it.
func (s *Small) Flush() error {
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return errors.Join(f.Sync(), f.Close())
}

// Commit gives the file its final name. Call Flush first.
func (s *Small) Commit() error {
	if err := s.dir.root.Rename(s.temporary, s.name); err != nil {
		return errors.Join(err, s.Discard())
	}
	return nil
}

// Discard removes the file.
func (s *Small) Discard() error {
	var err error
	if s.file != nil {
		err = s.file.Close()
	}
	return errors.Join(s.dir.root.Remove(s.temporary), err)
}

// notEOF returns nil for io.EOF.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
