package files

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// Access is a set of access rights to an Export: Read, Write or both.
type Access = transfer.Access

// Access rights, combined with |.
const (
	// Read allows List and Get.
	Read = transfer.Read
	// Write allows Put into an exported directory.
	Write = transfer.Write
)

// Config configures an Engine. Transfer is required.
type Config struct {
	// Transfer moves the chunks. Close this package's Engine before it. A transfer.Engine has at most one files Engine at a time.
	Transfer *transfer.Engine
	// Exports are available before any peer can request them, see Engine.Serve. A peer that resumes a transfer after this process was
	// restarted finds them; Exports added later may be too late for it.
	Exports []ExportConfig
	// Authorize returns the access granted to p for an Export. Zero or an error denies access; the peer cannot distinguish that from an
	// unknown name. Authorize is not called for individual files of an Export. It runs in its own goroutine; ctx is canceled when the peer
	// disconnects or after 10 s. Nil grants ExportConfig.DefaultAccess.
	Authorize func(ctx context.Context, p *node.Peer, name string, want Access) (Access, error)
	// OnOperation is called after each file that a peer has read from or written to an Export, including refused and failed ones. Calls may
	// be concurrent; a slow call delays responses to the peer. Nil disables it.
	OnOperation func(Operation)
}

// Engine transfers files between this process and its peers. All methods are safe for concurrent use.
type Engine struct {
	// A Peer's mu and this one are never held together.

	cfg     Config
	service service.Node
	peers   service.Peers[*handler]
	// ctx is canceled when Close starts.
	ctx    context.Context
	cancel context.CancelFunc
	// work tracks the goroutines of transfers.
	work sync.WaitGroup
	// reading is the memory for outgoing chunks.
	reading readPool
	// staging holds one token per slot in use for an incoming chunk.
	staging rpc.Limit
	// lastHandle is the last handle chosen for a peer's file, and the last number of a listing.
	lastHandle atomic.Uint32
	counters   engineCounters
	// chunkReceived is a hook for tests, which may damage received chunks and small files. received may change received responses about trees.
	chunkReceived func(k int64, b []byte)
	received      func(m any)

	mu      sync.Mutex
	closed  bool
	exports map[string]*Export
	// uploads holds the files being uploaded by peers, by destination.
	uploads map[string]*upload
}

// New attaches an Engine to the Node of cfg.Transfer and publishes cfg.Exports. It returns verbs.ErrInvalid for an invalid Config,
// verbs.ErrBusy if the Node already has a files Engine, and the errors of Serve.
func New(cfg Config) (*Engine, error) {
	if cfg.Transfer == nil {
		return nil, newError("new", nil, "", verbs.Invalidf("Config.Transfer is not set"))
	}
	f := &Engine{
		cfg: cfg, service: cfg.Transfer.Node().Service(), staging: make(rpc.Limit, stagingSlots),
		exports: map[string]*Export{}, uploads: map[string]*upload{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	for _, x := range cfg.Exports {
		if _, err := f.Serve(x); err != nil {
			return nil, errors.Join(err, f.end(context.Background()))
		}
	}
	f.peers.Init(service.FilesID, func(s service.Peer) *handler { return (*handler)(newPeer(f, s)) })
	if err := f.service.Attach(service.Service{ID: service.FilesID, Version: version, Handler: &f.peers}); err != nil {
		return nil, errors.Join(newError("new", nil, "", err), f.end(context.Background()))
	}
	return f, nil
}

// Peer connects to the peer listening at addr, see node.Node.Peer, and waits until that peer has a files Engine or ctx is done. It returns
// ErrClosed after Close, ErrMismatch if the protocol versions differ, and the errors of transfer.Engine.Peer.
func (f *Engine) Peer(ctx context.Context, addr string) (*Peer, error) {
	if f.ctx == nil {
		return nil, newError("connect", nil, "", ErrClosed)
	}
	t, err := f.cfg.Transfer.Peer(ctx, addr)
	if err != nil {
		return nil, newError("connect", nil, "", err)
	}
	p := (*Peer)(f.peers.Of(t.Node().Service()))
	if _, err := p.link.Ready(ctx); err != nil {
		return nil, newError("connect", p, "", err)
	}
	return p, nil
}

// begin starts a transfer in its own goroutine. It returns false after Close.
func (f *Engine) begin(run func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.work.Go(run)
	}
	return !f.closed
}

// Close cancels all transfers, closes all Exports and detaches the Engine from its Node. Sessions with peers that know the Engine are
// closed and re-established. If transfers are still running when ctx is done, Close returns an error and can be called again.
func (f *Engine) Close(ctx context.Context) error {
	if f.ctx == nil {
		return newError("close", nil, "", ErrClosed)
	}
	if ctx == nil {
		return newError("close", nil, "", verbs.Invalidf("the Context is nil"))
	}
	if err := f.end(ctx); err != nil {
		return err
	}
	if f.service.Attached(service.FilesID) == service.Handler(&f.peers) { // after an earlier Close, the Node may have another Engine
		f.service.Detach(service.FilesID)
	}
	for _, p := range f.peers.Clear() {
		p.Gone(ErrClosed, true)
	}
	return nil
}

// end cancels all transfers and waits for them, closes all Exports and frees the memory.
func (f *Engine) end(ctx context.Context) error {
	f.cancel()
	f.mu.Lock()
	f.closed = true
	all := slices.Collect(maps.Values(f.exports))
	f.mu.Unlock()
	var errs []error
	for _, x := range all {
		errs = append(errs, x.Close())
	}
	ended := make(chan struct{})
	go func() {
		f.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		errs = append(errs, f.reading.close(ctx))
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("transfers are in progress: %w", context.Cause(ctx)))
	}
	if err := errors.Join(errs...); err != nil {
		return newError("close", nil, "", err)
	}
	return nil
}

// newHandle returns a handle for a peer's file, or a number for a listing. It is never zero.
func (f *Engine) newHandle() uint32 {
	for {
		if h := f.lastHandle.Add(1); h != 0 {
			return h
		}
	}
}

// isClosed reports whether Close has started.
func (f *Engine) isClosed() bool { return f == nil || f.ctx == nil || f.ctx.Err() != nil }
