package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/printable"
	"ibverbx/internal/rpc"
)

// Limits of a tree.
const (
	maxTree      = 1 << 24   // entries
	maxNames     = 1 << 20   // names in one directory
	maxTreeNames = 256 << 20 // total size of names in a directory, in bytes
	maxTrees     = 4         // received concurrently from one peer
	maxBatches   = 2         // of small files, per tree: one is stored while the next is sent; bounds the loss by a kill
)

// treeTo receives a directory to a local path.
func (l *download) treeTo(ctx context.Context, from chunk.Entry, name, dest string) error {
	if dest == "" {
		dest = path.Base(name)
	}
	if l.cfg.DryRun {
		return l.dryTree(ctx, name, from, func() (*os.Root, error) { return os.OpenRoot(dest) })
	}
	holders := newParents(dest)
	if err := os.MkdirAll(dest, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dest)
	if err != nil {
		return err
	}
	err = errors.Join(l.tree(ctx, name, root, from, len(holders) > 0), root.Close())
	for i := 0; err == nil && l.cfg.Sync == SyncBatch && i < len(holders); i++ {
		err = syncDir(holders[i])
	}
	return err
}

// dryTree compares a directory with a local one, which may be missing.
func (l *download) dryTree(ctx context.Context, name string, top chunk.Entry, open func() (*os.Root, error)) error {
	root, err := open()
	if errors.Is(err, fs.ErrNotExist) {
		return l.tree(ctx, name, nil, top, false)
	}
	if err != nil {
		return err
	}
	return errors.Join(l.tree(ctx, name, root, top, false), root.Close())
}

// newParents returns the directories that gain an entry when dir and its parents are created; empty if dir exists.
func newParents(dir string) (holders []string) {
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

// treeDownload receives a directory tree. One goroutine requests the listing, page by page. run compares each entry with the local file, so
// memory holds only the open directories, two pages and the files in flight.
type treeDownload struct {
	*download
	// name is the remote name.
	name string
	tree *chunk.Tree
	// dirs are the open directories, from the top.
	dirs []openedDir
	// extra are local names that the peer's tree lacks, for TransferConfig.Delete. unlisted is set if some of that tree could not be listed.
	extra    []chunk.ExtraNames
	unlisted bool
	// named holds the paths of TransferConfig.Filter that are not listed yet.
	named map[string]bool
	// first has the first name of each file with several hard links, linked the directories with further names.
	// linkBytes is the memory for them.
	first     map[chunk.Identity]string
	linked    []chunk.DirLinks
	linkBytes int
	// next collects small files. batches and larges hold a token per batch and per large file in flight.
	next            *batch
	batches, larges rpc.Limit
	work            sync.WaitGroup
	cancel          context.CancelCauseFunc
}

// openedDir is an open directory.
type openedDir struct {
	// Dir is nil if the directory could not be opened.
	*chunk.Dir
	path string
	// local holds the local names not compared yet, sorted, and extra the ones that the peer lacks.
	// Both are for TransferConfig.Delete.
	local, extra []string
	// links holds other names of already listed files.
	links []chunk.HardLink
}

// treeEntry is a listed entry with its path.
type treeEntry struct {
	step
	path string
}

// tree receives a directory. Special files, and entries that cannot be received, are skipped. top has the attributes of the directory, whose
// permissions are set only if mode is set.
func (l *download) tree(ctx context.Context, name string, root *os.Root, top chunk.Entry, mode bool) error {
	if err := l.peer.trees.Take(ctx); err != nil {
		return err
	}
	defer l.peer.trees.Give()
	if err := l.staged(ctx, stageSlots); err != nil {
		return err
	}
	if l.sync = chunk.Sync(l.cfg.Sync); l.sync == chunk.SyncBatch {
		l.sync = chunk.SyncFile // the directory is flushed later
	}
	parallel := l.cfg.Parallel
	if parallel <= 0 {
		parallel = defaultParallel
	}
	t := &treeDownload{
		download: l, name: name, next: &batch{}, batches: make(rpc.Limit, maxBatches), larges: make(rpc.Limit, parallel),
		first: map[chunk.Identity]string{}, named: map[string]bool{},
	}
	for _, name := range l.filter.Paths() {
		t.named[name] = true
	}
	if err := errors.Join(t.receive(ctx, root, top, mode), l.stage.close()); err != nil {
		return printable.Error(err) // names are chosen by the peer
	}
	return l.omittedError()
}

func (t *treeDownload) receive(ctx context.Context, root *os.Root, top chunk.Entry, mode bool) (err error) {
	if t.tree, err = chunk.NewTree(root, chunk.TreeConfig{Sync: chunk.Sync(t.cfg.Sync), DryRun: t.cfg.DryRun, KeepTop: t.cfg.KeepTop}); err != nil {
		return err
	}
	d, err := t.tree.Top(top, mode)
	if err != nil {
		return errors.Join(err, t.tree.Close(false))
	}
	if err = t.push(d, "."); err == nil {
		err = t.run(ctx)
	}
	if err == nil && t.cfg.Delete && !t.unlisted {
		err = t.remove(ctx)
	}
	left, _ := t.omitted.get()
	return errors.Join(err, t.tree.Close(err == nil && left == 0))
}

// run receives the contents of the top directory.
func (t *treeDownload) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.cancel = cancel
	pages := make(chan []treeEntry, 1)
	t.work.Go(func() {
		defer close(pages)
		if err := t.list(ctx, pages); err != nil {
			cancel(err)
		}
	})
	t.counts.listing.Store(true)
	at := positionAt("")
	for page := range pages {
		for i := range page {
			if ctx.Err() == nil {
				at.next(&page[i].step)
				page[i].path = at.path()
				t.entry(ctx, &page[i])
			}
		}
	}
	t.counts.listing.Store(false)
	t.flush(ctx)
	t.leave(0)
	t.work.Wait()
	t.links(ctx)
	if ctx.Err() == nil {
		t.unlistedNames()
	}
	return context.Cause(ctx)
}

