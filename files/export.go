package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// ExportConfig describes an Export. Name and Path must be set.
type ExportConfig struct {
	// Name is how peers call the Export. It may have slashes.
	Name string
	// Path is the file or the directory.
	Path string
	// DefaultAccess is what every peer may do if Config.Authorize is nil: Read, and for directories Write, which lets peers put files and
	// directories below the name and replace those that are there. Zero means nothing.
	DefaultAccess Access
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

// Bounds of the memory for files, in slots of chunk.Size bytes.
const (
	readSlots    = 32
	peerSlots    = 8  // of readSlots, of one process: a peer that is stuck delays no other
	stageSlots   = 16 // of one transfer that receives
	peerStaging  = 32 // of all transfers from one peer, so that a peer that is stuck leaves some to others
	stagingSlots = 64 // of all transfers that receive
)

// Export lets peers read a file or a directory. A file of a directory has the name of the Export, a slash and its path. Files are read when a peer asks for them and are never mapped. A peer that may use the Export may
// use everything in the directory, also by way of symbolic links. Links that lead out of it are not followed.
// Peers that ask before that get ErrNotFound: what they may ask for after a restart belongs into Config.Exports.
func (f *Engine) Export(cfg ExportConfig) (*Export, error) {
	x := &Export{engine: f, cfg: cfg}
	err := x.open()
	if err == nil {
		if err = f.publish(x); err != nil {
			err = errors.Join(err, x.root.Close())
		}
	}
	if err != nil {
		return nil, newError("export", nil, cfg.Name, err)
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
	case x.cfg.DefaultAccess&Write != 0:
		return fmt.Errorf("%w: only directories can be written to", ErrDenied)
	default:
		x.root, err = os.OpenRoot(filepath.Dir(name))
		x.file = filepath.Base(name)
	}
	return err
}

// publish makes an Export known by its name.
func (f *Engine) publish(x *Export) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !fs.ValidPath(x.cfg.Name) || x.cfg.Name == "." || len(x.cfg.Name) > transfer.MaxNameLen:
		return verbs.Invalidf("the name: want 1 to %d bytes, a relative path with slashes", transfer.MaxNameLen)
	case x.cfg.DefaultAccess&^(Read|Write) != 0:
		return fmt.Errorf("public %v: %w", x.cfg.DefaultAccess, ErrDenied)
	case f.closed:
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
	f := x.engine
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

// resolve returns the Export of a name, and the path in its root. Names that do not exist and names that the peer may not have are
// ErrNotFound.
func (v *process) resolve(ctx context.Context, name string, want Access) (x *Export, inside string, err error) {
	if !fs.ValidPath(name) || name == "." {
		return nil, "", ErrNotFound
	}
	f := v.peer.engine
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
func (v *process) mayUse(ctx context.Context, x *Export, want Access) Access {
	switch lend := v.peer.engine.cfg.Authorize; {
	case x.offered != nil && x.offered.peer == v.peer:
		return Read
	case x.offered != nil:
		return 0
	case lend != nil:
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		access, err := lend(ctx, v.peer.Node(), x.cfg.Name, want)
		if err != nil {
			return 0
		}
		return access
	}
	return x.cfg.DefaultAccess
}

// openTimeout bounds a call of Config.Authorize.
const openTimeout = 10 * time.Second

// secret returns a name that no other peer guesses.
func secret() string { return fmt.Sprintf("put-%016x%016x", rand.Uint64(), rand.Uint64()) }
