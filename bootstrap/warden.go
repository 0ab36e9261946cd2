package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// rounds is how often a warden looks at the files and at its Conns. A change counts when two rounds have
// seen it, so that a file that is being written is not read.
const rounds = 200 * time.Millisecond

// warden holds the credentials of a Config and the Conns that were admitted with them. It reads the
// files again when they change, and ends the Conns of peers that are no longer admitted.
type warden struct {
	cfg  Config
	dial bool

	mu   sync.Mutex
	cred *credentials
	// conns are the open Conns.
	conns map[*Conn]struct{}
	// closed says that no Conn follows.
	closed bool
	// done is closed when no Conn is open and none follows.
	done chan struct{}

	// stamp identifies the state of the files that cred was read from. Only watch uses it after start.
	stamp string
}

func newWarden(cfg Config, dial bool) (*warden, error) {
	w := &warden{cfg: cfg, dial: dial, conns: map[*Conn]struct{}{}, done: make(chan struct{}), stamp: cfg.stamp()}
	cred, err := cfg.load(dial, nil)
	w.cred = cred
	return w, err
}

// credentials returns those of the last round.
func (w *warden) credentials() *credentials {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cred
}

// start starts a goroutine that makes rounds, if there is anything to watch. It ends with the last Conn.
func (w *warden) start() {
	if w.stamp != "" || w.cfg.Authorize != nil {
		go w.watch()
	}
}

// close says that no Conn follows. It reports whether this is the first call.
func (w *warden) close() bool {
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

// forget removes a Conn that has ended. It may be called again.
func (w *warden) forget(c *Conn) {
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

func (w *warden) watch() {
	tick := time.NewTicker(rounds)
	defer tick.Stop()
	seen := w.stamp
	for {
		select {
		case <-w.done:
			return
		case <-tick.C:
		}
		now := w.cfg.stamp()
		if now != w.stamp && now == seen {
			w.stamp = now
			w.reload()
		}
		seen = now
		w.recheck()
	}
}

// reload reads the credentials again. If they are invalid the old ones stay. If a file is gone, nobody
// is admitted until it is back.
func (w *warden) reload() {
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
}

// recheck ends the Conns of peers that are no longer admitted.
func (w *warden) recheck() {
	w.mu.Lock()
	cred := w.cred
	var open []*Conn
	for c := range w.conns {
		open = append(open, c)
	}
	w.mu.Unlock()
	for _, c := range open {
		err := c.admitted.stands(cred, w.dial)
		if err == nil {
			err = w.cfg.authorize(&c.peer)
		}
		if err != nil {
			c.fail(fmt.Errorf("the peer is no longer admitted: %w", err))
		}
	}
}

// authorize asks the program.
func (c *Config) authorize(p *Peer) error {
	if c.Authorize == nil {
		return nil
	}
	if err := c.Authorize(*p); err != nil {
		return fmt.Errorf("%w: %w", errForbidden, err)
	}
	return nil
}

// stamp identifies the state of the files that the Config names: "" if it names none.
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
	fmt.Fprintf(b, "%s: %d bytes, %v, %d\n", name, info.Size(), info.Mode(), info.ModTime().UnixNano())
}