// unlistedNames reports the paths of TransferConfig.Filter that the peer's tree lacks.
func (t *treeDownload) unlistedNames() {
	for _, name := range slices.Sorted(maps.Keys(t.named)) {
		t.omit(name, ErrNotFound)
	}
}

// list requests all pages of the listing, and checks their order.
func (t *treeDownload) list(ctx context.Context, pages chan<- []treeEntry) error {
	at, count, walk := positionAt(""), 0, t.peer.engine.newHandle()
	for {
		m, _, err := askAny[*fileTreed](ctx, t.peer, t.peer.requests, func(id uint32) []byte { return (&fileTree{id, walk, t.name, at.cursor(), t.rules, t.want()}).encode() })
		if err != nil {
			return err
		}
		if count += len(m.steps); count > maxTree {
			return fmt.Errorf("%w: more than %d entries", ErrTooLong, maxTree)
		}
		page := make([]treeEntry, len(m.steps))
		for i := range m.steps {
			if !at.next(&m.steps[i]) {
				return fmt.Errorf("%w: entries are not in order", rpc.ErrProtocol)
			}
			t.dropUnrequested(&m.steps[i].Entry)
			page[i].step = m.steps[i] // its path is computed later: a page of deep paths is large
		}
		select {
		case pages <- page:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !m.more {
			return nil
		}
	}
}

// leave releases all open directories but the outer ones.
func (t *treeDownload) leave(outer int) {
	for i := len(t.dirs) - 1; i >= outer; i-- {
		if d := &t.dirs[i]; d.Dir != nil {
			t.recordExtra(d)
			t.recordLinks(d)
			t.release(d.Dir)
		}
		t.dirs = t.dirs[:i]
	}
}

// release drops one use of a directory.
func (t *treeDownload) release(d *chunk.Dir) {
	if err := d.Release(); err != nil {
		t.omit("", err)
	}
}

// omit records that an entry is omitted, or fails the transfer if the error affects more than the
// entry.
func (t *treeDownload) omit(name string, err error) {
	if name != "" {
		err = fmt.Errorf("%s: %w", name, err)
	}
	if !omits(err) {
		t.cancel(err)
	}
	t.omitted.add(err)
}

// entry receives or skips an entry.
func (t *treeDownload) entry(ctx context.Context, e *treeEntry) {
	t.leave(e.depth + 1)
	t.dirs[e.depth].skipTo(e.Name)
	if len(t.named) > 0 {
		delete(t.named, e.path)
	}
	t.unlisted = t.unlisted || e.failed != ""
	if !e.Mode.IsDir() {
		t.counts.listed.Add(1)
	}
	d := t.dirs[e.depth].Dir
	err := error(nil)
	switch {
	case d == nil:
		t.omitted.skip() // its directory is named
		if e.Mode.IsDir() {
			t.dirs = append(t.dirs, openedDir{})
		}
	case e.failed != "":
		err = fmt.Errorf("%w: the peer cannot read it (%s)", ErrFailed, e.failed)
	case len(t.name)+1+len(e.path) > maxPath:
		err = fmt.Errorf("%w: the path has %d bytes, at most %d", ErrTooLong, len(t.name)+1+len(e.path), maxPath)
	case chunk.Special(e.Mode):
		t.counts.skipped.add(e.path)
	case e.Mode.IsDir():
		var sub *chunk.Dir
		if sub, err = d.Enter(&e.Entry); err == nil {
			err = t.push(sub, e.path)
		}
	case e.Mode.IsRegular() && t.isHardLink(e):
	case e.Mode.IsRegular():
		err = t.file(ctx, d, e)
	default:
		err = t.link(d, e)
	}
	if err == nil {
		return
	}
	if e.Mode.IsDir() && e.failed == "" && len(t.dirs) == e.depth+1 {
		t.dirs = append(t.dirs, openedDir{})
	}
	t.omit(e.path, err)
}

// link compares a symbolic link and replaces it if it differs.
func (t *treeDownload) link(d *chunk.Dir, e *treeEntry) error {
	relation, err := d.Compare(&e.Entry, true)
	if err != nil {
		return err
	}
	if relation == chunk.Equal {
		t.counts.unchanged.Add(1)
		return nil
	}
	t.counts.sent.Add(1)
	if t.cfg.DryRun {
		return nil
	}
	return d.Link(&e.Entry)
}

// file compares a file by size and modification time, and receives it if it differs.
func (t *treeDownload) file(ctx context.Context, d *chunk.Dir, e *treeEntry) error {
	relation, done, err := t.compare(d, &e.Entry, e.fresh)
	if err != nil || done {
		return err
	}
	if e.Size <= maxSmall {
		t.add(ctx, item{dir: d, entry: e, compare: relation == chunk.SameSize && !t.cfg.Fresh})
		return nil
	}
	if t.larges.Take(ctx) != nil {
		return nil // the transfer has failed
	}
	d.Hold()
	t.work.Go(func() {
		defer t.larges.Give()
		t.large(ctx, d, e)
		t.release(d)
	})
	return nil
}

// large receives a file in chunks. A file that changes meanwhile is tried twice.
func (t *treeDownload) large(ctx context.Context, d *chunk.Dir, e *treeEntry) {
	name := path.Join(t.name, e.path)
	err := t.largeOnce(ctx, name, d, e)
	if errors.Is(err, ErrChanged) && ctx.Err() == nil {
		err = t.largeOnce(ctx, name, d, e)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		t.omit(e.path, err)
	}
}

// largeOnce receives a file of a tree.
func (t *treeDownload) largeOnce(ctx context.Context, name string, d *chunk.Dir, e *treeEntry) error {
	start := time.Now()
	from, err := t.open(ctx, name)
	if err != nil {
		t.received(name, start, 0, false, err)
		return err
	}
	if from.entry.Mode.IsDir() {
		return fmt.Errorf("%w: it has become a directory", ErrChanged)
	}
	root, err := d.Root()
	if err != nil {
		t.releaseLater(from)
		t.received(name, start, 0, false, err)
		return err
	}
	t.counts.total.Add(from.entry.Size - e.Size)
	e.Size = from.entry.Size
	return t.download.file(ctx, from, name, root, e.Name)
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

// skip counts a skipped entry.
func (o *omissions[T]) skip() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count++
}

// get returns the number of skipped entries, and the first ones.
func (o *omissions[T]) get() (count int64, first []T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count, slices.Clone(o.first)
}

// omittedError returns nil if all entries were received.
func (l *download) omittedError() error {
	count, first := l.omitted.get()
	if count == 0 {
		return nil
	}
	l.counts.failed.Store(count)
	for i := range first {
		first[i] = printable.Error(first[i])
	}
	return fmt.Errorf("%w: %d omitted, the rest is stored: %w", ErrIncomplete, count, oneLine(first))
}

// oneLine is a list of errors in one line.
type oneLine []error

func (l oneLine) Error() string {
	text := make([]string, len(l))
	for i, err := range l {
		text[i] = err.Error()
	}
	return strings.Join(text, "; ")
}

func (l oneLine) Unwrap() []error { return l }

// omits reports whether an error concerns only one entry of the tree.
func omits(err error) bool {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(err, cause) {
			return false
		}
	}
	for _, cause := range []error{
		errors.ErrUnsupported, ErrNotFound, ErrDenied, ErrChanged, ErrDigest, ErrTooLong, ErrFailed, chunk.ErrDigest, chunk.ErrKind, chunk.ErrName, chunk.ErrBusy, chunk.ErrForeign,
		chunk.ErrChanged, chunk.ErrTooMany,
	} {
		if errors.Is(err, cause) {
			return true
		}
	}
	var onPath *fs.PathError
	var onLink *os.LinkError
	return errors.As(err, &onPath) || errors.As(err, &onLink)
}
