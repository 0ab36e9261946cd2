package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"ibverbx/internal/chunk"
)

// windowChunks is the number of chunks that a remoteFile reads at once.
const windowChunks = 8

// remoteFile is a peer's open regular file. It buffers one window of contents.
type remoteFile struct {
	download *download
	ctx      context.Context
	// path is the remote name.
	path string
	info fileInfo

	mu sync.Mutex
	// from is zero while the file is not open, because the peer was restarted.
	from   source
	offset int64
	closed bool
	window memoryWindow
}

// openRemote opens a remote file, and returns nil for a directory.
func (p *Peer) openRemote(ctx context.Context, name string) (*remoteFile, error) {
	l, err := p.newDownload(TransferConfig{}, &counts{})
	if err != nil {
		return nil, err
	}
	from, err := l.open(ctx, name)
	if err != nil || from.entry.Mode.IsDir() {
		return nil, err
	}
	e := &from.entry
	f := &remoteFile{download: l, ctx: ctx, path: name, from: from}
	f.info.info = Info{Name: name, Mode: e.Mode, Size: e.Size, ModTime: e.ModTime}
	if e.Size > MaxFileSize {
		l.releaseLater(from)
		return nil, fmt.Errorf("%w: the file has %d bytes, at most %d", ErrTooLong, e.Size, int64(MaxFileSize))
	}
	return f, nil
}

// Stat implements fs.File.
func (f *remoteFile) Stat() (fs.FileInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, f.wrapError("stat", fs.ErrClosed)
	}
	return f.info, nil
}

// Read implements fs.File.
func (f *remoteFile) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.readAt("read", b, f.offset)
	f.offset += int64(n)
	return n, err
}

// ReadAt implements io.ReaderAt. Calls run one after the other.
func (f *remoteFile) ReadAt(b []byte, off int64) (n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off < 0 {
		return 0, f.wrapError("readat", fs.ErrInvalid)
	}
	for n < len(b) && err == nil {
		var k int
		k, err = f.readAt("readat", b[n:], off+int64(n))
		n += k
	}
	return n, err
}

// Seek implements io.Seeker.
func (f *remoteFile) Seek(offset int64, whence int) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.info.Size()
	default:
		return 0, f.wrapError("seek", fs.ErrInvalid)
	}
	switch {
	case f.closed:
		return 0, f.wrapError("seek", fs.ErrClosed)
	case offset < 0:
		return 0, f.wrapError("seek", fs.ErrInvalid)
	}
	f.offset = offset
	return offset, nil
}

// wrapError returns an error of an operation.
func (f *remoteFile) wrapError(op string, err error) error { return pathError(op, f.info.name, err) }

// readAt reads up to the end of a window. f.mu is held.
func (f *remoteFile) readAt(op string, b []byte, off int64) (int, error) {
	switch {
	case f.closed:
		return 0, f.wrapError(op, fs.ErrClosed)
	case len(b) == 0:
		return 0, nil
	case off >= f.info.Size():
		return 0, io.EOF
	}
	w := &f.window
	if off < w.first || off >= w.first+int64(len(w.b)) {
		if err := f.fill(off/chunk.Size, int64(len(b))); err != nil {
			w.b = w.b[:0]
			return 0, f.wrapError(op, err)
		}
	}
	return copy(b, w.b[off-w.first:]), nil
}

// fill reads the window that begins with chunk k. Sequential readers get whole windows; others get
// only the chunks they need.
func (f *remoteFile) fill(k, need int64) error {
	size, w := f.info.Size(), &f.window
	n := need/chunk.Size + 2
	if k*chunk.Size == w.first+int64(len(w.b)) {
		n = windowChunks
	}
	n = min(n, windowChunks, chunk.Count(size)-k)
	w.first, w.size = k*chunk.Size, size
	length := int(min(n*chunk.Size, size-w.first))
	if cap(w.b) < length {
		w.b = make([]byte, length)
	}
	w.b = w.b[:length]
	done := make(chan error, 1)
	e := f.download.peer.engine
	if !e.begin(func() {
		ctx, cancel := context.WithCancelCause(f.ctx)
		defer context.AfterFunc(e.ctx, func() { cancel(ErrClosed) })()
		done <- f.read(ctx, k, n)
		cancel(nil)
	}) {
		return ErrClosed
	}
	return <-done
}

