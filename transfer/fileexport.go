package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/verbs"
)

// ExportConfig describes an Export. Name and Path must be set.
type ExportConfig struct {
	// Name is how peers call the Export. It may have slashes.
	Name string
	// Path is the file or the directory.
	Path string
	// Public is what every peer may do if Config.Lend is nil: Read, and for directories Write, which lets peers put files and
	// directories below the name and replace those that are there. Zero means nothing.
	Public Access
}

// Export is a file or a directory that peers may read, or put files to.
type Export struct {
	engine *Engine
	cfg    ExportConfig
	root   *os.Root
	// file is the name of a file in root, empty for a directory.
	file string
	// offered is set for what PutFile offers to a single peer, and hides the Export from all others.
	offered *offered
	closed  atomic.Bool
}

// files is what an Engine knows of files.
type files struct {
	// ctx ends when the Engine is closed.
	ctx    context.Context
	cancel context.CancelFunc
	// work has the goroutines of transfers.
	work sync.WaitGroup
	// reading is memory for chunks that are sent.
	reading readPool
	// staging has a token for each slot in use, for chunks that are received.
	staging rpc.Limit
	// lastHandle is the handle of the file of a peer that was opened last.
	lastHandle atomic.Uint32
	// arrived, if it is set, may damage chunks that have arrived. It is for tests.
	arrived func(k int64, b []byte)

	mu      sync.Mutex
	exports map[string]*Export
	open    map[*process]*openFiles
	// storing are the files that peers put here, by the place where they go.
	storing map[string]*storing
}

// Bounds of the memory for files, in slots of chunk.Size bytes.
const (
	readSlots    = 32
	peerSlots    = 8  // of readSlots, of one process: a peer that is stuck delays no other
	stageSlots   = 16 // of one transfer that receives
	peerStaging  = 32 // of all transfers from one peer, so that a peer that is stuck leaves some to others
	stagingSlots = 64 // of all transfers that receive
)

func newFiles() *files {
	f := &files{
		staging: make(rpc.Limit, stagingSlots),
		exports: map[string]*Export{}, open: map[*process]*openFiles{}, storing: map[string]*storing{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// Export lets peers read a file or a directory. A file of a directory has the name of the Export, a slash and its path. Files are read when a peer asks for them and are never mapped. A peer that may use the Export may
// use everything in the directory, also by way of symbolic links. Links that lead out of it are not followed.
// Peers that ask before that get ErrNotFound: what they may ask for after a restart belongs into Config.Exports.
func (e *Engine) Export(cfg ExportConfig) (*Export, error) {
	x := &Export{engine: e, cfg: cfg}
	err := x.open()
	if err == nil {
		if err = e.publish(x); err != nil {
			err = errors.Join(err, x.root.Close())
		}
	}
	if err != nil {
		return nil, newError("export file", nil, cfg.Name, err)
	}
	return x, nil
}

// open opens the directory, or that of a file. Symbolic links are followed now, and not when a peer asks.
func (x *Export) open() error {
	name, err := filepath.EvalSymlinks(x.cfg.Path)
	if err != nil {
		return err
	}
	x.cfg.Path = name
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		x.root, err = os.OpenRoot(name)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w", name, chunk.ErrKind)
	case x.cfg.Public&Write != 0:
		return fmt.Errorf("%w: only directories can be written to", ErrDenied)
	default:
		x.root, err = os.OpenRoot(filepath.Dir(name))
		x.file = filepath.Base(name)
	}
	return err
}

// publish makes an Export known by its name.
func (e *Engine) publish(x *Export) error {
	f := e.files
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !fs.ValidPath(x.cfg.Name) || x.cfg.Name == "." || len(x.cfg.Name) > MaxName:
		return verbs.Invalidf("the name: want 1 to %d bytes, a relative path with slashes", MaxName)
	case x.cfg.Public&^(Read|Write) != 0:
		return fmt.Errorf("public %v: %w", x.cfg.Public, ErrDenied)
	case f.ctx.Err() != nil:
		return ErrClosed
	case f.exports[x.cfg.Name] != nil:
		return verbs.Invalidf("there is an export of that name")
	}
	f.exports[x.cfg.Name] = x
	return nil
}

// Name is the name.
func (x *Export) Name() string { return x.cfg.Name }

// Close hides the Export. Transfers that use it fail.
func (x *Export) Close() error {
	f := x.engine.files
	f.mu.Lock()
	if f.exports[x.cfg.Name] == x {
		delete(f.exports, x.cfg.Name)
	}
	f.mu.Unlock()
	if x.closed.Swap(true) {
		return nil
	}
	return x.root.Close()
}

// close ends all use of files, and waits for the end of transfers.
func (f *files) close(ctx context.Context) error {
	f.cancel()
	f.mu.Lock()
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
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("transfers of files are under way: %w", context.Cause(ctx)))
	}
	return errors.Join(errs...)
}

