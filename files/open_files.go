package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/transfer"
)

// openFiles holds the files that a peer's process has open on this side. Engine.mu guards it.
type openFiles struct {
	// files maps the peer's handles to files, including those being opened.
	files map[uint32]*openFile
	// released holds released handles, oldest first, for peers that repeat a request after losing the response.
	released []uint32
	// inProgress holds a channel for each grant with a chunk in progress. It is closed when the chunk is done.
	inProgress map[uint32]chan struct{}
	// uploads holds the peer's uploads, by its Export's name.
	uploads map[string]*upload
	// reading holds one token per chunk being read and sent.
	reading rpc.Limit
	// listing holds a token while a directory is read.
	listing rpc.Limit
	// listings are the partially listed directories, and walks the trees, oldest first.
	listings []listing
	walks    []*treeWalk
}

// listing is a directory being listed. A large one needs many responses, but is read once.
type listing struct {
	export *Export
	dir    string
	*chunk.Listing
}

// Limits of open files per process. Clients use a lower limit.
const (
	maxOpen  = 256
	maxOpens = maxOpen / 2
	maxEnded = 64
)

// openFile is a file opened by a peer.
type openFile struct {
	// name is the requested name.
	name string
	mu   sync.Mutex
	// export and source are nil until the file is open, and constant afterwards.
	export *Export
	source *chunk.Source
	// attributes describes the file. fresh is fileOpened.fresh.
	attributes chunk.Entry
	fresh      bool
	// chunks records the chunks read; left are missing.
	chunks chunk.Table[readChunk]
	left   int64
	// requested is set once a chunk was requested.
	requested bool
	// opened is the time of the request, sent the number of bytes moved to the peer.
	opened time.Time
	sent   int64
	// answer is the final response, once the peer has released the file.
	answer *fileEnded
	err    error
}

// readChunk is a chunk of an open file.
type readChunk struct {
	digest uint32
	read   bool
}

func (p *Peer) newProcess(id, incarnation uint64) *process {
	return &process{Process: p.link.NewProcess(id, incarnation), peer: p, state: openFiles{
		files: map[uint32]*openFile{}, inProgress: map[uint32]chan struct{}{}, uploads: map[string]*upload{}, reading: make(rpc.Limit, peerSlots),
		listing: make(rpc.Limit, 1),
	}}
}

// close closes the files of an exited process, and cancels its uploads.
func (v *process) close() {
	f, o := v.peer.engine, &v.state
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, st := range o.uploads {
		st.cancel()
	}
	for _, file := range o.files {
		go func() {
			if _, _, first := file.release(); first {
				v.peer.sent(file)
			}
		}()
	}
	clear(o.files)
	o.closeWalks(func(*treeWalk) bool { return true })
	o.released, o.listings = nil, nil
}

// reserve returns the file for a handle. It runs before the next message is handled, so that a release request finds the file. A request
// repeated after a lost session gets the same file.
func (f *Engine) reserve(proc *process, handle uint32, name string) (*openFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if proc.Over() {
		return nil, ErrPeerGone
	}
	o := &proc.state
	file := o.files[handle]
	switch {
	case file != nil && file.name != name:
		return nil, fmt.Errorf("%w: the handle is that of another file", ErrDenied)
	case file != nil:
	case len(o.files)-len(o.released) >= maxOpen:
		return nil, fmt.Errorf("%w: %d files are open", ErrBusy, maxOpen)
	default:
		file = &openFile{name: name}
		o.files[handle] = file
	}
	return file, nil
}

// abandon forgets a handle whose file could not be opened, unless the peer has released it. If the
// session is lost, the peer repeats the request or releases the handle.
func (f *Engine) abandon(ctx context.Context, proc *process, handle uint32, file *openFile) {
	if ctx.Err() != nil || !file.drop() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if proc.state.files[handle] == file {
		delete(proc.state.files, handle)
	}
}

// lookup returns an open file, or nil.
func (f *Engine) lookup(proc *process, handle uint32) *openFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return proc.state.files[handle]
}

// open opens a file, unless an earlier request has done so.
func (o *openFile) open(x *Export, inside string, want chunk.Want) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.answer != nil:
		return fmt.Errorf("%w: the file was given up", transfer.ErrRevoked)
	case o.source != nil:
		return nil
	}
	start := time.Now()
	source, err := chunk.OpenSource(x.root, inside)
	if err != nil {
		return err
	}
	if size := source.Size(); size > MaxFileSize {
		return errors.Join(fmt.Errorf("%w: the file has %d bytes, at most %d", ErrTooLong, size, int64(MaxFileSize)), source.Close())
	}
	entry := source.Entry()
	if entry.Name = inside; want != (chunk.Want{}) {
		if err := source.Add(&entry, want); err != nil {
			return errors.Join(err, source.Close())
		}
	}
	entry.Name = path.Base(o.name)
	o.attributes, o.fresh = entry, isFresh(entry.ModTime, start)
	o.export, o.source, o.left, o.opened = x, source, chunk.Count(source.Size()), time.Now()
	o.chunks = chunk.NewTable[readChunk](o.left)
	return nil
}