// read reads n chunks. If the peer was restarted, the file is opened again.
func (f *remoteFile) read(ctx context.Context, k, n int64) (err error) {
	l := f.download
	if err := l.staged(ctx, int(n)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stage.close()) }()
	for {
		if f.from.proc == nil {
			if err := f.reopen(ctx); err != nil {
				return err
			}
		}
		err = l.chunks(ctx, f.from, &f.window, k, k+n, func(int64) *cachedChunk { return &cachedChunk{} })
		if !l.peer.mayReturn(err) {
			return err
		}
		f.from.release() // the peer's process has exited
		f.from = source{}
	}
}

// reopen opens the file in another process of the peer. If that has another file of the name, each read fails.
func (f *remoteFile) reopen(ctx context.Context) error {
	from, err := f.download.open(ctx, f.path)
	if err != nil {
		return err
	}
	if e, known := &from.entry, &f.info.info; e.Mode.IsDir() || e.Size != known.Size || !e.ModTime.Equal(known.ModTime) {
		f.download.releaseLater(from)
		return fmt.Errorf("%w: the peer was restarted and has another file of that name", ErrChanged)
	}
	f.from = from
	return nil
}

// Close implements fs.File. It returns ErrChanged if the file has changed since it was opened.
func (f *remoteFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return f.wrapError("close", fs.ErrClosed)
	}
	f.closed, f.window = true, memoryWindow{}
	if f.from.release == nil {
		return nil
	}
	if f.ctx.Err() != nil || f.download.peer.engine.isClosed() {
		f.download.releaseLater(f.from)
		return nil
	}
	_, err := ask[*fileEnded](f.ctx, f.from.proc, f.download.peer.requests, func(id uint32) []byte { return (&fileDone{id, f.from.handle}).encode() })
	if err != nil && f.ctx.Err() != nil {
		f.download.releaseLater(f.from)
		return nil
	}
	f.from.release()
	if err != nil && !errors.Is(err, ErrChanged) {
		err = nil // the peer's process has exited, and so has its open file
	}
	return f.wrapError("close", err)
}

// chunkStore stores received chunks, for example a *chunk.Target.
type chunkStore interface {
	Size() int64
	Keep(k int64, digest uint32) error
	Write(k int64, b []byte, digest uint32) error
	WriteZero(k int64) error
}

// memoryWindow is a section of a file in memory.
type memoryWindow struct {
	size int64
	// first is the offset of b in the file.
	first int64
	b     []byte
}

// Size implements chunkStore.
func (w *memoryWindow) Size() int64 { return w.size }

// chunk returns the memory for chunk k.
func (w *memoryWindow) chunk(k int64) []byte {
	return w.b[k*chunk.Size-w.first:][:chunk.Len(w.size, k)]
}

// Keep implements chunkStore. It always fails, because a window never holds chunks from elsewhere.
func (w *memoryWindow) Keep(int64, uint32) error { return chunk.ErrDigest }

// Write implements chunkStore. The digest covers the copy, which the peer cannot change.
func (w *memoryWindow) Write(k int64, b []byte, digest uint32) error {
	to := w.chunk(k)
	if copy(to, b); chunk.Digest(to) != digest {
		return fmt.Errorf("chunk %d: %w", k, chunk.ErrDigest)
	}
	return nil
}

// WriteZero implements chunkStore.
func (w *memoryWindow) WriteZero(k int64) error {
	clear(w.chunk(k))
	return nil
}
