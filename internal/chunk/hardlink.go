package chunk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// DirLinks is a directory of a Tree with further names of received files.
type DirLinks struct {
	// Path is the path of the directory, "." for the top.
	Path string
	// Entry has the directory's final attributes.
	Entry Entry
	Links []HardLink
}

// HardLink is an additional name of a file. Entry describes the file, and Target is the path of its
// first name.
type HardLink struct {
	Entry  Entry
	Target string
}

// Link creates hard links in a directory, and calls done for each: made is set unless the link exists. In a dry run, it changes
// nothing. All directories must have been released. It never follows a symbolic link out of the tree.
func (t *Tree) Link(x *DirLinks, done func(l *HardLink, made bool, err error)) error {
	root, err := t.openPath(x.Path)
	if errors.Is(err, fs.ErrNotExist) && t.cfg.DryRun {
		for i := range x.Links {
			done(&x.Links[i], true, nil)
		}
		return nil
	}
	if err != nil {
		return err
	}
	changed := false
	for i := range x.Links {
		l := &x.Links[i]
		made, err := t.link(root, x, l, &changed)
		done(l, made, err)
	}
	if changed {
		err = t.restore(root, x.Path, &x.Entry)
	}
	if root != t.root {
		err = errors.Join(err, root.Close())
	}
	return err
}

// link creates a hard link atomically. It sets changed before it changes the directory.
func (t *Tree) link(dir *os.Root, x *DirLinks, l *HardLink, changed *bool) (made bool, err error) {
	e := &l.Entry
	if err := e.Check(); err != nil {
		return false, err
	}
	first, err := t.root.Lstat(l.Target)
	if t.cfg.DryRun && errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	have, err := dir.Lstat(e.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case !have.Mode().IsRegular():
		return false, fmt.Errorf("%s: %w: the name is in use: %s", e.Name, ErrKind, kindName(have.Mode()))
	case os.SameFile(first, have):
		return false, nil
	}
	if t.cfg.DryRun {
		return true, nil
	}
	if !first.Mode().IsRegular() || first.Size() != e.Size || !first.ModTime().Equal(e.ModTime) {
		return false, fmt.Errorf("%w: the file has another version as %s", ErrChanged, l.Target)
	}
	if !*changed {
		if err := t.createLock(); err != nil {
			return false, err
		}
		if err := makeDirWritable(dir, &x.Entry); err != nil {
			return false, err
		}
		*changed = true
	}
	temporary := t.temporary()
	if err := t.root.Link(l.Target, path.Join(x.Path, temporary)); err != nil {
		return false, err
	}
	if err := dir.Rename(temporary, e.Name); err != nil {
		return false, errors.Join(err, dir.Remove(temporary))
	}
	return true, nil
}

// makeDirWritable makes a complete directory writable for this user, until restore.
func makeDirWritable(dir *os.Root, e *Entry) error {
	if e.Mode.Perm()&0o700 == 0o700 {
		return nil
	}
	return dir.Chmod(".", e.Mode|0o700)
}
