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
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/transfer"
)

// TransferConfig describes a transfer of files. The zero value is usual.
type TransferConfig struct {
	// Fresh means that nothing that is at the target is used: neither what an earlier transfer has left, nor the file that
	// has the name.
	Fresh bool
	// Sync says what is on the disk when the transfer has ended. PutFile ignores it: the peer syncs files.
	Sync Sync
	// Parallel is how many files of a directory are received at a time. Zero means 8. Of one peer at most 128 files are open at a time, and
	// others wait.
	Parallel int
}

// Sync says what survives a crash of the system.
type Sync uint8

// Kinds of Sync.
const (
	// SyncFile writes the bytes of a file to the disk before the file gets its name.
	SyncFile = Sync(chunk.SyncFile)
	// SyncDir writes the name to the disk too.
	SyncDir = Sync(chunk.SyncDir)
	// SyncNever leaves it to the system. After a crash a file may have its name and wrong bytes.
	SyncNever = Sync(chunk.SyncNever)
)

const defaultParallel = 8

// Transfer is a file or a tree that is being transferred.
type Transfer struct {
	peer *Peer
	// op is "get" or "put", and name the peer's name.
	op, name string
	counts   counts
	// offered is set for PutFile, where the peer counts.
	offered *offered
	cancel  context.CancelCauseFunc
	done    chan struct{}
	err     error // valid when done is closed
}

// GetFile gets a file or a directory of the peer. dest is where it goes: the new name, or for a file a directory that is there. A directory is
// stored as dest, with what is in it. A file grows under a hidden name beside its place, and replaces a file that has
// the name when it is complete.
//
// A transfer that ended early, also because a process was killed, is continued by calling GetFile again: what is there is compared by digests
// and is not sent again.
func (p *Peer) GetFile(name, dest string, cfg TransferConfig) *Transfer {
	t, ctx := p.begin("get", name)
	t.run(func() error {
		l := &pull{peer: p, cfg: cfg, counts: &t.counts}
		from, err := l.open(ctx, name)
		if err != nil {
			return err
		}
		if from.entry.Mode.IsDir() {
			return l.treeTo(ctx, name, dest)
		}
		return l.fileTo(ctx, from, name, dest)
	})
	return t
}

// checkPath refuses the name of a file of a peer that no request can have.
func checkPath(name string) error {
	switch {
	case len(name) > maxPath:
		return fmt.Errorf("%w: the name has %d bytes, at most %d", ErrTooLong, len(name), maxPath)
	case !fs.ValidPath(name) || name == ".":
		return fmt.Errorf("%w: want a relative path with slashes", ErrNotFound)
	}
	return nil
}

// fileTo receives a file to a path of the system.
func (l *pull) fileTo(ctx context.Context, from source, name, dest string) error {
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
	if err != nil {
		l.giveUp(from)
		return err
	}
	return errors.Join(l.single(ctx, from, name, root, base), root.Close())
}

// single receives one file.
func (l *pull) single(ctx context.Context, from source, name string, root *os.Root, local string) error {
	l.counts.total.Store(from.entry.Size)
	err := l.staged(ctx, int(min(chunk.Count(from.entry.Size), stageSlots)))
	if err != nil {
		l.giveUp(from)
		return err
	}
	return errors.Join(l.file(ctx, from, name, root, local), l.stage.close())
}

// staged gets memory for chunks.
func (l *pull) staged(ctx context.Context, slots int) (err error) {
	l.stage, err = l.peer.newStage(ctx, max(slots, 1))
	return err
}

// newTransfer returns a transfer, and a context that ends when it is canceled.
func (p *Peer) begin(op, name string) (*Transfer, context.Context) {
	t := &Transfer{peer: p, op: op, name: name, done: make(chan struct{})}
	base := path.Base(name)
	t.counts.name.Store(&base)
	ctx, cancel := context.WithCancelCause(p.engine.ctx)
	t.cancel = cancel
	return t, ctx
}

// run runs the transfer in a goroutine of its own.
func (t *Transfer) run(f func() error) {
	if !t.peer.engine.begin(func() { t.end(f()) }) {
		t.end(ErrClosed)
	}
}

// end ends the transfer.
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

// fileError makes errors of files those of this package.
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

// Done is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Wait waits until the transfer has ended, and returns its error. If ctx ends before, the transfer goes on.
func (t *Transfer) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return newError("wait for "+t.op, t.peer, t.name, context.Cause(ctx))
	}
}

// Err is nil until the transfer has ended, and then says why it failed.
func (t *Transfer) Err() error {
	select {
	case <-t.done:
		return t.err
	default:
		return nil
	}
}

// Cancel ends the transfer in ErrCanceled. What has arrived stays, and another transfer goes on with it.
func (t *Transfer) Cancel() { t.cancel(ErrCanceled) }

// Status describes how far a transfer is.
type Status struct {
	// Status has phase, bytes and rates. Phase is Checking while the digests of existing chunks are computed.
	transfer.Status
	// Name is the file started last.
	Name string
	// BytesReused is the part of Bytes that already existed at the target.
	BytesReused int64
	// Chunks counts the verified chunks, and ChunksRetried the chunks with a wrong digest, which were requested again.
	Chunks, ChunksRetried int64
}

// Status returns how far the transfer is, without rates.
func (t *Transfer) Status() Status {
	c := &t.counts
	s := Status{Name: *c.name.Load(), BytesReused: c.kept.Load(), Chunks: c.chunks.Load(), ChunksRetried: c.bad.Load()}
	s.Bytes, s.Total, s.Rails = c.moved.Load(), c.total.Load(), t.peer.transfer.Rails()
	if t.offered != nil {
		s.Bytes = t.offered.served.Load()
	}
	if c.checking.Load() > 0 {
		s.Phase, s.Bytes, s.Total = transfer.Checking, c.checked.Load(), c.toCheck.Load()
	}
	select {
	case <-t.done:
		s.Phase = transfer.Done
	default:
	}
	return s
}

// Progress returns the Status now and then, until the transfer has ended or ctx ends. The last one is that at the end.
func (t *Transfer) Progress(ctx context.Context, every time.Duration) iter.Seq[Status] {
	return func(yield func(Status) bool) {
		var s Status
		status := func() transfer.Status {
			s = t.Status()
			return s.Status
		}
		for rated := range transfer.Progress(ctx, every, t.done, status) {
			if s.Status = rated; !yield(s) {
				return
			}
		}
	}
}
