package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
)

// maxBatchNames bounds the paths of a batch in bytes.
const maxBatchNames = 128 << 10

// flushers is the number of goroutines that flush the files of a batch. A file system writes its journal once for many files that are
// flushed concurrently: with 2,000 files of 20 KB on ext4, 8 goroutines take 0.33 s and one takes 4.1 s.
const flushers = 4

// batch is a list of small files requested together.
type batch struct {
	items []item
	// size and names are in bytes.
	size  int64
	names int
}

// item is a small file of a tree. compare is set if the local file may be equal; local is the local
// file's state, once read.
type item struct {
	dir     *chunk.Dir
	entry   *treeEntry
	compare bool
	local   fs.FileInfo
}

// add adds a file to the next batch, and requests that batch once it is full.
func (t *treeDownload) add(ctx context.Context, it item) {
	if b := t.next; b.size+it.entry.Size > maxBatchSize || len(b.items) == maxBatch || b.names > maxBatchNames {
		t.flush(ctx)
	}
	it.dir.Hold()
	b := t.next
	b.items = append(b.items, it)
	b.size += it.entry.Size
	b.names += len(it.entry.path)
}

// flush requests the next batch. It waits while too many are in flight.
func (t *treeDownload) flush(ctx context.Context) {
	b := t.next
	if t.next = (&batch{}); len(b.items) == 0 {
		return
	}
	if t.batches.Take(ctx) != nil { // the transfer has failed
		t.drop(b)
		return
	}
	t.work.Go(func() {
		defer t.batches.Give()
		defer t.drop(b)
		t.receiveBatch(ctx, b)
	})
}

// drop releases the directories of a batch.
func (t *treeDownload) drop(b *batch) {
	for i := range b.items {
		t.release(b.items[i].dir)
	}
}

// receiveBatch receives a batch of files. Changed and damaged files are received again, one by one.
func (t *treeDownload) receiveBatch(ctx context.Context, b *batch) {
	t.counts.name.Store(&b.items[len(b.items)-1].entry.path)
	request, start := t.request(b), time.Now()
	select {
	case s := <-t.stage.free:
		written, again, err := t.fetchBatch(ctx, b, request, s, start)
		t.stage.free <- s
		if err != nil {
			t.cancel(err)
		}
		t.commit(written, start)
		for _, it := range again {
			if ctx.Err() == nil {
				t.large(ctx, it.dir, it.entry)
			}
		}
	case <-ctx.Done():
	}
}

// request returns the request for a batch, with the Fingerprints of local files that may be equal.
func (t *treeDownload) request(b *batch) *fileBatch {
	m := &fileBatch{name: t.name, files: make([]batchFile, len(b.items))}
	var room []byte
	for i := range b.items {
		it, f := &b.items[i], &m.files[i]
		*f = batchFile{name: it.entry.path, size: uint32(it.entry.Size), modified: it.entry.ModTime}
		if it.compare {
			if room == nil {
				room = make([]byte, maxSmall)
			}
			f.print, it.local = it.dir.Fingerprint(&it.entry.Entry, room)
			f.has = it.local != nil
		}
	}
	return m
}

// fetchBatch requests a batch and writes its files. It returns the written files, and the files to
// receive again. If the peer does not respond, it may still write to the slot, so the slot's memory
// is not reused.
func (t *treeDownload) fetchBatch(ctx context.Context, b *batch, request *fileBatch, s *slot, start time.Time) (written []smallFile, again []item, err error) {
	if err := t.limiter.wait(ctx, b.size); err != nil {
		return nil, nil, err
	}
	var answer *fileBatched
	err = t.peer.withProcess(ctx, func(proc *process) error {
		err := s.grantTo(t.peer, proc)
		if err == nil {
			request.grant, request.stage = s.grant.Number(), s.grant.Region()
			answer, err = ask[*fileBatched](ctx, proc, t.peer.requests, func(id uint32) []byte {
				request.id = id
				return request.encode()
			})
			if err != nil {
				err = errors.Join(err, s.drop())
			}
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if len(answer.results) != len(b.items) {
		return nil, nil, fmt.Errorf("%w: %d results for %d files", rpc.ErrProtocol, len(answer.results), len(b.items))
	}
	room := s.buffer.mem.Bytes()
	for i, r := range answer.results {
		it := b.items[i]
		var content []byte
		if r.outcome == batchWritten {
			n := it.entry.Size
			content, room = room[:n:n], room[n:]
		} else {
			t.limiter.refund(it.entry.Size)
		}
		small, err := t.store(it, r, &request.files[i], content)
		switch {
		case errors.Is(err, chunk.ErrDigest):
			t.counts.bad.Add(1)
			t.peer.engine.counters.digestErrors.Add(1)
			again = append(again, it)
		case errors.Is(err, ErrChanged), errors.Is(err, chunk.ErrChanged):
			again = append(again, it)
		case err != nil:
			t.stored(it.entry, start, 0, err)
		case small != nil:
			written = append(written, smallFile{small, it.entry})
		default:
			t.peer.engine.counters.bytesReused.Add(uint64(it.entry.Size))
			t.stored(it.entry, start, 0, nil)
		}
	}
	return written, again, nil
}

// store writes a file of a batch under a temporary name, or keeps the equal local one.
func (t *treeDownload) store(it item, r batchResult, request *batchFile, content []byte) (*chunk.Small, error) {
	switch {
	case r.outcome == batchWritten:
		if f := t.peer.engine.chunkReceived; f != nil {
			f(0, content)
		}
		return it.dir.Write(&it.entry.Entry, content, r.digest)
	case r.outcome == batchSame && request.has && r.digest == request.print.Digest():
		if err := it.dir.Keep(&it.entry.Entry, it.local); err != nil {
			return nil, err
		}
		t.counts.chunks.Add(1)
		t.counts.moved.Add(it.entry.Size)
		t.counts.kept.Add(it.entry.Size)
		t.counts.unchanged.Add(1)
		return nil, nil
	case r.outcome == batchSame:
		return nil, fmt.Errorf("%w: a file that this side lacks is reported as equal", rpc.ErrProtocol)
	}
	return nil, fmt.Errorf("%w (the peer cannot read it)", rpc.Code(r.outcome-batchRefused).Err())
}

// smallFile is a written file of a batch.
type smallFile struct {
	*chunk.Small
	entry *treeEntry
}

// stored counts and reports a small file. bytes were moved; the rest already existed.
func (t *treeDownload) stored(e *treeEntry, start time.Time, bytes int64, err error) {
	t.received(path.Join(t.name, e.path), start, bytes, bytes < e.Size, err)
	if err != nil {
		t.omit(e.path, err)
	}
}

// commit flushes written files to disk, and renames each to its final name as soon as it is
// flushed, so that few must be received again after a kill.
func (t *treeDownload) commit(written []smallFile, start time.Time) {
	errs := make([]error, len(written))
	var next atomic.Int64
	var work sync.WaitGroup
	for range min(flushers, len(written)) {
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(written)); i = next.Add(1) - 1 {
				if errs[i] = written[i].Flush(); errs[i] != nil {
					errs[i] = errors.Join(errs[i], written[i].Discard())
				} else {
					errs[i] = written[i].Commit()
				}
			}
		})
	}
	work.Wait()
	for i, f := range written {
		if errs[i] == nil {
			t.counts.chunks.Add(1)
			t.counts.moved.Add(f.entry.Size)
			t.counts.sent.Add(1)
			t.peer.engine.counters.bytesReceived.Add(uint64(f.entry.Size))
		}
		t.stored(f.entry, start, f.entry.Size, errs[i])
	}
}