// drop prevents an unopened file from being opened, and reports whether it did.
func (o *openFile) drop() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.source != nil || o.answer != nil {
		return false
	}
	o.answer, o.err = &fileEnded{}, fmt.Errorf("%w: it was not open", transfer.ErrRevoked)
	return true
}

// isOpen reports whether chunks can be read.
func (o *openFile) isOpen() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.source != nil && o.answer == nil
}

// request records a request for a chunk, and reports whether chunks can be read.
func (o *openFile) request() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requested = true
	return o.source != nil && o.answer == nil
}

// release checks that the file is unchanged and closes it. An unopened file stays closed.
func (o *openFile) release() (answer fileEnded, err error, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answer == nil {
		first = true
		o.answer = &fileEnded{}
		if o.source == nil {
			o.err = fmt.Errorf("%w: it was not open", transfer.ErrRevoked)
			return *o.answer, o.err, first
		}
		if o.left == 0 {
			o.answer.hasSum = true
			o.answer.sum = chunk.Total(o.source.Size(), func(k int64) uint32 { return o.chunks.Get(k).digest })
		}
		o.err = o.source.Check()
		_ = o.source.Close() // it was only read
		o.chunks = chunk.Table[readChunk]{}
	}
	return *o.answer, o.err, first
}

// moved counts bytes sent to the peer.
func (o *openFile) moved(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent += int64(n)
}

// recordChunk records the digest of a chunk after reading it.
func (o *openFile) recordChunk(k int64, digest uint32, length int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answer != nil {
		return
	}
	c := o.chunks.At(k)
	if c.digest = digest; !c.read {
		c.read = true
		o.left--
		if o.export.upload != nil {
			o.export.upload.served.Add(int64(length))
		}
	}
}

// answerOpen returns the response to an open request.
func (v *process) answerOpen(ctx context.Context, m *fileOpen, file *openFile) []byte {
	start := time.Now()
	entry, offered, err := v.opened(ctx, m, file)
	if err != nil && ctx.Err() == nil && !offered {
		v.peer.report("get", m.name, start, 0, err)
	}
	if err != nil || entry.Mode.IsDir() {
		v.peer.engine.abandon(ctx, v, m.handle, file)
	}
	if err != nil {
		return refuse(m.id, err)
	}
	return (&fileOpened{id: m.id, fresh: file.fresh, entry: fileEntry{Entry: entry}}).encode()
}

// answerDescribe returns the response to an open request without a handle.
func (v *process) answerDescribe(ctx context.Context, m *fileOpen) []byte {
	file := &openFile{name: m.name}
	entry, _, err := v.opened(ctx, m, file)
	_, _, _ = file.release() // no chunk was read
	if err != nil {
		return refuse(m.id, err)
	}
	return (&fileOpened{id: m.id, entry: fileEntry{Entry: entry}}).encode()
}

// opened opens a file and describes it. A directory is only described. For an already open file, the original description is returned.
// offered is set for the secret name of an upload by Put.
func (v *process) opened(ctx context.Context, m *fileOpen, file *openFile) (entry chunk.Entry, offered bool, err error) {
	if file.isOpen() {
		return file.attributes, false, nil
	}
	x, inside, err := v.resolve(ctx, m.name, Read)
	if err != nil {
		return entry, isSecretName(m.name), err
	}
	offered = x.upload != nil
	want := x.upload.attributes(m.want)
	info, err := x.root.Stat(inside)
	if err != nil {
		return entry, offered, err
	}
	entry = chunk.Entry{Name: path.Base(m.name), Mode: fs.ModeDir | info.Mode().Perm(), ModTime: info.ModTime()}
	if info.IsDir() {
		at := chunk.Entry{Name: inside}
		err := at.Add(x.root, info, want)
		entry.Owner, entry.Xattrs = at.Owner, at.Xattrs
		return entry, offered, err
	}
	if err := file.open(x, inside, want); err != nil {
		return entry, offered, err
	}
	return file.attributes, offered, nil
}

// answerDone returns the response to a release request.
func (v *process) answerDone(m *fileDone) []byte {
	f := v.peer.engine
	file := f.lookup(v, m.handle)
	if file == nil {
		return refuse(m.id, ErrNotFound)
	}
	answer, err, first := file.release()
	if first {
		v.peer.sent(file)
		f.mu.Lock()
		if o := &v.state; o.files[m.handle] == file {
			if o.released = append(o.released, m.handle); len(o.released) > maxEnded {
				delete(o.files, o.released[0])
				o.released = o.released[1:]
			}
		}
		f.mu.Unlock()
	}
	if err != nil {
		return refuse(m.id, err)
	}
	answer.id = m.id
	return answer.encode()
}
