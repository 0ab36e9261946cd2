package files

import (
	"cmp"
	"context"
	"encoding/hex"
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

// ExportConfig configures an Export. Name and Path are required.
type ExportConfig struct {
	// Name is the Export's name for peers: a relative path with slashes, at most transfer.MaxNameLen bytes.
	Name string
	// Path is the local file or directory. Symbolic links in it are resolved when it is exported.
	Path string
	// DefaultAccess is the access granted to every peer if Config.Authorize is nil. Write requires
	// a directory: peers may create files and directories below the name, replace existing ones,
	// and remove entries by an upload with TransferConfig.Delete. Zero denies access.
	DefaultAccess Access
	// Owners accepts TransferConfig.Owner in uploads: peers then choose the owners of files. Only root can give files to other users.
	Owners bool
}

// Export is a file or directory shared with peers. All methods are safe for concurrent use.
type Export struct {
	engine *Engine
	cfg    ExportConfig
	root   *os.Root
	// file is the file's name in root; empty for a directory.
	file string
	// upload is set for uploads by Put, and hides the Export from all but one peer.
	upload *uploadSource
	closed atomic.Bool
}

// Memory limits, in slots of chunk.Size bytes.
const (
	readSlots    = 32
	peerSlots    = 8  // of readSlots, per process: a stuck peer does not delay others
	stageSlots   = 16 // per incoming transfer
	peerStaging  = 32 // for all transfers from one peer: a stuck peer leaves slots to others
	stagingSlots = 64 // for all incoming transfers
)

// Serve shares a file or directory with peers. A file in a directory is named by the Export's name, a slash and its path. Files are read
// on demand and never mapped. Access to an Export covers the whole directory, including symbolic links within it; links that lead outside
// are not followed. Before Serve returns, requests fail with ErrNotFound: use Config.Exports for names that peers may request after a
// restart.
//
// Serve returns verbs.ErrInvalid if the name is invalid or in use, ErrDenied for a file with Write access, ErrClosed after Close, and other
// errors if the path cannot be opened or is neither a regular file nor a directory.
func (f *Engine) Serve(cfg ExportConfig) (*Export, error) {
	x := &Export{engine: f, cfg: cfg}
	err := x.open()
	if err == nil {
		if err = f.publish(x); err != nil {
			err = errors.Join(err, x.root.Close())
		}
	}
	if err != nil {
		return nil, newError("serve", nil, cfg.Name, err)
	}
	return x, nil
}

// open opens the directory, or a file's directory. Symbolic links are resolved here, not per request.
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

// publish makes an Export available under its name.
func (f *Engine) publish(x *Export) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !fs.ValidPath(x.cfg.Name) || x.cfg.Name == "." || len(x.cfg.Name) > transfer.MaxNameLen:
		return verbs.Invalidf("the name: want 1 to %d bytes, a relative path with slashes", transfer.MaxNameLen)
	case x.cfg.DefaultAccess&^(Read|Write) != 0:
		return fmt.Errorf("DefaultAccess %v: %w", x.cfg.DefaultAccess, ErrDenied)
	case f.closed || f.exports == nil:
		return ErrClosed
	case f.exports[x.cfg.Name] != nil:
		return verbs.Invalidf("the name is in use")
	}
	f.exports[x.cfg.Name] = x
	return nil
}

// Name returns ExportConfig.Name.
func (x *Export) Name() string { return x.cfg.Name }

// Close withdraws the Export. Its transfers fail. A second Close returns nil.
func (x *Export) Close() error {
	f := x.engine
	if f == nil {
		return newError("close", nil, "", ErrClosed)
	}
	f.mu.Lock()
	if f.exports[x.cfg.Name] == x {
		delete(f.exports, x.cfg.Name)
	}
	f.mu.Unlock()
	if x.closed.Swap(true) {
		return nil
	}
	for _, p := range f.peers.All() {
		p.link.Mu.Lock()
		v := p.link.Proc
		p.link.Mu.Unlock()
		if v != nil {
			f.mu.Lock()
			v.state.closeWalks(func(w *treeWalk) bool { return w.export == x })
			f.mu.Unlock()
		}
	}
	return x.root.Close()
}

// resolve returns the Export for a name, and the path in its root. Unknown and denied names return ErrNotFound.
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
	switch access := v.accessFor(ctx, x, want); {
	case access == 0 || x.file != "" && inside != "" || !x.upload.allows(x.root, cmp.Or(inside, ".")):
		return nil, "", ErrNotFound
	case access&want != want:
		return nil, "", fmt.Errorf("%w: only %v is allowed", ErrDenied, access)
	}
	return x, path.Join(cmp.Or(x.file, "."), inside), nil
}

// accessFor returns the peer's access to an Export and everything in it.
func (v *process) accessFor(ctx context.Context, x *Export, want Access) Access {
	switch authorize := v.peer.engine.cfg.Authorize; {
	case x.upload != nil && x.upload.peer == v.peer:
		return Read
	case x.upload != nil:
		return 0
	case authorize != nil:
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		access, err := authorize(ctx, v.peer.Node(), x.cfg.Name, want)
		if err != nil {
			return 0
		}
		return access
	}
	return x.cfg.DefaultAccess
}

// openTimeout is the timeout for Config.Authorize.
const openTimeout = 10 * time.Second

// secretName returns a name that other peers cannot guess.
func secretName() string {
	return fmt.Sprintf("%s%016x%016x", secretPrefix, rand.Uint64(), rand.Uint64())
}

const secretPrefix = "put-"

// isSecretName reports whether an unknown name may belong to a withdrawn upload.
func isSecretName(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	digits, ok := strings.CutPrefix(first, secretPrefix)
	b, err := hex.DecodeString(digits)
	return ok && err == nil && len(b) == 16
}