// resolve returns the Export of a name, and the path in its root. Names that do not exist and names that the peer may not have are
// ErrNotFound.
func (v fileServer) resolve(ctx context.Context, name string, want Access) (x *Export, inside string, err error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, "", ErrNotFound
	}
	f := v.peer.engine.files
	f.mu.Lock()
	prefix := name
	for x = f.exports[prefix]; x == nil && prefix != "."; x = f.exports[prefix] {
		prefix = path.Dir(prefix)
	}
	f.mu.Unlock()
	if x == nil {
		return nil, "", ErrNotFound
	}
	inside = strings.TrimPrefix(strings.TrimPrefix(name, prefix), "/")
	switch access := v.mayUse(ctx, x, want); {
	case access == 0 || x.file != "" && inside != "":
		return nil, "", ErrNotFound
	case access&want != want:
		return nil, "", fmt.Errorf("%w: only %v is allowed", ErrDenied, access)
	}
	return x, path.Join(cmp.Or(x.file, "."), inside), nil
}

// mayUse returns what the peer may do with an Export, and with everything that is in it.
func (v fileServer) mayUse(ctx context.Context, x *Export, want Access) Access {
	switch lend := v.peer.engine.cfg.Lend; {
	case x.offered != nil && x.offered.peer == v.peer:
		return Read
	case x.offered != nil:
		return 0
	case lend != nil:
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		access, err := lend(ctx, v.peer.node, x.cfg.Name, want)
		if err != nil {
			return 0
		}
		return access
	}
	return x.cfg.Public
}

// returnTimeout is how long a transfer waits for a peer that has closed its Engine.
const returnTimeout = time.Minute

// askAny asks the process that the peer is, and if that ends the next one. It returns the process that answered.
func askAny[M any](ctx context.Context, p *Peer, limit rpc.Limit, request func(id uint32) []byte) (answer M, proc *process, err error) {
	for again := false; ; again = true {
		wait, cancel := ctx, func() {}
		if again {
			wait, cancel = context.WithTimeoutCause(ctx, returnTimeout, ErrPeerGone)
		}
		proc, _, err = p.ready(wait)
		cancel()
		if err != nil {
			return answer, nil, err
		}
		answer, err = askFor[M](ctx, p, limit, proc, request)
		if !p.mayReturn(err) {
			return answer, proc, err
		}
	}
}

// mayReturn reports whether an error is that of a process that has ended while the peer is not given up.
func (p *Peer) mayReturn(err error) bool {
	if errors.Is(err, ErrPeerGone) && !p.engine.isClosed() {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err == nil
	}
	return errors.Is(err, ErrRestarted)
}

// askFor asks for an answer of a type.
func askFor[M any](ctx context.Context, p *Peer, limit rpc.Limit, proc *process, request func(id uint32) []byte) (answer M, err error) {
	return rpc.As[M](p.ask(ctx, limit, proc, request))
}

// secret returns a name that no other peer guesses.
func secret() string { return fmt.Sprintf("put-%016x%016x", rand.Uint64(), rand.Uint64()) }
