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
	// ErrUnnamed means that the Server's user has not named the target.
	ErrUnnamed = errors.New("the host does not forward to it")
	// ErrBusy means that there is no room for a stream now. The dial of a Client returns it, and is called again.
	ErrBusy = errors.New("too many connections")
)

const (
	// dialTime is how long the host may take to accept a stream. It may have to be connected again first, or have no room for a while.
	dialTime = 10 * time.Second
	// replyTime is how long the host may take to reply. It may wait for the target meanwhile.
	replyTime = targetTime + dialTime
)

// Client forwards connections of this host's programs.
type Client struct {
	door
	dial func(context.Context) (net.Conn, error)
}

// NewClient makes a Client. dial opens a stream to the Service of the host.
func NewClient(dial func(context.Context) (net.Conn, error), say Say) *Client {
	return &Client{door: newDoor(say, MaxConns), dial: dial}
}

// Check asks if the host forwards to a target. If it does not, the error wraps ErrUnnamed. The host does not connect to the target.
func (c *Client) Check(ctx context.Context, t Target) error {
	s, err := c.ask(ctx, request{wantCheck, t})
	if err == nil {
		_ = s.Close()
	}
	return err
}

// Serve forwards the connections that l accepts to a target, until ctx ends or l is closed. Then it resets all connections.
func (c *Client) Serve(ctx context.Context, l net.Listener, t Target) error {
	var down problem
	return c.serve(ctx, l, func(ctx context.Context, local net.Conn, next func()) {
		s, err := c.ask(ctx, request{wantConnection, t})
		next()
		if err != nil {
			if ctx.Err() == nil && down.is() {
				c.say("no connection to %s: %v", t, err)
			}
			reset(local)
			return
		}
		if down.gone() {
			c.say("connections to %s work again", t)
		}
		join(ctx, s, local)
	})
}

// ask opens a stream and sends a request. With a reply that all is well it returns the stream. It tries again while the host has no room.
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

// request sends a request on a stream. Without a reply that all is well it resets the stream.
func (c *Client) request(ctx context.Context, s net.Conn, q request) (net.Conn, error) {
	defer context.AfterFunc(ctx, func() { reset(s) })()
	_ = s.SetDeadline(time.Now().Add(replyTime))
	_, unsent := s.Write(q.encode()) // a Server without room replies before it has read the request
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

// sleep waits for a while. It reports whether ctx has not ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// err is what a reply means.
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
