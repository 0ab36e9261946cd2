package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/filter"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// TransferConfig configures a file transfer. The zero value suits most programs.
type TransferConfig struct {
	// Fresh ignores existing data at the destination: both partial data from an earlier transfer and existing files.
	Fresh bool
	// Checksum compares the contents of all files. By default, files with the same size and modification time are equal.
	Checksum bool
	// Filter leaves out entries of a directory. Each rule is "- PATTERN" to exclude or "+ PATTERN"
	// to include entries; the first matching rule decides. Patterns have rsync's syntax, see
	// docs/files.md; one with a leading slash matches from the top of the directory. With rules "=
	// PATH", only these paths, their parents and their contents are transferred. A missing path is
	// reported as a failed entry. All rules together have at most 256 KiB.
	Filter []string
	// Delete removes files and directories at the destination that the source directory lacks, except excluded ones. It runs last, and
	// only if the source could be listed completely.
	Delete bool
	// KeepTop leaves the permissions and times of an existing destination directory as they are, like a copy of single files into it. For
	// Put, the destination may then be an Export itself, other peers may store files there at the same time, and a new directory is
	// private to the peer's user.
	KeepTop bool
	// DryRun counts the files that would be transferred or deleted, by size and modification time,
	// and leaves the destination unchanged.
	DryRun bool
	// Sync selects the data flushed to disk before the transfer completes.
	Sync Sync
	// Owner gives files and directories the numeric user and group of the source. This side must run as root. For Put, the peer must too,
	// and its Export must have ExportConfig.Owners.
	Owner bool
	// Xattrs copies extended attributes of files and directories whose names begin with "user.", at most 32 KiB per file. Only Linux has them.
	Xattrs bool
	// BytesPerSecond limits the rate of file contents. Zero means no limit.
	BytesPerSecond int64
	// Parallel is the maximum number of large files received concurrently from a directory. Zero means 8. All transfers from one peer
	// together have at most 128 open files; others wait. Put ignores it.
	Parallel int
}

// Sync selects the durability of received files after a system crash.
type Sync uint8

// Durability levels.
const (
	// SyncBatch flushes the contents of files before they get their final names, many at a time, and each directory once. When the
	// transfer completes, everything that it wrote is on disk.
	SyncBatch = Sync(chunk.SyncBatch)
	// SyncFile flushes the contents of files before they get their final names, but not the directories.
	SyncFile = Sync(chunk.SyncFile)
	// SyncNever leaves flushing to the system. After a crash, a file may have its final name and wrong contents.
	SyncNever = Sync(chunk.SyncNever)
)

const defaultParallel = 8

// Transfer is a running or completed transfer of a file or directory. All methods are safe for concurrent use.
type Transfer struct {
	peer *Peer
	// op is "get" or "put", name the remote name.
	op, name string
	counts   counts
	// upload is set for Put, which counts served bytes.
	upload *uploadSource
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // valid when done is closed
}

// Get starts downloading a remote file or directory and returns immediately. dest is the new path or, for a file, an existing directory
// to place it in. A directory's contents are stored below dest. A file is received under a hidden temporary name next to its destination,
// and replaces an existing file when it is complete.
//
// To resume an interrupted transfer, even after a process was killed, call Get again: existing data is verified by digest and not sent
// again. Within a directory, entries that cannot be transferred are skipped; the transfer then fails and reports them at the end.
// Special files, such as FIFOs, are skipped without an error, see Status.Skipped.
func (p *Peer) Get(name, dest string, cfg TransferConfig) *Transfer {
	t, ctx := p.begin("get", name)
	t.run(func() error {
		l, err := p.newDownload(cfg, &t.counts)
		if err == nil {
			err = l.mayOwn()
		}
		if err != nil {
			return err
		}
		from, err := l.open(ctx, name)
		if err != nil {
			return err
		}
		if from.entry.Mode.IsDir() {
			return l.treeTo(ctx, from.entry.Entry, name, dest)
		}
		return l.fileTo(ctx, from, name, dest)
	})
	return t
}

// mayOwn returns an error if Owner is set and this process cannot change owners.
func (l *download) mayOwn() error {
	if l.cfg.Owner && os.Geteuid() != 0 {
		return fmt.Errorf("%w: TransferConfig.Owner needs root", ErrDenied)
	}
	return nil
}

