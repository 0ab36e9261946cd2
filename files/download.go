package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"ibverbx/internal/chunk"
	"ibverbx/internal/filter"
	"ibverbx/internal/rpc"
)

// download receives a file or directory from a peer.
type download struct {
	peer  *Peer
	cfg   TransferConfig
	stage *stage
	// filter and rules are cfg.Filter.
	filter filter.Filter
	rules  rules
	// counts is the reported progress.
	counts *counts
	// sync is the durability of each file. In a tree, the directories follow.
	sync chunk.Sync
	// omitted records the entries of a tree that could not be received.
	omitted omissions[error]
	// storedFrom is the remote name in an upload by a peer, and storedAs the destination that the
	// peer requested; empty for Get.
	storedFrom, storedAs string
	// reported is set once a file was reported to Config.OnOperation.
	reported atomic.Bool
	// limiter limits the rate of Get. Nil means no limit.
	limiter *rateLimiter
}

// want returns the requested attributes.
func (l *download) want() chunk.Want { return chunk.Want{Owner: l.cfg.Owner, Xattrs: l.cfg.Xattrs} }

// counts is the progress of a file transfer.
type counts struct {
	// total, moved, kept, checked and toCheck are in bytes. kept is the part of moved that already existed.
	total, moved, kept, checked, toCheck atomic.Int64
	// chunks counts verified chunks, bad the ones requested again.
	chunks, bad atomic.Int64
	// listed counts the files and symbolic links listed so far in a directory. listing is set until
	// the listing is complete.
	listed  atomic.Int64
	listing atomic.Bool
	// sent, unchanged and failed count files and symbolic links.
	sent, unchanged, deleted, failed atomic.Int64
	// skipped names the special files of a tree.
	skipped omissions[string]
	// checking is the number of files being checked.
	checking atomic.Int32
	// name is the most recently started file.
	name atomic.Pointer[string]
}

// source is an open remote file, or a directory. Its zero value means that opening failed.
type source struct {
	proc   *process
	handle uint32
	entry  fileEntry
	// fresh is fileOpened.fresh.
	fresh bool
	// release returns the token of an open file. It is idempotent.
	release func()
}

// result returns the result.
func (c *counts) result() (t transferResult) {
	to := t.numbers()
	for i, n := range c.numbers() {
		*to[i] = n.Load()
	}
	return t
}

// set sets the result.
func (c *counts) set(t transferResult) {
	from := t.numbers()
	for i, n := range c.numbers() {
		n.Store(*from[i])
	}
}

// numbers returns the counters of the result, in the order of transferResult.numbers.
func (c *counts) numbers() []*atomic.Int64 {
	return []*atomic.Int64{&c.moved, &c.kept, &c.chunks, &c.bad, &c.sent, &c.unchanged, &c.deleted, &c.failed}
}

// dropUnrequested removes unrequested attributes: a peer must not choose owners unasked.
func (l *download) dropUnrequested(e *chunk.Entry) {
	if !l.cfg.Owner {
		e.Owner = nil
	}
	if !l.cfg.Xattrs {
		e.Xattrs = nil
	}
}

// open opens a remote file or directory. It waits while too many files are open.
func (l *download) open(ctx context.Context, name string) (source, error) {
	if err := checkPath(name); err != nil {
		return source{}, err
	}
	opens := l.peer.opens
	if err := opens.Take(ctx); err != nil {
		return source{}, err
	}
	release := sync.OnceFunc(func() { <-opens })
	handle, asked := l.peer.engine.newHandle(), false
	m, proc, err := askAny[*fileOpened](ctx, l.peer, l.peer.requests, func(id uint32) []byte {
		asked = true
		return (&fileOpen{id, handle, name, l.want()}).encode()
	})
	switch {
	case err == nil && m.entry.Mode.Type()&^fs.ModeDir != 0:
		err = errOpenedKind
	case err == nil && m.entry.Mode.IsDir():
		l.dropUnrequested(&m.entry.Entry)
		release()
		return source{proc: proc, entry: m.entry}, nil
	case err == nil:
		l.dropUnrequested(&m.entry.Entry)
		return source{proc, handle, m.entry, m.fresh, release}, nil
	case asked && proc != nil && ctx.Err() != nil:
		l.releaseLater(source{proc: proc, handle: handle, release: release}) // the peer may have opened it, or may still do so
		return source{}, err
	}
	release()
	return source{}, err
}

// errOpenedKind means that a peer has opened neither a file nor a directory.
var errOpenedKind = fmt.Errorf("%w: it is neither a file nor a directory", rpc.ErrProtocol)

