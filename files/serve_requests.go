package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/transfer"
)

// request handles a message. For a request it returns the function that responds. An error closes the session.
func (v *process) request(m any) (answer func(ctx context.Context) []byte, err error) {
	switch m := m.(type) {
	case *fileOpen:
		if m.handle == 0 {
			return func(ctx context.Context) []byte { return v.answerDescribe(ctx, m) }, nil
		}
		file, err := v.peer.engine.reserve(v, m.handle, m.name) // before the next message, which may release it
		return func(ctx context.Context) []byte {
			if err != nil {
				return refuse(m.id, err)
			}
			return v.answerOpen(ctx, m, file)
		}, nil
	case *fileList:
		return func(ctx context.Context) []byte { return v.answerList(ctx, m) }, nil
	case *fileChunk:
		r, err := v.peer.transfer.OpenGrant(m.grant, &m.stage, Write) // before the next message, which may revoke it
		return func(ctx context.Context) []byte { return v.answerChunk(ctx, r, m) }, err
	case *fileDone:
		return func(context.Context) []byte { return v.answerDone(m) }, nil
	case *fileTree:
		return func(ctx context.Context) []byte { return v.answerTree(ctx, m) }, nil
	case *fileBatch:
		r, err := v.peer.transfer.OpenGrant(m.grant, &m.stage, Write)
		return func(ctx context.Context) []byte { return v.answerBatch(ctx, r, m) }, err
	case *filePut:
		return func(ctx context.Context) []byte { return v.answerPut(ctx, m) }, nil
	case *rpc.Unknown:
		text := fmt.Sprintf("this side speaks version %d of the protocol for files", version)
		return func(context.Context) []byte {
			return (&rpc.Refusal{ID: m.ID, Code: rpc.UnknownRequest, Text: text}).Encode()
		}, nil
	case *rpc.Refusal:
		v.Answer(m.ID, m)
	case *fileOpened:
		v.Answer(m.id, m)
	case *fileEntries:
		v.Answer(m.id, m)
	case *fileChunked:
		v.peer.received.Store(&m.rails)
		v.Answer(m.id, m)
	case *fileEnded:
		v.Answer(m.id, m)
	case *fileTreed:
		v.testHook(m)
		v.Answer(m.id, m)
	case *fileBatched:
		v.peer.received.Store(&m.rails)
		v.testHook(m)
		v.Answer(m.id, m)
	case *fileStored:
		v.Answer(m.id, m)
	}
	return nil, nil
}

// testHook calls the hook of tests.
func (v *process) testHook(m any) {
	if f := v.peer.engine.received; f != nil {
		f(m)
	}
}

// refuse returns the response to a failed request. A closing side does not respond: the peer is
// notified, and sends the request to the next process.
func refuse(id uint32, err error) []byte {
	if errors.Is(err, ErrClosed) {
		return nil
	}
	code, text := explain(err)
	return (&rpc.Refusal{ID: id, Code: code, Text: text}).Encode()
}

// explain returns an error for the peer. Local paths in errors of the operating system are not revealed.
func explain(err error) (c rpc.Code, text string) {
	c, text = rpc.Failed, err.Error()
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		text = fmt.Sprintf("%s: %v", e.Op, e.Err) // omits the local path
	}
	switch {
	case errors.Is(err, ErrDenied), errors.Is(err, fs.ErrPermission), errors.Is(err, chunk.ErrKind), errors.Is(err, chunk.ErrName), errors.Is(err, chunk.ErrForeign):
		c = rpc.Denied
	case errors.Is(err, ErrChanged), errors.Is(err, chunk.ErrChanged):
		c = rpc.Changed
	case errors.Is(err, ErrDigest), errors.Is(err, chunk.ErrDigest):
		c = rpc.Digest
	case errors.Is(err, ErrBusy), errors.Is(err, chunk.ErrBusy):
		c = rpc.Busy
	case errors.Is(err, transfer.ErrRevoked):
		c = rpc.Revoked
	case errors.Is(err, ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), isEscape(err):
		c, text = rpc.NotFound, ErrNotFound.Error()
	}
	return c, text
}

// isEscape reports whether an os.Root rejected a path that leads outside it. That error is not
// exported.
func isEscape(err error) bool {
	var e *fs.PathError
	return errors.As(err, &e) && e.Err.Error() == "path escapes from parent"
}

// has reports whether the requester already has b with the given digest.
func (m *fileChunk) has(b []byte, digest uint32) bool {
	if m.state == cachedNone || m.print.Digest() != digest {
		return false
	}
	return m.state == cachedDigest || m.print == chunk.FingerprintOf(b, digest)
}

// answerChunk returns the response to a chunk request: it reads the chunk, and writes it to the peer's memory unless the peer has it.
func (v *process) answerChunk(ctx context.Context, r *transfer.Remote, m *fileChunk) []byte {
	f := v.peer.engine
	file, reading := f.lookup(v, m.handle), v.state.reading
	switch {
	case file == nil || !file.request():
		return refuse(m.id, fmt.Errorf("%w: no such open file", transfer.ErrRevoked))
	case file.export.closed.Load():
		return refuse(m.id, fmt.Errorf("%w: the export is closed", transfer.ErrRevoked))
	case int64(m.index) >= chunk.Count(file.source.Size()):
		return refuse(m.id, fmt.Errorf("%w: chunk %d", transfer.ErrRange, m.index))
	}
	release, err := v.claimGrant(ctx, m.grant)
	if err != nil {
		return refuse(m.id, err)
	}
	defer release()
	slot, err := f.reading.take(ctx, f.cfg.Transfer, reading)
	if err != nil {
		return refuse(m.id, err)
	}
	defer f.reading.release(slot, reading)
	n, digest, zero, err := file.source.Read(int64(m.index), slot.bytes())
	if err != nil {
		return refuse(m.id, err)
	}
	answer := fileChunked{id: m.id, digest: digest}
	switch {
	case m.has(slot.bytes()[:n], digest):
		answer.origin = chunkSame
	case zero:
		answer.origin = chunkZero
	default:
		if file.export.upload != nil {
			err = file.export.upload.limiter.wait(ctx, int64(n))
		}
		if err != nil {
			break
		}
		if err = v.peer.transfer.Batch().Put(r.At(0), slot.view(n)).Do(ctx); err == nil {
			f.counters.bytesSent.Add(uint64(n))
			file.moved(n)
		}
	}
	if err != nil {
		return refuse(m.id, err)
	}
	file.recordChunk(int64(m.index), digest, n)
	answer.rails = v.peer.writtenByRail()
	return answer.encode()
}

// claimGrant reserves a grant's memory for one request, until release. After a lost session, the
// peer repeats a request while the first may still be running; the second waits for it. A request
// whose session is lost fails, because the peer may have reused the memory for another chunk. A
// late write therefore never hits reused memory.
func (v *process) claimGrant(ctx context.Context, grant uint32) (release func(), err error) {
	f := v.peer.engine
	mine := make(chan struct{})
	for {
		f.mu.Lock()
		o := &v.state
		if v.Over() || ctx.Err() != nil {
			f.mu.Unlock()
			return nil, cmp.Or(context.Cause(ctx), ErrRestarted)
		}
		other := o.inProgress[grant]
		if other == nil {
			o.inProgress[grant] = mine
		}
		f.mu.Unlock()
		if other == nil {
			return func() {
				f.mu.Lock()
				delete(o.inProgress, grant)
				f.mu.Unlock()
				close(mine)
			}, nil
		}
		select {
		case <-other:
		case <-ctx.Done():
		}
	}
}
