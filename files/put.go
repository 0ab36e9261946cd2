package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
)

// offered is what PutFile knows of the Export that the peer reads.
type offered struct {
	peer *Peer
	// served is how many bytes the peer has.
	served atomic.Int64
}

// PutFile gives a file or a directory to the peer, which stores it as name. The name lies below an Export of the peer that this side
// may write to. Directories on the way are made. The peer fetches the file as GetFile does, with the same promises.
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
		total, err := sizeOf(ctx, x.cfg.Path)
		if err == nil {
			t.counts.total.Store(total)
			err = t.offer(ctx, x, name, cfg)
		}
		return errors.Join(err, x.Close())
	})
	return t
}

// withdrawTimeout is how long a transfer that was canceled waits until the peer has noticed.
const withdrawTimeout = 2 * time.Second

// offer asks the peer to fetch an Export, and waits until it has.
func (t *Transfer) offer(ctx context.Context, x *Export, name string, cfg TransferConfig) error {
	ask, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		_ = x.Close()                         // the peer's requests for chunks fail, and so does its transfer
		time.AfterFunc(withdrawTimeout, stop) // unless it is not there
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

// sizeOf returns the length of a file, or of all files in a directory.
func sizeOf(ctx context.Context, file string) (total int64, err error) {
	err = filepath.WalkDir(file, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return context.Cause(ctx)
	})
	return total, err
}

// storing is a file or a tree that a peer puts here.
type storing struct {
	proc *process
	// ctx ends with the Engine, with the peer's process, and when another peer takes over.
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	counts counts
	err    error // valid when done is closed
}

// maxStoring is how many puts of a process are remembered, including those that have ended.
const maxStoring = 64

// store answers the request to fetch a file of the peer. If the peer asks again in another session, it gets the answer of the same transfer.
func (v *process) store(ctx context.Context, m *filePut) []byte {
	st, err := v.beginStoring(ctx, m)
	if err != nil {
		return refuse(m.id, err)
	}
	select {
	case <-st.done:
	case <-ctx.Done():
		return refuse(m.id, context.Cause(ctx)) // it is not sent: the session has ended
	}
	if st.err != nil {
		return refuse(m.id, st.err)
	}
	c := &st.counts
	return (&fileStored{m.id, uint64(c.kept.Load()), uint64(c.chunks.Load()), uint64(c.bad.Load())}).encode()
}

// beginStoring begins a transfer, or returns the one that was begun.
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
		case other != nil: // its process is lost: it was perhaps killed, and this is its successor
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

// enlist returns the transfer of a request, which may be fresh, or another one that has the same target.
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

// runStoring runs a transfer in a goroutine of its own. It goes on in other sessions, and ends with the peer's process.
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

// fetch gets the file or the tree that a peer offers.
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
