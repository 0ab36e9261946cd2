package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/filter"
)

// uploadSource is Put's state of the Export that the peer reads.
type uploadSource struct {
	peer *Peer
	// served counts the bytes that the peer has received or compared.
	served atomic.Int64
	counts *counts
	// limiter limits the rate. Nil means no limit.
	limiter *rateLimiter
	// offered selects the attributes that the peer may get.
	offered chunk.Want
	// filter and rules are TransferConfig.Filter. The peer can read only what they include.
	filter filter.Filter
	rules  rules

	mu sync.Mutex
	// counted is the position in the listing behind the last counted entry.
	counted string
}

// newUploadSource returns the state of an upload without its filter.
func newUploadSource(p *Peer, cfg TransferConfig, c *counts) *uploadSource {
	return &uploadSource{peer: p, counts: c, limiter: newRateLimiter(cfg.BytesPerSecond), offered: chunk.Want{Owner: cfg.Owner, Xattrs: cfg.Xattrs}}
}

// allows reports whether the peer may read a path. Symbolic links are not followed: they may lead to an excluded file.
func (o *uploadSource) allows(root *os.Root, inside string) bool {
	if o == nil || o.filter.Empty() || inside == "." {
		return true
	}
	for i := range len(inside) + 1 {
		if i < len(inside) && inside[i] != '/' {
			continue
		}
		info, err := root.Lstat(inside[:i])
		if err != nil || info.Mode().Type()&^fs.ModeDir != 0 || o.filter.Excludes(inside[:i], info.IsDir()) {
			return false
		}
	}
	return true
}

// attributes returns the wanted attributes that the peer may get. For an Export that is not an upload, it may get all.
func (o *uploadSource) attributes(want chunk.Want) chunk.Want {
	if o == nil {
		return want
	}
	return chunk.Want{Owner: want.Owner && o.offered.Owner, Xattrs: want.Xattrs && o.offered.Xattrs}
}

// count adds a page of the listing to the total, once.
func (o *uploadSource) count(after, cursor string, page *fileTreed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counted != after {
		return
	}
	o.counted = cursor
	o.counts.listing.Store(page.more)
	at := positionAt(after)
	for i := range page.steps {
		s := &page.steps[i]
		if at.next(s); chunk.Special(s.Mode) {
			o.counts.skipped.add(at.path())
		}
		if !s.Mode.IsDir() {
			o.counts.listed.Add(1)
		}
		o.counts.total.Add(s.Size)
	}
}

// Put starts uploading a local file or directory and returns immediately. The peer stores it as name, which must lie below one of its
// Exports with Write access. Missing directories are created. The peer fetches the data as Get does, with the same guarantees.
func (p *Peer) Put(file, name string, cfg TransferConfig) *Transfer {
	t, ctx := p.begin("put", name)
	t.upload = newUploadSource(p, cfg, &t.counts)
	t.run(func() error {
		if err := checkPath(name); err != nil {
			return err
		}
		l, err := p.newDownload(cfg, &t.counts)
		if err != nil {
			return err
		}
		x := &Export{engine: p.engine, cfg: ExportConfig{Name: secretName(), Path: file}, upload: t.upload}
		if err := x.open(); err != nil {
			return err
		}
		if x.file == "" { // a single file is not filtered
			x.upload.filter, x.upload.rules = l.filter, l.rules
		}
		if err := p.engine.publish(x); err != nil {
			return errors.Join(err, x.root.Close())
		}
		err = t.measure(x)
		if err == nil {
			err = t.offer(ctx, x, name, cfg)
		}
		return errors.Join(err, x.Close())
	})
	return t
}

// withdrawTimeout bounds a canceled upload's wait for the peer.
const withdrawTimeout = 2 * time.Second