// newDownload returns a transfer from a peer.
func (p *Peer) newDownload(cfg TransferConfig, c *counts) (*download, error) {
	f, err := filter.New(cfg.Filter)
	if err != nil {
		return nil, verbs.Invalidf("TransferConfig.Filter: %v", err)
	}
	if cfg.BytesPerSecond < 0 {
		return nil, verbs.Invalidf("TransferConfig.BytesPerSecond is %d", cfg.BytesPerSecond)
	}
	return &download{peer: p, cfg: cfg, counts: c, limiter: newRateLimiter(cfg.BytesPerSecond), sync: chunk.Sync(cfg.Sync), filter: f, rules: rules(strings.Join(cfg.Filter, "\n"))}, nil
}

// checkPath validates a remote file name.
func checkPath(name string) error {
	switch {
	case len(name) > maxPath:
		return fmt.Errorf("%w: the name has %d bytes, at most %d", ErrTooLong, len(name), maxPath)
	case !fs.ValidPath(name) || name == ".":
		return fmt.Errorf("%w: want a relative path with slashes", ErrNotFound)
	}
	return nil
}

// fileTo receives a file to a local path.
func (l *download) fileTo(ctx context.Context, from source, name, dest string) error {
	if dest == "" {
		dest = "."
	}
	dir, base := filepath.Split(dest)
	if info, err := os.Stat(dest); base == "" || err == nil && info.IsDir() {
		dir, base = dest, path.Base(name)
	}
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if l.cfg.DryRun && errors.Is(err, fs.ErrNotExist) {
		return l.single(ctx, from, name, nil, base)
	}
	if err != nil {
		l.releaseLater(from)
		return err
	}
	return errors.Join(l.single(ctx, from, name, root, base), root.Close())
}

// single receives one file, unless it is equal.
func (l *download) single(ctx context.Context, from source, name string, root *os.Root, local string) error {
	e := from.entry.Entry
	e.Name = local
	_, done, err := l.compare(chunk.NewDir(root, chunk.TreeConfig{DryRun: l.cfg.DryRun}), &e, from.fresh)
	if err == nil && !done {
		err = l.staged(ctx, int(min(chunk.Count(e.Size), stageSlots)))
	}
	if err != nil || done {
		l.releaseLater(from)
		return err
	}
	err = l.file(ctx, from, name, root, local)
	if errors.Is(err, ErrChanged) && ctx.Err() == nil {
		err = l.singleAgain(ctx, name, root, local)
	}
	return errors.Join(err, l.stage.close())
}

// singleAgain receives a file that has changed while it was received, as it is now.
func (l *download) singleAgain(ctx context.Context, name string, root *os.Root, local string) error {
	from, err := l.open(ctx, name)
	if err != nil {
		return err
	}
	if from.entry.Mode.IsDir() {
		return fmt.Errorf("%w: it has become a directory", ErrChanged)
	}
	l.counts.total.Store(from.entry.Size)
	return l.file(ctx, from, name, root, local)
}

// staged allocates memory for chunks.
func (l *download) staged(ctx context.Context, slots int) (err error) {
	l.stage, err = l.peer.newStage(ctx, max(slots, 1))
	return err
}

// begin returns a transfer, and its context, which Cancel cancels.
func (p *Peer) begin(op, name string) (*Transfer, context.Context) {
	t := &Transfer{peer: p, op: op, name: name, done: make(chan struct{})}
	base := path.Base(name)
	t.counts.name.Store(&base)
	parent := context.Background()
	if p.engine != nil {
		parent = p.engine.ctx
	}
	ctx, cancel := context.WithCancelCause(parent)
	t.cancel = cancel
	return t, ctx
}

// run runs the transfer in its own goroutine.
func (t *Transfer) run(f func() error) {
	if t.peer.engine == nil || !t.peer.engine.begin(func() { t.end(f()) }) {
		t.end(ErrClosed)
	}
}

// end completes the transfer.
func (t *Transfer) end(err error) {
	if err != nil {
		if e := t.peer.engine; e.isClosed() && errors.Is(err, context.Canceled) {
			err = ErrClosed
		}
		t.err = newError(t.op, t.peer, t.name, translate(err))
	}
	t.cancel(nil)
	close(t.done)
}

