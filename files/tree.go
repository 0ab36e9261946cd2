package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"ibverbx/internal/chunk"
	"ibverbx/internal/printable"
)

// Limits of a tree.
const (
	maxTree      = 1 << 20   // entries
	maxTreeNames = 256 << 20 // total size of names in bytes
	maxDepth     = 128       // nested directories
	maxTrees     = 4         // received concurrently from one peer
)

// treeTo receives a directory to a local path.
func (l *pull) treeTo(ctx context.Context, name, dest string) error {
	if dest == "" {
		dest = path.Base(name)
	}
	holders := newHolders(dest)
	if err := os.MkdirAll(dest, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dest)
	if err != nil {
		return err
	}
	err = errors.Join(l.tree(ctx, name, root), root.Close())
	for i := 0; err == nil && l.cfg.Sync == SyncDir && i < len(holders); i++ {
		err = syncDir(holders[i])
	}
	return err
}

// newHolders returns the directories that gain an entry when dir and its parents are created; empty if dir exists.
func newHolders(dir string) (holders []string) {
	for dir = filepath.Clean(dir); ; {
		if _, err := os.Lstat(dir); err == nil || dir == filepath.Dir(dir) {
			return holders
		}
		dir = filepath.Dir(dir)
		holders = append(holders, dir)
	}
}

// syncDir flushes a directory.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// tree receives a directory. Special files, and entries that cannot be received, are skipped.
func (l *pull) tree(ctx context.Context, name string, root *os.Root) error {
	if err := l.peer.trees.Take(ctx); err != nil {
		return err
	}
	defer func() { <-l.peer.trees }()
	entries, err := l.walk(ctx, name, ".", 0, nil)
	if err != nil {
		return printable.Error(err)
	}
	if err := l.staged(ctx, stageSlots); err != nil {
		return err
	}
	if err := errors.Join(l.receive(ctx, name, root, entries), l.stage.close()); err != nil {
		return printable.Error(err) // the peer chooses names
	}
	return l.omitted()
}

// walk returns all entries of a remote directory tree. Directories precede their contents.
func (l *pull) walk(ctx context.Context, name, dir string, depth int, all []chunk.Entry) ([]chunk.Entry, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: %w: more than %d directories in each other", dir, ErrTooLong, maxDepth)
	}
	list, err := l.peer.entries(ctx, path.Join(name, dir), &l.room)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		e.Name = path.Join(dir, e.Name)
		if e.access != 0 {
			return nil, fmt.Errorf("%s: %w: it was a directory", dir, ErrChanged)
		}
		if chunk.Special(e.Mode) {
			l.counts.skipped.add(e.Name)
			continue
		}
		if err := e.Check(); err != nil {
			l.left.add(err)
			continue
		}
		all = append(all, e.Entry)
		l.counts.total.Add(e.Size)
		if e.Mode.IsDir() {
			if all, err = l.walk(ctx, name, e.Name, depth+1, all); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// receive creates directories and links, and receives files concurrently.
func (l *pull) receive(ctx context.Context, name string, root *os.Root, entries []chunk.Entry) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parallel := l.cfg.Parallel
	if parallel <= 0 {
		parallel = defaultParallel
	}
	places := make(chan struct{}, parallel)
	var work sync.WaitGroup
	var dirs []chunk.Entry
	for i := range entries {
		e := &entries[i]
		if err := chunk.Make(root, e); err != nil {
			cancel(err)
			break
		}
		if e.Mode.IsDir() {
			dirs = append(dirs, *e)
		}
		if !e.Mode.IsRegular() {
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			if err := l.one(ctx, path.Join(name, e.Name), root, e); err != nil {
				if err = fmt.Errorf("%s: %w", e.Name, err); !omits(err) || ctx.Err() != nil {
					cancel(err)
				}
				l.left.add(err)
			}
			<-places
		})
	}
	work.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return chunk.Finish(root, dirs, chunk.Sync(l.cfg.Sync))
}

// maxNamed bounds the list of skipped entries of a tree. There can be a million.
const maxNamed = 8

// omissions counts the skipped entries of a tree, and keeps the first ones: their errors, or their names.
type omissions[T any] struct {
	mu    sync.Mutex
	count int64
	first []T
}

// add records a skipped entry.
func (o *omissions[T]) add(v T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count++; len(o.first) < maxNamed {
		o.first = append(o.first, v)
	}
}

// get returns the number of skipped entries, and the first ones.
func (o *omissions[T]) get() (count int64, first []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count, slices.Clone(o.first)
}

// omitted returns nil if all entries were received.
func (l *pull) omitted() error {
	count, first := l.left.get()
	if count == 0 {
		return nil
	}
	for i := range first {
		first[i] = printable.Error(first[i])
	}
	return fmt.Errorf("%d left out, the rest is there: %w", count, errors.Join(first...))
}

// omits reports whether an error concerns only one file of the tree.
func omits(err error) bool {
	for _, cause := range []error{ErrNotFound, ErrDenied, ErrChanged, ErrDigest, ErrTooLong, chunk.ErrDigest, chunk.ErrKind, chunk.ErrName, chunk.ErrBusy, chunk.ErrForeign} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return false
}

// one receives a file of a tree.
func (l *pull) one(ctx context.Context, name string, root *os.Root, e *chunk.Entry) error {
	from, err := l.open(ctx, name)
	if err != nil {
		return err
	}
	if from.entry.Mode.IsDir() {
		return fmt.Errorf("%w: it has become a directory", ErrChanged)
	}
	l.counts.total.Add(from.entry.Size - e.Size)
	return l.file(ctx, from, name, root, e.Name)
}
