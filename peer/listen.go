package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"ibverbx"
	"ibverbx/bootstrap"
)

// maxJoining is how many peers a Listener connects to at a time. Further ones wait.
const maxJoining = 64

// Listener creates Sessions with one peer after another.
type Listener struct {
	listener *bootstrap.Listener
	cfg      Config
	ctx      context.Context // ends with the Listener
	cancel   context.CancelFunc
	mu       sync.Mutex // orders the end of ctx and additions to work
	work     sync.WaitGroup
	// places holds a token for each peer that is being connected or waits in joined.
	places chan struct{}
	// joined are the peers that are ready, or have failed, and wait for Accept.
	joined chan joined
}

// joined is a Session whose peer is ready, or the error that prevented it.
type joined struct {
	session *Session
	err     error
}

// Listen opens a port for peers. With Config.Open every Session has its own NICs. NICs in
// Config.Rails are shared by all open Sessions.
func Listen(ctx context.Context, addr string, cfg Config) (*Listener, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	if len(cfg.Rails) > 0 {
		base, err := ibverbx.NewRails(cfg.withPath(cfg.Rails)...)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", addr, err)
		}
		cfg.base = base
	}
	listener, err := bootstrap.Listen(ctx, addr, cfg.Auth)
	if err != nil {
		return nil, errors.Join(err, cfg.closeBase())
	}
	l := &Listener{listener: listener, cfg: cfg, places: make(chan struct{}, maxJoining), joined: make(chan joined)}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return l, nil
}

// Addr is the address that the Listener listens on.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Stats returns whom the Listener has let in. Any goroutine may call it.
func (l *Listener) Stats() bootstrap.ListenerStats { return l.listener.Stats() }

// Accept returns a Session with the next peer that is ready. It connects to several peers at a
// time, so a slow one delays no other. Those that are not ready when it returns are left to the next
// call. An error other than ctx's and bootstrap.ErrClosed concerns only one peer; call Accept again
// for the next.
func (l *Listener) Accept(ctx context.Context) (*Session, error) {
	taking, cancel := context.WithCancel(ctx)
	taken := make(chan error, 1)
	go func() { taken <- l.take(taking) }()
	var j joined
	select {
	case j = <-l.joined:
		cancel()
		<-taken
	case err := <-taken: // ctx or the Listener has ended
		cancel()
		return nil, err
	}
	<-l.places
	switch {
	case l.ctx.Err() != nil: // it may have failed for that reason
		j.err = l.closed()
	case j.err == nil:
		j.err = j.session.sayReady(ctx)
	}
	if j.err != nil && j.session != nil {
		return nil, errors.Join(j.err, j.session.Close())
	}
	return j.session, j.err
}

// take connects to every peer that is authenticated, until ctx or the Listener ends.
func (l *Listener) take(ctx context.Context) error {
	for {
		select {
		case l.places <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("accept on %v: %w", l.Addr(), ctx.Err())
		case <-l.ctx.Done():
			return l.closed()
		}
		conn, err := l.listener.Accept(ctx)
		if err != nil {
			<-l.places
			return err
		}
		if !l.begin() {
			return errors.Join(l.closed(), conn.Close())
		}
		go l.join(conn)
	}
}

func (l *Listener) closed() error {
	return fmt.Errorf("accept on %v: %w", l.Addr(), bootstrap.ErrClosed)
}

// begin announces a goroutine that Close waits for. It reports false if the Listener is closed.
func (l *Listener) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return false
	}
	l.work.Add(1)
	return true
}

// join connects to a peer and leaves the Session to Accept.
func (l *Listener) join(conn *bootstrap.Conn) {
	defer l.work.Done()
	s, err := own(join(l.ctx, conn, false, &l.cfg))
	select {
	case l.joined <- joined{s, err}:
	case <-l.ctx.Done():
		if s != nil {
			_ = s.Close()
		}
	}
}

// Close closes the port and every Session that Accept has not returned. The others stay open.
func (l *Listener) Close() error {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	err := l.listener.Close()
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(err, l.cfg.closeBase())
}

// closeBase closes the Rails that Sessions were forked from. Those of open Sessions stay.
func (c *Config) closeBase() error {
	if c.base == nil {
		return nil
	}
	base := c.base
	c.base = nil
	return base.Close()
}
