package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

var (
	// ErrUnnamed means that the Server's user has not listed the target.
	ErrUnnamed = errors.New("the host does not forward to it")
	// ErrBusy means that the stream limit is reached. A Client retries if its dial function returns
	// it.
	ErrBusy = errors.New("too many connections")
)

const (
	// dialTime limits the time until the host accepts a stream. The host may have to reconnect
	// first, or be at its limit for a while.
	dialTime = 10 * time.Second
	// replyTime limits the time until the host replies. The host may be waiting for the target.
	replyTime = targetTime + dialTime
)

// Client forwards connections of local programs.
type Client struct {
	acceptLimiter
	dial func(context.Context) (net.Conn, error)
}

// NewClient returns a Client. dial opens a stream to the host's Service.
func NewClient(dial func(context.Context) (net.Conn, error), say Logf) *Client {
	return &Client{acceptLimiter: newAcceptLimiter(say, MaxConns), dial: dial}
}

// Check verifies that the host forwards to a target, without connecting to it. If the host does
// not, the error wraps ErrUnnamed.
func (c *Client) Check(ctx context.Context, t Target) error {
	s, err := c.ask(ctx, request{wantCheck, t})
	if err == nil {
		_ = s.Close()
	}
	return err
}

// Serve forwards the connections that l accepts to a target, until ctx is done or l is closed. It
// then resets all connections.
func (c *Client) Serve(ctx context.Context, l net.Listener, t Target) error {
	var down logOnce
	return c.serve(ctx, l, func(ctx context.Context, local net.Conn, next func()) {
		s, err := c.ask(ctx, request{wantConnection, t})
		next()
		if err != nil {
			if ctx.Err() == nil && down.begins() {
				c.say("no connection to %s: %v", t, err)
			}
			reset(local)
			return
		}
		if down.gone() {
			c.say("connections to %s work again", t)
		}
		_, _ = join(ctx, s, local) // the program sees the end of the connection
	})
}

// ask opens a stream, sends a request and returns the stream after a positive reply. It retries
// while the host is busy.
func (c *Client) ask(ctx context.Context, q request) (net.Conn, error) {
	limit, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		s, err := c.dial(limit)
		if err == nil {
			s, err = c.request(ctx, s, q)
		}
		if !errors.Is(err, ErrBusy) || !sleep(limit, pause) {
			return s, err
		}
	}
}

// request sends a request on a stream. Without a positive reply it resets the stream.
func (c *Client) request(ctx context.Context, s net.Conn, q request) (net.Conn, error) {
	defer context.AfterFunc(ctx, func() { reset(s) })()
	_ = s.SetDeadline(time.Now().Add(replyTime))
	_, unsent := s.Write(q.encode()) // a busy Server replies before it has read the request
	r, err := readReply(s)
	if err != nil {
		err = cmp.Or(unsent, err)
	} else {
		err = r.err(q.target)
	}
	if err == nil {
		err = s.SetDeadline(time.Time{})
	}
	if err != nil {
		reset(s)
		return nil, err
	}
	return s, nil
}

// sleep waits for d. It returns false if ctx is done first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// err converts a reply to an error.
func (r reply) err(t Target) error {
	switch r.status {
	case statusUnnamed:
		return fmt.Errorf("%s: %w: name it there with ibverbx serve --forward %s", t, ErrUnnamed, t)
	case statusFailed:
		return fmt.Errorf("the host cannot reach it: %s", r.text)
	case statusBusy:
		return fmt.Errorf("the host has no room: %w", ErrBusy)
	case statusOK:
	}
	return nil
}
