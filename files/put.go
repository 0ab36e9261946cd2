package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
)

// offered is PutFile's state of the Export that the peer reads.
type offered struct {
	peer *Peer
	// served counts the bytes sent to the peer.
	served atomic.Int64
}

// PutFile starts uploading a local file or directory and returns immediately. The peer stores it as name, which must lie below one of its
// Exports with Write access. Missing directories are created. The peer fetches the data as GetFile does, with the same guarantees.
func (p *Peer) PutFile(file, name string, cfg TransferConfig) *Transfer {
	t, ctx := p.begin("put", name)
	t.offered = &offered{peer: p}
	t.run(func() error {
		if err := checkPath(name); err != nil {
			return err
		}
		x := &Export{engine: p.engine, cfg: ExportConfig{Name: secret(), Path: file}, offered: t.offered}
		if err := x.open(); err != nil {
			return err
		}
		if err := p.engine.publish(x); err != nil {
			return errors.Join(err, x.root.Close())
		}
		err := t.counts.measure(ctx, x.cfg.Path)
		if err == nil {
			err = t.offer(ctx, x, name, cfg)
		}
		return errors.Join(err, x.Close())
	})
	return t
}

// withdrawTimeout bounds a canceled upload's wait for the peer.
const withdrawTimeout = 2 * time.Second

// offer requests the peer to fetch an Export, and waits until it has.
func (t *Transfer) offer(ctx context.Context, x *Export, name string, cfg TransferConfig) error {
	ask, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		_ = x.Close()                         // the peer's requests for chunks fail, and so does its transfer
		time.AfterFunc(withdrawTimeout, stop) // unless the peer is disconnected
	})()
	m, _, err := askAny[*fileStored](ask, t.peer, t.peer.puts, func(id uint32) []byte {
		return (&filePut{id: id, fresh: cfg.Fresh, source: x.cfg.Name, name: name}).encode()
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	t.counts.kept.Store(int64(m.kept))
	t.counts.chunks.Store(int64(m.chunks))
	t.counts.bad.Store(int64(m.bad))
	return nil
}

// measure sets the total to the size of a local file, or of all files in a directory, and records the special files.
func (c *counts) measure(ctx context.Context, file string) error {
	return filepath.WalkDir(file, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if chunk.Special(d.Type()) {
			name, err = filepath.Rel(file, name)
			c.skipped.add(filepath.ToSlash(name))
		} else if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			c.total.Add(info.Size())
		}
		return cmp.Or(err, context.Cause(ctx))
	})
}

// storing is a file or directory that a peer uploads.
type storing struct {
	proc *process
	// ctx is canceled with the Engine, with the peer's process, and when another peer takes over.
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	counts counts
	err    error // valid when done is closed
}

// maxStoring limits the remembered uploads per process, including completed ones.
const maxStoring = 64

// store returns the response to an upload request. A repeated request in another session gets the response of the same transfer.
func (v *process) store(ctx context.Context, m *filePut) []byte {
	st, err := v.beginStoring(ctx, m)
	if err != nil {
		return refuse(m.id, err)
	}
	select {
	case <-st.done:
	case <-ctx.Done():
		return refuse(m.id, context.Cause(ctx)) // not sent: the session is lost
	}
	if st.err != nil {
		return refuse(m.id, st.err)
	}
	c := &st.counts
	return (&fileStored{m.id, uint64(c.kept.Load()), uint64(c.chunks.Load()), uint64(c.bad.Load())}).encode()
}

// beginStoring starts an upload, or returns the running one.
func (v *process) beginStoring(ctx context.Context, m *filePut) (*storing, error) {
	x, inside, err := v.resolve(ctx, m.name, Write)
	if err != nil {
		return nil, err
	}
	if x.file != "" || inside == "." {
		return nil, fmt.Errorf("%w: want a name below %q", ErrDenied, x.cfg.Name)
	}
	f := v.peer.engine
	for {
		st, other, fresh, err := f.enlist(v, m)
		switch {
		case err != nil:
			return nil, err
		case other != nil && other.proc.peer.service.Session() != nil && !other.proc.Over():
			return nil, fmt.Errorf("%w: %q is being received from %s", ErrBusy, m.name, other.proc.peer)
		case other != nil: // its process is lost, perhaps killed, and this may be its successor
			other.cancel()
			select {
			case <-other.done:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			continue
		case fresh:
			v.runStoring(st, m, x, inside)
		}
		return st, nil
	}
}

// enlist returns the transfer for a request, fresh or not, or another one with the same destination.
func (f *Engine) enlist(proc *process, m *filePut) (st, other *storing, fresh bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if proc.Over() {
		return nil, nil, false, ErrPeerGone
	}
	o := &proc.state
	if st = o.storing[m.source]; st != nil {
		return st, nil, false, nil
	}
	if other = f.storing[m.name]; other != nil {
		return nil, other, false, nil
	}
	for source, old := range o.storing {
		select {
		case <-old.done:
			if len(o.storing) >= maxStoring {
				delete(o.storing, source)
			}
		default:
		}
	}
	if len(o.storing) >= maxStoring {
		return nil, nil, false, fmt.Errorf("%w: %d files are being received from this peer", ErrBusy, maxStoring)
	}
	st = &storing{proc: proc, done: make(chan struct{})}
	st.ctx, st.cancel = context.WithCancel(f.ctx)
	o.storing[m.source], f.storing[m.name] = st, st
	return st, nil, true, nil
}

// runStoring runs an upload in its own goroutine. It survives sessions but not the peer's process.
func (v *process) runStoring(st *storing, m *filePut, x *Export, inside string) {
	f := v.peer.engine
	end := func(err error) {
		st.err = err
		f.mu.Lock()
		delete(f.storing, m.name)
		f.mu.Unlock()
		st.cancel()
		close(st.done)
	}
	if !f.begin(func() { end(v.fetch(st.ctx, st, m, x, inside)) }) {
		end(ErrClosed)
	}
}

// fetch receives the file or directory offered by a peer.
func (v *process) fetch(ctx context.Context, st *storing, m *filePut, x *Export, inside string) error {
	l := &pull{peer: v.peer, cfg: TransferConfig{Fresh: m.fresh}, counts: &st.counts}
	st.counts.name.Store(&m.name)
	from, err := l.open(ctx, m.source)
	if err != nil {
		return err
	}
	entry := chunk.Entry{Name: inside, Mode: from.entry.Mode}
	if err := chunk.Make(x.root, &entry); err != nil {
		l.giveUp(from)
		return err
	}
	if !from.entry.Mode.IsDir() {
		return l.single(ctx, from, m.source, x.root, inside)
	}
	root, err := x.root.OpenRoot(inside)
	if err != nil {
		return err
	}
	err = errors.Join(l.tree(ctx, m.source, root), root.Close())
	if err != nil {
		return err
	}
	return chunk.Finish(x.root, []chunk.Entry{{Name: inside, Mode: from.entry.Mode, ModTime: from.entry.ModTime}}, chunk.SyncFile)
}