// offer requests that the peer fetch an Export, and waits until it has done so.
func (t *Transfer) offer(ctx context.Context, x *Export, name string, cfg TransferConfig) error {
	ask, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		_ = x.Close()                         // the peer's requests for chunks fail, and so does its transfer
		time.AfterFunc(withdrawTimeout, stop) // unless the peer is disconnected first
	})()
	m, _, err := askAny[*fileStored](ask, t.peer, t.peer.putRequests, func(id uint32) []byte {
		return (&filePut{
			id: id, fresh: cfg.Fresh, checksum: cfg.Checksum, remove: cfg.Delete, dryRun: cfg.DryRun, keepTop: cfg.KeepTop, sync: cfg.Sync,
			want:   chunk.Want{Owner: cfg.Owner, Xattrs: cfg.Xattrs},
			source: x.cfg.Name, name: name, rules: rules(strings.Join(cfg.Filter, "\n")),
		}).encode()
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	t.counts.set(m.transferResult)
	if m.failures != "" {
		return fmt.Errorf("%w (the peer says %q)", ErrIncomplete, m.failures)
	}
	return nil
}

// measure sets the total to the size of an offered file. For a directory, the listing sets it.
func (t *Transfer) measure(x *Export) error {
	if x.file == "" {
		return nil
	}
	info, err := x.root.Stat(x.file)
	if err == nil {
		t.counts.total.Store(info.Size())
	}
	return err
}

// upload is a file or directory that a peer uploads.
type upload struct {
	proc *process
	// keepTop is TransferConfig.KeepTop.
	keepTop bool
	// ctx is canceled with the Engine, with the peer's process, and when another peer takes over.
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	counts counts
	// failures and err are valid when done is closed.
	failures string
	err      error
}

// maxUploads limits the remembered uploads per process, including completed ones.
const maxUploads = 64

// answerPut returns the response to an upload request. A repeated request in another session gets the response of the same transfer.
func (v *process) answerPut(ctx context.Context, m *filePut) []byte {
	start := time.Now()
	st, err := v.beginUpload(ctx, m)
	if err != nil {
		v.peer.report("put", m.name, start, 0, err)
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
	return (&fileStored{m.id, st.counts.result(), st.failures}).encode()
}

// beginUpload starts an upload, or returns the running one.
func (v *process) beginUpload(ctx context.Context, m *filePut) (*upload, error) {
	x, inside, err := v.resolve(ctx, m.name, Write)
	if err != nil {
		return nil, err
	}
	if x.file != "" || inside == "." && !m.keepTop {
		return nil, fmt.Errorf("%w: want a name below %q", ErrDenied, x.cfg.Name)
	}
	f := v.peer.engine
	for beside := (*upload)(nil); ; {
		st, other, fresh, err := f.registerUpload(v, m, beside)
		switch {
		case err != nil:
			return nil, err
		case other != nil && m.keepTop && other.proc.peer.service.Session() != nil && !other.proc.Over():
			beside = other // both store files in one directory
			continue
		case other != nil && other.proc.peer.service.Session() != nil && !other.proc.Over():
			return nil, fmt.Errorf("%w: %q is being received from %s", ErrBusy, m.name, other.proc.peer)
		case other != nil: // the other process is lost, perhaps killed, and this one may be its successor
			other.cancel()
			select {
			case <-other.done:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			continue
		case fresh:
			v.runUpload(st, m, x, inside)
		}
		return st, nil
	}
}

// registerUpload returns the upload for a request; fresh is set if it is new. other is another
// upload than beside with the same destination.
func (f *Engine) registerUpload(proc *process, m *filePut, beside *upload) (st, other *upload, fresh bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if proc.Over() {
		return nil, nil, false, ErrPeerGone
	}
	o := &proc.state
	if st = o.uploads[m.source]; st != nil {
		return st, nil, false, nil
	}
	if other = f.uploads[m.name]; other != nil && other != beside {
		return nil, other, false, nil
	}
	for source, old := range o.uploads {
		select {
		case <-old.done:
			if len(o.uploads) >= maxUploads {
				delete(o.uploads, source)
			}
		default:
		}
	}
	if len(o.uploads) >= maxUploads {
		return nil, nil, false, fmt.Errorf("%w: %d files are being received from this peer", ErrBusy, maxUploads)
	}
	st = &upload{proc: proc, keepTop: m.keepTop, done: make(chan struct{})}
	st.ctx, st.cancel = context.WithCancel(f.ctx)
	if o.uploads[m.source] = st; other == nil || other.keepTop { // otherwise lookups must still find other
		f.uploads[m.name] = st
	}
	return st, nil, true, nil
}

// runUpload runs an upload in its own goroutine. It survives sessions but not the peer's process.
func (v *process) runUpload(st *upload, m *filePut, x *Export, inside string) {
	f := v.peer.engine
	end := func(err error) {
		st.err = err
		f.mu.Lock()
		if f.uploads[m.name] == st {
			delete(f.uploads, m.name)
		}
		f.mu.Unlock()
		st.cancel()
		close(st.done)
	}
	if !f.begin(func() {
		err := v.fetch(st.ctx, st, m, x, inside)
		if errors.Is(err, ErrIncomplete) {
			st.failures, err = strings.ReplaceAll(err.Error(), x.root.Name()+"/", ""), nil // does not reveal where the Export is
			st.failures = st.failures[:min(len(st.failures), maxPath)]
		}
		end(err)
	}) {
		end(ErrClosed)
	}
}

// fetch receives the file or directory offered by a peer.
func (v *process) fetch(ctx context.Context, st *upload, m *filePut, x *Export, inside string) (err error) {
	cfg := TransferConfig{Fresh: m.fresh, Checksum: m.checksum, Delete: m.remove, DryRun: m.dryRun, KeepTop: m.keepTop, Sync: m.sync, Owner: m.want.Owner, Xattrs: m.want.Xattrs}
	if m.rules != "" {
		cfg.Filter = strings.Split(string(m.rules), "\n")
	}
	start := time.Now()
	l, err := v.peer.newDownload(cfg, &st.counts)
	if err == nil {
		err = l.mayOwn()
	}
	if err == nil && cfg.Owner && !x.cfg.Owners {
		err = fmt.Errorf("%w: the export does not accept owners", ErrDenied)
	}
	if err != nil {
		v.peer.report("put", m.name, start, 0, err)
		return err
	}
	l.storedFrom, l.storedAs = m.source, m.name
	defer func() {
		if err != nil && !l.reported.Load() {
			v.peer.report("put", m.name, start, 0, err)
		}
	}()
	st.counts.name.Store(&m.name)
	from, err := l.open(ctx, m.source)
	if err != nil {
		return err
	}
	if m.dryRun && !from.entry.Mode.IsDir() {
		return l.single(ctx, from, m.source, x.root, inside)
	}
	if m.dryRun {
		return l.dryTree(ctx, m.source, from.entry.Entry, func() (*os.Root, error) { return chunk.OpenDir(x.root, inside) })
	}
	dir := inside
	if !from.entry.Mode.IsDir() {
		dir = path.Dir(inside)
	}
	if err := chunk.MakeDir(x.root, dir); err != nil {
		l.releaseLater(from)
		return err
	}
	if from.entry.Mode.IsDir() {
		root, opened := chunk.OpenDir(x.root, inside)
		if opened != nil {
			return opened
		}
		err = errors.Join(l.tree(ctx, m.source, root, from.entry.Entry, !m.keepTop), root.Close())
	} else {
		err = l.single(ctx, from, m.source, x.root, inside)
	}
	if err == nil && m.sync == SyncBatch {
		err = chunk.SyncParents(x.root, inside)
	}
	return err
}
