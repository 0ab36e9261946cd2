package transfer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"ibverbx/internal/rpc"
	"ibverbx/verbs"
)

// castagnoli is the CRC32C table.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// verifyDigests compares the digests of both sides after all blocks have moved. It runs in its own goroutine.
func (t *Transfer) verifyDigests() {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	t.mu.Lock()
	t.stop = stop
	if t.cause != nil {
		stop(t.cause)
	}
	t.mu.Unlock()
	again := !t.retried
	block, offset, err := t.compare(ctx)
	t.mu.Lock()
	t.stop = nil
	if t.cause != nil {
		err, again = t.cause, false
	}
	t.mu.Unlock()
	switch {
	case err == nil:
		t.blocksDone()
	case again && errors.Is(err, ErrDigest) && t.batch.blocks[block].Opcode == verbs.OpRDMARead:
		t.retryReads()
	default:
		t.finish(t.blockError(block, offset, err))
	}
}

// retryReads resubmits all blocks.
func (t *Transfer) retryReads() {
	t.phase.Store(uint32(Moving))
	t.retried = true
	t.peer.link.Mu.Lock()
	t.peer.counts.retries.Add(1)
	t.peer.link.Mu.Unlock()
	t.submit()
}

// blockRange is a range of a block with one digest.
type blockRange struct {
	block  int
	offset uint64 // in the block
	length uint32
}

// compare returns the first range whose digests differ, with ErrDigest, or the first range with another error.
func (t *Transfer) compare(ctx context.Context) (block int, offset uint64, err error) {
	var pieces []blockRange
	for i := range t.batch.blocks {
		b := &t.batch.blocks[i]
		for off := uint64(0); off < b.Length; off += maxRange {
			pieces = append(pieces, blockRange{i, off, uint32(min(maxRange, b.Length-off))})
			if len(pieces) == maxRanges {
				if at, err := t.compareSome(ctx, pieces); err != nil {
					return pieces[at].block, pieces[at].offset, err
				}
				pieces = pieces[:0]
			}
		}
	}
	if len(pieces) > 0 {
		if at, err := t.compareSome(ctx, pieces); err != nil {
			return pieces[at].block, pieces[at].offset, err
		}
	}
	return 0, 0, nil
}

// compareSome requests the peer's digests of ranges, computes the local ones meanwhile, and returns the first range that differs.
func (t *Transfer) compareSome(ctx context.Context, pieces []blockRange) (at int, err error) {
	ranges := make([]digestRange, len(pieces))
	for i, c := range pieces {
		ranges[i] = digestRange{t.batch.endpoints[c.block].remote.number, t.batch.blocks[c.block].RemoteOffset + c.offset, c.length}
	}
	own := make(chan localSums, 1)
	go func() { own <- t.localSums(ctx, pieces) }()
	m, err := t.proc.Ask(ctx, t.peer.requests, func(id uint32) []byte { return (&digest{id, ranges}).encode() })
	ours := <-own // the memory is in use until then
	if err == nil {
		at, err = ours.at, ours.err
	}
	if err != nil {
		return at, err
	}
	sums := ours.sums
	theirs, ok := m.(*digests)
	if !ok || len(theirs.sums) != len(sums) {
		return 0, fmt.Errorf("%w: the peer's response", errProtocol)
	}
	for i := range sums {
		if sums[i] != theirs.sums[i] {
			return i, fmt.Errorf("%w: %#08x here and %#08x at the peer", ErrDigest, sums[i], theirs.sums[i])
		}
	}
	return 0, nil
}

// localSums holds the local digests. err is the error at range at.
type localSums struct {
	sums []uint32
	at   int
	err  error
}

func (t *Transfer) localSums(ctx context.Context, pieces []blockRange) localSums {
	own := localSums{sums: make([]uint32, len(pieces))}
	for i, c := range pieces {
		off := t.batch.blocks[c.block].LocalOffset + c.offset
		if own.sums[i], own.err = t.peer.engine.crc(ctx, t.batch.endpoints[c.block].segment.mem, off, c.length); own.err != nil {
			own.at = i
			break
		}
	}
	return own
}

// crc returns the digest of n bytes at off, at most maxRange. The result is undefined if ctx is done. Device memory is copied first. At
// most cap(e.workers) goroutines compute concurrently.
func (e *Engine) crc(ctx context.Context, mem *verbs.Memory, off uint64, n uint32) (uint32, error) {
	if e.workers.Take(ctx) != nil {
		return 0, nil
	}
	defer e.workers.Give()
	if mem.Device() == nil {
		return crc32.Checksum(mem.Bytes()[off:][:n], castagnoli), nil
	}
	stage := e.stages.Get().(*[maxRange]byte)
	defer e.stages.Put(stage)
	if _, err := mem.ReadAt(stage[:n], int64(off)); err != nil {
		return 0, fmt.Errorf("copy memory of %s for its digest: %w", mem.Device().Name(), err)
	}
	return crc32.Checksum(stage[:n], castagnoli), nil
}

// answerDigest returns the response to a digest request. The peer must have Read access. Each peer uses one goroutine at a time.
func (p *Peer) answerDigest(ctx context.Context, proc *process, m *digest) []byte {
	if p.digesting.Take(ctx) != nil {
		return nil
	}
	defer p.digesting.Give()
	sums := make([]uint32, len(m.ranges))
	for i, r := range m.ranges {
		p.link.Mu.Lock()
		l := proc.granted[r.grant]
		ok := l != nil && l.segment != nil && !l.revoking && l.access&Read != 0 && l.segment.enter()
		p.link.Mu.Unlock()
		if !ok {
			return (&rpc.Refusal{ID: m.id, Code: rpc.NotFound, Text: "the segment is not granted for reading"}).Encode()
		}
		if size := uint64(l.segment.Len()); r.offset > size || uint64(r.length) > size-r.offset {
			l.segment.leave()
			return (&rpc.Refusal{ID: m.id, Code: rpc.Range, Text: "a range is outside its segment"}).Encode()
		}
		var err error
		sums[i], err = p.engine.crc(ctx, l.segment.mem, r.offset, r.length)
		l.segment.leave()
		if err != nil {
			return (&rpc.Refusal{ID: m.id, Code: rpc.Failed, Text: "the device cannot copy the memory of the segment"}).Encode()
		}
		if ctx.Err() != nil {
			return nil // the session has ended
		}
	}
	return (&digests{m.id, sums}).encode()
}
