package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/transfer"
)

// openFiles are the files that a process of a peer has open at this side. Engine.mu guards it.
type openFiles struct {
	// files are by the handle that the peer chose. Those that are being opened are here too.
	files map[uint32]*openFile
	// ended has handles that were given up, the oldest first: a peer that lost the answer asks again.
	ended []uint32
	// claimed has a channel for each grant that a chunk is being read for, or written to. It is closed when that has ended.
	claimed map[uint32]chan struct{}
	// storing are the files that the peer puts here, by the name of the peer's Export.
	storing map[string]*storing
	// reading has a token for each chunk that is being read and sent.
	reading rpc.Limit
	// listing has a token while a directory is read.
	listing rpc.Limit
	// listings are the directories of which the peer has seen a part, the oldest first.
	listings []listing
}

// listing is a directory that a peer lists. A large one has many answers, and is read once for all of them.
type listing struct {
	export *Export
	dir    string
	*chunk.Listing
}

// Bounds of what a process may have open. A side that asks keeps to less.
const (
	maxOpen  = 256
	maxOpens = maxOpen / 2
	maxEnded = 64
)

// openFile is a file that a peer reads.
type openFile struct {
	// name is what the peer asked for.
	name string
	mu   sync.Mutex
	// export and source are nil until the file is open. They do not change then.
	export *Export
	source *chunk.Source
	// chunks are those that were read, of which left are missing.
	chunks chunk.Table[readChunk]
	left   int64
	// answer is the end, once the peer has given up the file.
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
		files: map[uint32]*openFile{}, claimed: map[uint32]chan struct{}{}, storing: map[string]*storing{}, reading: make(rpc.Limit, peerSlots),
		listing: make(rpc.Limit, 1),
	}}
}

// close closes the files of a process that has ended, and cancels what it puts here.
func (v *process) close() {
	f, o := v.peer.engine, &v.state
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, st := range o.storing {
		st.cancel()
	}
	for _, file := range o.files {
		go func() { _, _, _ = file.end() }() // nobody requests the result
	}
	clear(o.files)
	o.ended, o.listings = nil, nil
}

// reserve returns the file of a handle. It is called before the next message is taken, so that a request to give the file up finds it. After a
// lost session the peer asks again, and gets the same file.
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
	case len(o.files)-len(o.ended) >= maxOpen:
		return nil, fmt.Errorf("%w: %d files are open", ErrBusy, maxOpen)
	default:
		file = &openFile{name: name}
		o.files[handle] = file
	}
	return file, nil
}

// abandon forgets a handle that was not opened, unless the peer has given it up. If the session has ended, the peer has asked again or will give the handle up.
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

// lookup returns an open file, nil if there is none.
func (f *Engine) lookup(proc *process, handle uint32) *openFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return proc.state.files[handle]
}

// open opens a file, unless an earlier request has.
func (o *openFile) open(x *Export, inside string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.answer != nil:
		return fmt.Errorf("%w: the file was given up", transfer.ErrRevoked)
	case o.source != nil:
		return nil
	}
	source, err := chunk.OpenSource(x.root, inside)
	if err != nil {
		return err
	}
	if size := source.Size(); size > MaxFileSize {
		return errors.Join(fmt.Errorf("%w: the file has %d bytes, at most %d", ErrTooLong, size, int64(MaxFileSize)), source.Close())
	}
	o.export, o.source, o.left = x, source, chunk.Count(source.Size())
	o.chunks = chunk.NewTable[readChunk](o.left)
	return nil
}

// drop makes a file that is not open one that cannot be opened, and reports whether it did.
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

// end checks that the file is still the same and closes it. One that was not opened will not be.
func (o *openFile) end() (answer fileEnded, err error, first bool) {
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
			o.answer.known = true
			o.answer.sum = chunk.Total(o.source.Size(), func(k int64) uint32 { return o.chunks.Get(k).digest })
		}
		o.err = o.source.Check()
		_ = o.source.Close() // it was only read
		o.chunks = chunk.Table[readChunk]{}
	}
	return *o.answer, o.err, first
}

// note keeps the digest of a chunk that was read.
func (o *openFile) note(k int64, digest uint32, length int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answer != nil {
		return
	}
	c := o.chunks.At(k)
	if c.digest = digest; !c.read {
		c.read = true
		o.left--
		if o.export.offered != nil {
			o.export.offered.served.Add(int64(length))
		}
	}
}

// open answers the request for a file or a directory.
func (v *process) open(ctx context.Context, m *fileOpen, file *openFile) []byte {
	entry, err := v.opened(ctx, m, file)
	if err != nil || entry.Mode.IsDir() {
		v.peer.engine.abandon(ctx, v, m.handle, file)
	}
	if err != nil {
		return refuse(m.id, err)
	}
	return (&fileOpened{id: m.id, entry: fileEntry{Entry: entry}}).encode()
}

// opened opens a file and describes it. A directory is only described. A file that is open already is described as it was opened.
func (v *process) opened(ctx context.Context, m *fileOpen, file *openFile) (entry chunk.Entry, err error) {
	if file.isOpen() {
		return file.entry(), nil
	}
	x, inside, err := v.resolve(ctx, m.name, Read)
	if err != nil {
		return entry, err
	}
	info, err := x.root.Stat(inside)
	if err != nil {
		return entry, err
	}
	entry = chunk.Entry{Name: path.Base(m.name), Mode: fs.ModeDir | info.Mode().Perm(), ModTime: info.ModTime()}
	if info.IsDir() {
		return entry, nil
	}
	if err := file.open(x, inside); err != nil {
		return entry, err
	}
	return file.entry(), nil
}

// entry describes a file that is or was open.
func (o *openFile) entry() chunk.Entry {
	return chunk.Entry{Name: path.Base(o.name), Mode: o.source.Mode(), Size: o.source.Size(), ModTime: o.source.ModTime()}
}

// done answers the request to give up a file.
func (v *process) done(m *fileDone) []byte {
	f := v.peer.engine
	file := f.lookup(v, m.handle)
	if file == nil {
		return refuse(m.id, ErrNotFound)
	}
	answer, err, first := file.end()
	if first {
		f.mu.Lock()
		if o := &v.state; o.files[m.handle] == file {
			if o.ended = append(o.ended, m.handle); len(o.ended) > maxEnded {
				delete(o.files, o.ended[0])
				o.ended = o.ended[1:]
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
