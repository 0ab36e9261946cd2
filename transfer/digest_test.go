package transfer

import (
	"errors"
	"testing"

	"ibverbx/cuda/cudatest"
)

// freeze blocks a host's digest computations until thaw.
func (h *host) freeze() (thaw func()) {
	for range cap(h.workers) {
		h.workers <- struct{}{}
	}
	return func() {
		for range cap(h.workers) {
			<-h.workers
		}
	}
}

func asError[T error](err error, target *T) bool { return errors.As(err, target) }

// verifying waits until a transfer compares digests.
func verifying(t *testing.T, tr *Transfer) {
	t.Helper()
	eventually(t, "the transfer compares digests", func() bool { return tr.Status().Phase == Verifying })
}

func TestVerify(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		const size = 3<<20 + 17
		p := newPair(t, n, size)
		fill(p.local.Bytes(), 13)
		wantOK(t, "Put", p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("put")).Do(soon(t)))
		wantNote(t, p.there, "put")
		wantSame(t, "the peer's segment", p.target.Bytes(), p.local.Bytes())
		p.publish(t, 14)
		wantOK(t, "Get", p.peer.Batch().Verify().Get(p.local.Slice(0, size), p.remote.At(0)).Do(soon(t)))
		wantSame(t, "the segment", p.local.Bytes(), p.target.Bytes())
	})
}

// TestDigestCatchesFlippedByte changes one byte after it was moved: at the peer, and in the source.
func TestDigestCatchesFlippedByte(t *testing.T) { catchesFlippedByte(t, nil) }

// TestGPUDigestCatchesFlippedByte is TestDigestCatchesFlippedByte with GPU memory.
func TestGPUDigestCatchesFlippedByte(t *testing.T) { catchesFlippedByte(t, cudatest.Open(t)) }

func catchesFlippedByte(t *testing.T, d device) {
	const size, at = 3 << 20, 2<<20 + 5
	p := newPairOn(t, memoryNetwork(2), size, d, d)
	p.local.write(t, 0, size, 1)
	for _, c := range []struct {
		name    string
		host    *host
		segment *Segment
	}{
		{"at the peer", p.there, p.target},
		{"in the source", p.here, p.local},
	} {
		thaw := c.host.freeze()
		tr := p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("wrong")).Submit(soon(t))
		verifying(t, tr)
		c.segment.flip(t, at)
		thaw()
		err := tr.Wait(soon(t))
		wantErr(t, c.name, err, ErrDigest)
		var e *Error
		if !errors.As(err, &e) || e.Op != "put" || e.Name != "target" || e.Index != 0 || e.Offset != 2<<20 {
			t.Errorf("%s: got %+v, want an Error of put that names target, block 0 and offset %d", c.name, e, 2<<20)
		}
		c.segment.flip(t, at)
	}
	wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("right")))
	wantNote(t, p.there, "right")
	if s := p.here.Stats(); s.DigestErrors != 2 || s.Failed != 2 || s.Transfers != 3 || s.Notified != 3 {
		t.Errorf("Stats: got %+v, want 3 transfers, two of which failed because of digests", s)
	}
}

// TestReadAgain: with Verify, local data corrupted after the read is read again.
func TestReadAgain(t *testing.T) {
	const size = 1 << 20
	p := newPair(t, memoryNetwork(1), size)
	p.publish(t, 15)
	thaw := p.here.freeze()
	tr := p.peer.Batch().Verify().Get(p.local.Slice(0, size), p.remote.At(0)).Submit(soon(t))
	verifying(t, tr)
	p.local.Bytes()[77] ^= 1
	thaw()
	wantOK(t, "Wait", tr.Wait(soon(t)))
	wantSame(t, "the segment", p.local.Bytes(), p.target.Bytes())
	if s := p.here.Stats(); s.Retries != 1 || s.DigestErrors != 0 || s.Bytes != size {
		t.Errorf("Stats: got %+v, want one retry and %d bytes", s, size)
	}
}

// TestReadAgainOnce reads two blocks to the same offset in sequence, so the first one can never verify.
func TestReadAgainOnce(t *testing.T) {
	const size, block = 24 << 20, 1 << 20
	p := newPair(t, memoryNetwork(1), size)
	fill(p.target.Bytes()[:block], 16)
	b := p.peer.Batch().Verify().Get(p.local.Slice(0, block), p.remote.At(0)).Get(p.local.Slice(block, size-2*block), p.remote.At(block))
	err := b.Get(p.local.Slice(0, block), p.remote.At(size-block)).Do(soon(t))
	var e *Error
	if !errors.Is(err, ErrDigest) || !errors.As(err, &e) || e.Op != "get" || e.Index != 0 {
		t.Errorf("got error %v, want %v of block 0", err, ErrDigest)
	}
}

func TestVerifyBeforeTold(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	thaw := p.there.freeze()
	tr := p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, 4096)).Notify([]byte("verified")).Submit(soon(t))
	verifying(t, tr)
	quiet(t, p.there, "before the digests were compared")
	lose(p.peer) // the request is retransmitted
	thaw()
	wantNote(t, p.there, "verified")
	wantOK(t, "Wait", tr.Wait(soon(t)))

	thaw = p.there.freeze()
	tr = p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, 4096)).Submit(soon(t))
	verifying(t, tr)
	tr.Cancel()
	wantErr(t, "Wait of a canceled transfer", tr.Wait(soon(t)), ErrCanceled)
	thaw()

	session := p.peer.session()
	thaw = p.here.freeze()
	tr = p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, 4096)).Submit(soon(t))
	verifying(t, tr)
	tr.Cancel()
	wantErr(t, "Wait of a canceled transfer", tr.Wait(soon(t)), ErrCanceled)
	thaw()
	if p.peer.session() != session {
		t.Error("the session has ended")
	}

	writeOnly := open2(t, p.peer, "target", Write)
	err := p.peer.Batch().Verify().Put(writeOnly.At(0), p.local.Slice(0, 4096)).Do(soon(t))
	wantErr(t, "Verify of a segment that may not be read", err, ErrDenied)
}

// TestDigestsAcrossSessions: retransmitting many digest requests in later sessions does not exceed the limit.
func TestDigestsAcrossSessions(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 64*64)
	thaw := p.there.freeze()
	var transfers []*Transfer
	for i := range int64(64) {
		tr := p.peer.Batch().Verify().Put(p.remote.At(i*64), p.local.Slice(i*64, 64)).Submit(soon(t))
		verifying(t, tr)
		transfers = append(transfers, tr)
	}
	for session := uint64(1); session <= 3; session++ {
		eventually(t, "all questions are asked", func() bool {
			p.back.link.Mu.Lock()
			defer p.back.link.Mu.Unlock()
			return p.back.number == session && len(p.back.link.Serving) == maxRequests
		})
		if session < 3 {
			lose(p.peer)
		}
	}
	thaw()
	for _, tr := range transfers {
		wantOK(t, "Wait", tr.Wait(soon(t)))
	}
	if got := p.peer.Node().Stats().Sessions; got != 3 {
		t.Errorf("there were %d sessions, want 3", got)
	}
}