// file receives an open file and stores it below root. If the peer is restarted meanwhile, the file is reopened by name.
func (l *download) file(ctx context.Context, from source, name string, root *os.Root, local string) (err error) {
	l.counts.name.Store(&name)
	entry := from.entry.Entry
	size, modified := entry.Size, entry.ModTime
	reception := l.newFileReport(name, size)
	defer func() { reception.end(err) }()
	if size > MaxFileSize {
		l.releaseLater(from)
		return fmt.Errorf("%w: the file has %d bytes, at most %d", ErrTooLong, size, int64(MaxFileSize))
	}
	target, err := chunk.Create(root, local, size, l.cfg.Fresh)
	if err != nil {
		l.releaseLater(from)
		return err
	}
	if entry.Sparse {
		target.KeepHoles()
	}
	cached := chunk.NewTable[cachedChunk](chunk.Count(size))
	reception.chunks = &cached
	err = l.check(ctx, target, &cached)
	var sum chunk.Sum
	for err == nil {
		if err = l.chunks(ctx, from, target, 0, cached.Len(), cached.At); err == nil {
			sum, err = l.releaseFile(ctx, from)
		}
		if !l.peer.mayReturn(err) {
			break
		}
		from.release() // the peer's process has exited
		if from, err = l.open(ctx, name); err == nil && (from.entry.Mode.IsDir() || from.entry.Size != size || !from.entry.ModTime.Equal(modified)) {
			err = fmt.Errorf("%w: the peer was restarted and has another file of that name", ErrChanged)
		}
	}
	if err != nil {
		l.releaseLater(from)
		if errors.Is(err, ErrChanged) {
			l.uncount(&cached, size) // the file may be received again
		}
		return errors.Join(err, target.Close())
	}
	if err := target.Commit(ctx, sum, &entry, l.sync); err != nil {
		return errors.Join(err, target.Close())
	}
	if target.Kept() {
		l.counts.unchanged.Add(1)
	} else {
		l.counts.sent.Add(1)
	}
	return nil
}

// compare compares a local file with a remote one by size and modification time. done is set if the file is equal, or
// the transfer is a dry run.
func (l *download) compare(d *chunk.Dir, e *chunk.Entry, fresh bool) (relation chunk.Relation, done bool, err error) {
	if relation, err = d.Compare(e, !fresh && !l.cfg.Checksum && !l.cfg.Fresh); err != nil {
		return relation, false, err
	}
	c := l.counts
	c.total.Add(e.Size)
	switch {
	case relation == chunk.Equal:
		c.kept.Add(e.Size)
		c.moved.Add(e.Size)
		c.unchanged.Add(1)
	case l.cfg.DryRun:
		c.sent.Add(1)
	default:
		return relation, false, nil
	}
	return relation, true, nil
}

// releaseLater releases a remote file in the background, retrying until the peer responds or its process has exited.
func (l *download) releaseLater(from source) {
	if from.release == nil {
		return // a directory, or not open
	}
	f := l.peer.engine
	if !f.begin(func() {
		_, _ = l.releaseFile(f.ctx, from) // if the peer's process has exited, so has its open file
		from.release()
	}) {
		from.release() // the session closes, and so does the file
	}
}

// releaseFile releases a remote file, and returns the digest of its contents.
func (l *download) releaseFile(ctx context.Context, from source) (sum chunk.Sum, err error) {
	m, err := ask[*fileEnded](ctx, from.proc, l.peer.requests, func(id uint32) []byte { return (&fileDone{id, from.handle}).encode() })
	if err != nil {
		return sum, err
	}
	from.release()
	if !m.hasSum {
		return sum, fmt.Errorf("%w: no digest of the whole file", rpc.ErrProtocol)
	}
	return m.sum, nil
}

// maxWorkers limits the goroutines computing digests of one file.
const maxWorkers = 4

// MaxFileSize is the maximum size of a file in bytes, 8 TiB.
const MaxFileSize = 1 << 43

// cachedChunk is the state of an existing chunk.
type cachedChunk struct {
	state chunkState
	print chunk.Fingerprint
	// counted is set when the chunk is included in moved, reused if it existed then.
	counted, reused bool
}

// check computes the Fingerprints of existing chunks.
func (l *download) check(ctx context.Context, target *chunk.Target, cached *chunk.Table[cachedChunk]) error {
	if !target.HasData() {
		return nil
	}
	c := l.counts
	c.toCheck.Add(target.Size())
	c.checking.Add(1)
	defer c.checking.Add(-1)
	var next atomic.Int64
	workers := max(1, min(runtime.GOMAXPROCS(0), maxWorkers, int(cached.Len())))
	errs := make(chan error, workers)
	for range workers {
		go func() {
			b := make([]byte, chunk.Size)
			for k := next.Add(1) - 1; k < cached.Len(); k = next.Add(1) - 1 {
				fingerprint, ok, err := target.StoredFingerprint(k, b)
				if err == nil {
					err = context.Cause(ctx)
				}
				if err != nil {
					errs <- err
					return
				}
				if ok {
					*cached.At(k) = cachedChunk{state: cachedFingerprint, print: fingerprint}
				}
				c.checked.Add(int64(chunk.Len(target.Size(), k)))
			}
			errs <- nil
		}()
	}
	var err error
	for range workers {
		err = cmp.Or(err, <-errs)
	}
	return err
}

