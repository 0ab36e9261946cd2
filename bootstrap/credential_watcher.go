package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// checkInterval is the interval at which a credentialWatcher checks the files and Conns. A change
// takes effect after two rounds have seen it, which skips partially written files.
const checkInterval = 200 * time.Millisecond

// credentialWatcher holds a Config's credentials and the Conns admitted with them. It reloads
// changed files, and closes Conns whose peers lose their admission.
type credentialWatcher struct {
	cfg  Config
	dial bool

	mu   sync.Mutex
	cred *credentials
	// conns are the open Conns.
	conns map[*Conn]struct{}
	// closed is set when no further Conns are added.
	closed bool
	// done is closed after the last Conn.
	done chan struct{}

	// stamp identifies the files' state when cred was read. Only watch uses it after start.
	stamp string
}

func newCredentialWatcher(cfg Config, dial bool) (*credentialWatcher, error) {
	w := &credentialWatcher{cfg: cfg, dial: dial, conns: map[*Conn]struct{}{}, done: make(chan struct{}), stamp: cfg.stamp()}
	cred, err := cfg.load(dial, nil)
	w.cred = cred
	return w, err
}

// credentials returns the credentials of the last round.
func (w *credentialWatcher) credentials() *credentials {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cred
}

// start starts the checking goroutine if necessary. It exits after the last Conn.
func (w *credentialWatcher) start() {
	if w.stamp != "" || w.cfg.Authorize != nil {
		go w.watch()
	}
}

// close announces that no further Conns are added. It reports whether this is the first call.
func (w *credentialWatcher) close() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.closed = true
	if len(w.conns) == 0 {
		close(w.done)
	}
	return true
}

// forget removes a closed Conn. It may be called again.
func (w *credentialWatcher) forget(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, open := w.conns[c]; !open {
		return
	}
	delete(w.conns, c)
	if w.closed && len(w.conns) == 0 {
		close(w.done)
	}
}

func (w *credentialWatcher) watch() {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	seen := w.stamp
	for {
		select {
		case <-w.done:
			return
		case <-tick.C:
		}
		now := w.cfg.stamp()
		if now != w.stamp && now == seen && w.reload() {
			w.stamp = now
		}
		seen = now
		w.recheck()
	}
}

// reload rereads the credentials. If they are invalid, the old ones stay. If a file is missing, all
// peers are rejected until it exists again. It returns false if it must be called again, because no file can be opened now.
func (w *credentialWatcher) reload() (done bool) {
	old := w.credentials()
	cred, err := w.cfg.load(w.dial, old)
	if errors.Is(err, fs.ErrNotExist) {
		cred = old.withoutPeers()
	}
	if cred != nil {
		w.mu.Lock()
		w.cred = cred
		w.mu.Unlock()
	}
	if w.cfg.Reloaded != nil {
		w.cfg.Reloaded(err)
	}
	return !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE)
}

// recheck closes Conns whose peers have lost their admission.
func (w *credentialWatcher) recheck() {
	w.mu.Lock()
	cred := w.cred
	var open []*Conn
	for c := range w.conns {
		open = append(open, c)
	}
	w.mu.Unlock()
	for _, c := range open {
		err := c.admitted.verify(cred, w.dial)
		if err == nil {
			err = w.cfg.authorize(&c.peer)
		}
		if err != nil {
			c.fail(fmt.Errorf("the peer is no longer admitted: %w", err))
		}
	}
}

// authorize calls Config.Authorize.
func (c *Config) authorize(p *Peer) error {
	if c.Authorize == nil {
		return nil
	}
	if err := c.Authorize(*p); err != nil {
		return fmt.Errorf("%w: %w", errForbidden, err)
	}
	return nil
}

// stamp identifies the state of the Config's files; "" without files.
func (c *Config) stamp() string {
	var b strings.Builder
	for _, name := range []string{c.CertFile, c.KeyFile, c.CAFile, c.TokenFile, c.TokenDir} {
		if name != "" {
			stampFile(&b, name)
		}
	}
	if c.TokenDir != "" {
		names, _ := tokenNames(c.TokenDir) // load reports the error
		for _, name := range names {
			stampFile(&b, filepath.Join(c.TokenDir, name))
		}
	}
	return b.String()
}

func stampFile(b *strings.Builder, name string) {
	info, err := os.Stat(name)
	if err != nil {
		fmt.Fprintf(b, "%s: %v\n", name, err)
		return
	}
	// The inode differs if another file of the same size and time was renamed over it, for example one from an image.
	fmt.Fprintf(b, "%s: inode %d, %d bytes, %v, %d\n", name, inode(info), info.Size(), info.Mode(), info.ModTime().UnixNano())
}