// translate maps errors of package chunk to errors of this package.
func translate(err error) error {
	switch {
	case errors.Is(err, chunk.ErrChanged):
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case errors.Is(err, chunk.ErrDigest):
		return fmt.Errorf("%w: %w", ErrDigest, err)
	case errors.Is(err, chunk.ErrBusy):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, chunk.ErrName), errors.Is(err, chunk.ErrKind), errors.Is(err, chunk.ErrForeign):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

// Done returns a channel that is closed when the transfer completes.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Wait blocks until the transfer completes and returns its error, an *Error. If ctx is done first, Wait returns the cause of ctx and the
// transfer continues.
func (t *Transfer) Wait(ctx context.Context) error {
	if t.done == nil {
		return newError("wait", nil, "", ErrClosed)
	}
	if ctx == nil {
		return newError("wait for "+t.op, t.peer, t.name, verbs.Invalidf("the Context is nil"))
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return newError("wait for "+t.op, t.peer, t.name, context.Cause(ctx))
	}
}

// Err returns the transfer's error once it has completed. It is nil while the transfer is running and after success.
func (t *Transfer) Err() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}

// Cancel aborts the transfer, which fails with ErrCanceled, and returns immediately. Received data is kept, and a later transfer resumes
// from it.
func (t *Transfer) Cancel() {
	if t.cancel != nil {
		t.cancel(ErrCanceled)
	}
}

// Status is a snapshot of a transfer's progress.
type Status struct {
	// Status holds phase, bytes and rates. While Phase is transfer.Checking, existing data is verified, and Bytes and Total cover only
	// that.
	transfer.Status
	// Name is the most recently started file.
	Name string
	// BytesReused is the part of Bytes that already existed at the destination. For Put it is set
	// only at the end.
	BytesReused int64
	// Chunks counts verified chunks, ChunksRetried chunks requested again after a digest mismatch.
	// For Put they are set only at the end.
	Chunks, ChunksRetried int64
	// Listed counts the files and symbolic links listed so far in a directory. Listing is set until
	// the listing is complete; Total grows until then.
	Listed  int64
	Listing bool
	// Skipped counts the special files of a directory, such as FIFOs, sockets and devices, which are never transferred. SkippedNames holds
	// the first ones, at most 8, relative to the directory.
	Skipped      int64
	SkippedNames []string
	// Sent counts transferred files and symbolic links, Unchanged counts equal ones, and Failed
	// counts missing entries of a directory. For Put they are set only at the end.
	Sent, Unchanged, Failed int64
	// Deleted counts the entries removed by TransferConfig.Delete.
	Deleted int64
}

// Status returns the transfer's progress, without rates.
func (t *Transfer) Status() Status {
	c := &t.counts
	if t.done == nil || t.peer.transfer == nil {
		return Status{Status: transfer.Status{Phase: transfer.Done}}
	}
	s := Status{Name: *c.name.Load(), BytesReused: c.kept.Load(), Chunks: c.chunks.Load(), ChunksRetried: c.bad.Load()}
	s.Listed, s.Listing = c.listed.Load(), c.listing.Load()
	s.Skipped, s.SkippedNames = c.skipped.get()
	s.Sent, s.Unchanged, s.Deleted, s.Failed = c.sent.Load(), c.unchanged.Load(), c.deleted.Load(), c.failed.Load()
	s.Bytes, s.Total, s.Rails = c.moved.Load(), c.total.Load(), t.peer.rails()
	if t.upload != nil && s.Bytes == 0 {
		s.Bytes = t.upload.served.Load()
	}
	if c.checking.Load() > 0 {
		s.Phase, s.Bytes, s.Total = transfer.Checking, c.checked.Load(), c.toCheck.Load()
	}
	select {
	case <-t.done:
		s.Phase, s.Listing = transfer.Done, false
	default:
	}
	return s
}

// Progress returns an iterator that yields the Status, with rates, once per interval (at least 1 ms) until the transfer completes or ctx is
// done. Rate covers only moved bytes, not reused ones. The last Status of a completed transfer is its final one.
func (t *Transfer) Progress(ctx context.Context, every time.Duration) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		var s Status
		status := func() transfer.Status {
			s = t.Status()
			return s.Status
		}
		var bytes, reused int64
		for rated := range transfer.Progress(ctx, every, t.done, status) {
			s.Status = rated
			if s.Phase != transfer.Checking {
				if all := s.Bytes - bytes; all > 0 {
					s.Rate *= float64(max(all-(s.BytesReused-reused), 0)) / float64(all)
				}
				bytes, reused = s.Bytes, s.BytesReused
			}
			if !yield(s) {
				return
			}
		}
	}
}