// chunks requests chunks first to end-1, one per slot concurrently. cached returns the state of a
// chunk. Existing chunks are only compared.
func (l *download) chunks(ctx context.Context, from source, to chunkStore, first, end int64, cached func(k int64) *cachedChunk) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	for k := first; k < end && ctx.Err() == nil; k++ {
		select {
		case slot := <-l.stage.free:
			work.Go(func() {
				if err := l.chunk(ctx, from, to, k, cached(k), slot); err != nil {
					cancel(err)
				}
				l.stage.free <- slot
			})
		case <-ctx.Done():
		}
	}
	work.Wait()
	return context.Cause(ctx)
}

// chunk requests a chunk and stores it. If the peer does not respond, it may still write to the
// slot, so the slot's memory is not reused.
func (l *download) chunk(ctx context.Context, from source, target chunkStore, k int64, cached *cachedChunk, s *slot) error {
	if err := s.grantTo(l.peer, from.proc); err != nil {
		return err
	}
	answered, err := l.fetch(ctx, from, target, k, cached, s)
	if !answered {
		err = errors.Join(err, s.drop())
	}
	return err
}

// fetch requests a chunk and stores it. After a digest mismatch it requests the chunk once more.
func (l *download) fetch(ctx context.Context, from source, target chunkStore, k int64, cached *cachedChunk, s *slot) (answered bool, err error) {
	request := fileChunk{
		handle: from.handle, index: uint64(k), state: cached.state, print: cached.print, grant: s.grant.Number(), stage: s.grant.Region(),
	}
	b := s.buffer.mem.Bytes()[:chunk.Len(target.Size(), k)]
	for again := false; ; again = true {
		if err := l.limiter.wait(ctx, int64(len(b))); err != nil {
			return true, err
		}
		m, err := ask[*fileChunked](ctx, from.proc, l.peer.requests, func(id uint32) []byte {
			request.id = id
			return request.encode()
		})
		if err != nil {
			return false, err
		}
		if m.origin != chunkWritten {
			l.limiter.refund(int64(len(b)))
		}
		switch {
		case m.origin == chunkSame && request.state != cachedNone && m.digest == request.print.Digest():
			err = target.Keep(k, m.digest)
		case m.origin == chunkSame:
			return true, fmt.Errorf("%w: a chunk that this side lacks is reported as equal", rpc.ErrProtocol)
		case m.origin == chunkZero:
			err = target.WriteZero(k)
		default:
			if f := l.peer.engine.chunkReceived; f != nil {
				f(k, b)
			}
			err = target.Write(k, b, m.digest)
		}
		if errors.Is(err, chunk.ErrDigest) {
			l.counts.bad.Add(1)
			l.peer.engine.counters.digestErrors.Add(1)
			if request.state = cachedNone; !again {
				continue
			}
		}
		if err == nil {
			l.count(cached, m, len(b))
		}
		return true, err
	}
}

// uncount removes a file's chunks from the progress.
func (l *download) uncount(cached *chunk.Table[cachedChunk], size int64) {
	for k := range cached.Len() {
		c, n := cached.Get(k), int64(chunk.Len(size, k))
		if c.counted {
			l.counts.moved.Add(-n)
		}
		if c.reused {
			l.counts.kept.Add(-n)
		}
	}
}

// count counts a stored chunk.
func (l *download) count(cached *cachedChunk, m *fileChunked, n int) {
	c := l.counts
	c.chunks.Add(1)
	if !cached.counted {
		cached.counted = true
		c.moved.Add(int64(n))
		if m.origin == chunkSame {
			c.kept.Add(int64(n))
			cached.reused = true
			l.peer.engine.counters.bytesReused.Add(uint64(n))
		}
	}
	if m.origin == chunkWritten {
		l.peer.engine.counters.bytesReceived.Add(uint64(n))
	}
	switch m.origin { // after a restart of the peer, all chunks are requested again
	case chunkWritten:
		cached.state, cached.print = cachedDigest, chunk.Fingerprint(m.digest)<<32
	case chunkZero:
		cached.state = cachedNone
	case chunkSame:
	}
}
