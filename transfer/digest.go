package transfer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"ibverbx/verbs"
)

// castagnoli is the polynomial of CRC32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// check compares the digests of both sides after all blocks were moved. It runs in a goroutine of its own.
func (t *Transfer) check() {
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
		t.moved()
	case again && errors.Is(err, ErrDigest) && t.load.blocks[block].Opcode == verbs.OpRDMARead:
		t.readAgain()
	default:
		t.finish(t.blockError(block, offset, err))
	}
}

// readAgain submits all blocks once more.
func (t *Transfer) readAgain() {
	t.phase.Store(uint32(Moving))
	t.retried = true
	t.submit()
}

// piece is a range of a block whose digest is compared.
type piece struct {
	block  int
	offset uint64 // in the block
	length uint32
}

// compare returns the first piece whose digests differ, with ErrDigest, or where another error happened.
func (t *Transfer) compare(ctx context.Context) (block int, offset uint64, err error) {
	var pieces []piece
	for i := range t.load.blocks {
		b := &t.load.blocks[i]
		for off := uint64(0); off < b.Length; off += maxRange {
			pieces = append(pieces, piece{i, off, uint32(min(maxRange, b.Length-off))})
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

// compareSome asks the peer for the digests of pieces, computes this side's meanwhile, and returns the first piece that differs.
func (t *Transfer) compareSome(ctx context.Context, pieces []piece) (at int, err error) {
	ranges := make([]digestRange, len(pieces))
	for i, c := range pieces {
		ranges[i] = digestRange{t.load.parts[c.block].remote.number, t.load.blocks[c.block].RemoteOffset + c.offset, c.length}
	}
	own := make(chan []uint32, 1)
	go func() {
		sums := make([]uint32, len(pieces))
		for i, c := range pieces {
			b := t.load.parts[c.block].segment.Bytes()[t.load.blocks[c.block].LocalOffset+c.offset:]
			sums[i] = t.peer.engine.crc(ctx, b[:c.length])
		}
		own <- sums
	}()
	m, err := t.peer.ask(ctx, t.peer.asks, t.proc, func(id uint32) []byte { return (&digest{id, ranges}).encode() })
	sums := <-own // the memory is in use until then
	if err != nil {
		return 0, err
	}
	theirs, ok := m.(*digests)
	if !ok || len(theirs.sums) != len(sums) {
		return 0, fmt.Errorf("%w: the peer's answer", errProtocol)
	}
	for i := range sums {
		if sums[i] != theirs.sums[i] {
			return i, fmt.Errorf("%w: %#08x here and %#08x at the peer", ErrDigest, sums[i], theirs.sums[i])
		}
	}
	return 0, nil
}

// crc returns the digest of b, and nothing of use when ctx has ended. At most cap(e.workers) goroutines compute at a time.
func (e *Engine) crc(ctx context.Context, b []byte) uint32 {
	select {
	case e.workers <- struct{}{}:
		defer func() { <-e.workers }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return 0
	}
	return crc32.Checksum(b, castagnoli)
}

// sum answers a request for digests. The peer must have been lent the segments for reading. It has one goroutine at a time.
func (p *Peer) sum(ctx context.Context, proc *process, m *digest) []byte {
	select {
	case p.digesting <- struct{}{}:
		defer func() { <-p.digesting }()
	case <-ctx.Done():
		return nil
	}
	sums := make([]uint32, len(m.ranges))
	for i, r := range m.ranges {
		p.mu.Lock()
		l := proc.lent[r.grant]
		ok := l != nil && l.segment != nil && !l.revoking && l.access&Read != 0 && l.segment.enter()
		p.mu.Unlock()
		if !ok {
			return (&refusal{id: m.id, code: codeNotFound, text: "the segment is not lent for reading"}).encode()
		}
		b := l.segment.Bytes()
		if r.offset > uint64(len(b)) || uint64(r.length) > uint64(len(b))-r.offset {
			l.segment.leave()
			return (&refusal{id: m.id, code: codeRange, text: "a range is outside its segment"}).encode()
		}
		sums[i] = p.engine.crc(ctx, b[r.offset:r.offset+uint64(r.length)])
		l.segment.leave()
		if ctx.Err() != nil {
			return nil // the session has ended
		}
	}
	return (&digests{m.id, sums}).encode()
}
