package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/printable"
	"ibverbx/verbs"
)

// maxConnecting limits the peers being connected concurrently. Further ones wait.
const maxConnecting = 64

// Listener creates Sessions with many peers. All methods are safe for concurrent use.
type Listener struct {
	listener *bootstrap.Listener
	cfg      Config
	ctx      context.Context // canceled by Close
	cancel   context.CancelFunc
	mu       sync.Mutex // orders the cancellation of ctx and additions to work
	work     sync.WaitGroup
	// slots holds one token per peer that is being connected or waits in results.
	slots chan struct{}
	// results passes ready or failed peers to Accept.
	results chan acceptResult
}

// acceptResult is a Session whose peer is ready, or the error that prevented it.
type acceptResult struct {
	session *Session
	err     error
}

// Listen opens a port for peers. addr is "host:port", or ":port" for all addresses; ctx only bounds the call. With Config.Open, each
// Session opens separate NICs; NICs in Config.Rails are shared by all open Sessions. Listen returns verbs.ErrInvalid or bootstrap.ErrConfig
// for an invalid Config.
func Listen(ctx context.Context, addr string, cfg Config) (*Listener, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, printable.Error(fmt.Errorf("listen on %s: %w", addr, err))
	}
	if len(cfg.Rails) > 0 {
		rails, err := cfg.withPaths(cfg.Rails)
		var base *ibverbx.Rails
		if err == nil {
			base, err = ibverbx.NewRails(rails...)
		}
		if err != nil {
			return nil, printable.Error(fmt.Errorf("listen on %s: %w", addr, err))
		}
		cfg.base = base
	}
	listener, err := bootstrap.Listen(ctx, addr, cfg.Auth)
	if err != nil {
		return nil, errors.Join(err, cfg.closeBase())
	}
	l := &Listener{listener: listener, cfg: cfg, slots: make(chan struct{}, maxConnecting), results: make(chan acceptResult)}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return l, nil
}

// Addr returns the listening address.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Stats returns the counters of admitted and rejected peers.
func (l *Listener) Stats() bootstrap.ListenerStats { return l.listener.Stats() }

// Accept returns a Session with the next ready peer. It connects several peers concurrently, so a slow one does not delay the others. Peers
// that are not ready when it returns are left to the next call. The error of ctx and bootstrap.ErrClosed (after Close) are final; any other
// error concerns one peer, and Accept can be called again.
func (l *Listener) Accept(ctx context.Context) (*Session, error) {
	if l.listener == nil {
		return nil, bootstrap.ErrClosed
	}
	if ctx == nil {
		return nil, verbs.Invalidf("accept: the Context is nil")
	}
	accepting, cancel := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- l.acceptPeers(accepting) }()
	var j acceptResult
	select {
	case j = <-l.results:
		cancel()
		<-stopped
	case err := <-stopped: // ctx is done or the Listener is closed
		cancel()
		return nil, err
	}
	<-l.slots
	switch {
	case l.ctx.Err() != nil: // it may have failed for that reason
		j.err = l.closed()
	case j.err == nil:
		j.err = j.session.sendReady(ctx)
	}
	if j.err != nil && j.session != nil {
		return nil, errors.Join(j.err, j.session.Close())
	}
	return j.session, j.err
}

// acceptPeers connects all authenticated peers until ctx is done or the Listener is closed.
func (l *Listener) acceptPeers(ctx context.Context) error {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("accept on %v: %w", l.Addr(), ctx.Err())
		case <-l.ctx.Done():
			return l.closed()
		}
		conn, err := l.listener.Accept(ctx)
		if err != nil {
			<-l.slots
			return err
		}
		if !l.startJoin() {
			return errors.Join(l.closed(), conn.Close())
		}
		go l.join(conn)
	}
}

func (l *Listener) closed() error {
	return fmt.Errorf("accept on %v: %w", l.Addr(), bootstrap.ErrClosed)
}

// startJoin registers a goroutine that Close waits for. It returns false if the Listener is closed.
func (l *Listener) startJoin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.work.Add(1)
	return true
}

// join connects to a peer and passes the Session to Accept.
func (l *Listener) join(conn *bootstrap.Conn) {
	defer l.work.Done()
	s, err := ownConn(newSession(l.ctx, conn, false, &l.cfg))
	select {
	case l.results <- acceptResult{s, err}:
	case <-l.ctx.Done():
		if s != nil {
			_ = s.Close()
		}
	}
}

// Close closes the port and every Session not yet returned by Accept. The others stay open.
func (l *Listener) Close() error {
	if l.listener == nil {
		return bootstrap.ErrClosed
	}
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	err := l.listener.Close()
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(err, l.cfg.closeBase())
}

// closeBase closes the Rails that Sessions were forked from. Forked Rails stay open.
func (c *Config) closeBase() error {
	if c.base == nil {
		return nil
	}
	base := c.base
	c.base = nil
	return base.Close()
}
