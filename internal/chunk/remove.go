package chunk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// ExtraNames is a directory of a Tree with local names that the peer's tree lacks.
type ExtraNames struct {
	// Path is the path of the directory, "." for the top.
	Path string
	// Entry has the directory's final attributes.
	Entry Entry
	Names []string
}

// Names returns the sorted local names in a directory, at most limit, without temporary and partial files.
func (d *Dir) Names(limit int) ([]string, error) {
	if d.root == nil {
		return nil, nil
	}
	return readNames(d.root, ".", limit)
}

// Attributes returns the final attributes of the directory.
func (d *Dir) Attributes() Entry { return d.entry }

// Remove removes local entries and their contents, except paths for which keep returns true, and returns the number of
// removed entries. It never follows a symbolic link. In a dry run, it only counts. All directories must have been released. Once ctx is
// done, it removes no more and returns an error that wraps the cause.
func (t *Tree) Remove(ctx context.Context, x *ExtraNames, keep func(path string, dir bool) bool) (removed int64, err error) {
	root, err := t.openPath(x.Path)
	if err != nil {
		return 0, err
	}
	defer func() {
		if root != t.root {
			err = errors.Join(err, root.Close())
		}
	}()
	r := remover{keep: keep, dryRun: t.cfg.DryRun}
	prefix := ""
	if x.Path != "." {
		prefix = x.Path + "/"
	}
	if !r.dryRun {
		if err := makeDirWritable(root, &x.Entry); err != nil {
			return 0, err
		}
	}
	var errs []error
	for _, name := range x.Names {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		_, err := r.remove(ctx, root, name, prefix+name)
		errs = append(errs, err)
	}
	if !r.dryRun {
		errs = append(errs, t.restore(root, x.Path, &x.Entry))
	}
	return r.removed, errors.Join(errs...)
}

// restore sets the attributes of the directory at path after a change, and flushes it.
func (t *Tree) restore(dir *os.Root, path string, e *Entry) error {
	d := &Dir{}
	if path == "." {
		d = t.top
	}
	info, err := dir.Stat(".")
	if err == nil && info.Mode().Perm() != e.Mode.Perm() {
		err = dir.Chmod(".", e.Mode)
	}
	if err == nil {
		err = d.setTime(dir, e.ModTime)
	}
	if err != nil {
		return err
	}
	if t.cfg.Sync == SyncBatch {
		return syncDir(dir, ".")
	}
	return nil
}

// openPath opens a directory of the tree, without following symbolic links.
func (t *Tree) openPath(path string) (dir *os.Root, err error) {
	dir = t.root
	if dir == nil {
		return nil, fs.ErrNotExist // in a dry run
	}
	if path == "." {
		return dir, nil
	}
	for name := range strings.SplitSeq(path, "/") {
		next, err := OpenDir(dir, name)
		if dir != t.root {
			err = errors.Join(err, dir.Close())
		}
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// remover removes entries that keep does not protect.
type remover struct {
	keep    func(path string, dir bool) bool
	dryRun  bool
	removed int64
}

// remove removes an entry, and reports whether it or some of its contents are kept.
func (r *remover) remove(ctx context.Context, dir *os.Root, name, path string) (kept bool, err error) {
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return true, err
	case r.keep(path, info.IsDir()):
		return true, nil
	}
	if info.IsDir() {
		if kept, err = r.removeContents(ctx, dir, name, path, info); kept || err != nil {
			return true, err
		}
	}
	if !r.dryRun {
		if err := dir.Remove(name); err != nil {
			return true, err
		}
	}
	r.removed++
	return false, nil
}

// removeContents removes the contents of a directory. Each level keeps a directory open and peers choose the names, so
// the depth is limited.
func (r *remover) removeContents(ctx context.Context, dir *os.Root, name, path string, info fs.FileInfo) (kept bool, err error) {
	if strings.Count(path, "/") >= MaxDepth {
		return true, fmt.Errorf("%s: %w: more than %d nested directories", name, ErrTooMany, MaxDepth)
	}
	if !r.dryRun && info.Mode().Perm()&0o700 != 0o700 {
		if err := dir.Chmod(name, info.Mode()|0o700); err != nil {
			return true, err
		}
		defer func() {
			if kept || err != nil { // it is not removed
				err = errors.Join(err, dir.Chmod(name, info.Mode()))
			}
		}()
	}
	sub, err := openDir(dir, name, info)
	if err != nil {
		return true, err
	}
	d, err := sub.Open(".")
	if err != nil {
		return true, errors.Join(err, sub.Close())
	}
	names, err := d.Readdirnames(-1)
	errs := []error{err, d.Close()}
	for _, name := range names {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		k, err := r.remove(ctx, sub, name, path+"/"+name)
		kept = kept || k
		errs = append(errs, err)
	}
	return kept, errors.Join(append(errs, sub.Close())...)
}
