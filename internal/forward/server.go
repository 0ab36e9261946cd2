package forward

import (
	"context"
	"errors"
	"net"
	"time"
)

const (
	// requestTime is how long a Client may take to send its request.
	requestTime = 10 * time.Second
	// targetTime is how long a target may take to accept a connection.
	targetTime = 10 * time.Second
)

// Service is the name of the service that a Server is, for package stream.
const Service = "forward"

// Server connects streams of Clients to the targets that its user has named, and to no others.
type Server struct {
	door
	targets map[Target]*problem
	shares  shares
	// crowded is that a Client has asked for more than its share.
	crowded problem
	// strangers is that a Client has asked for another target.
	strangers problem
}

// NewServer makes a Server. Without targets it refuses every request.
func NewServer(targets []Target, say Say) *Server {
	s := &Server{door: newDoor(say, MaxServed), targets: map[Target]*problem{}, shares: shares{total: MaxServed, by: map[string]int{}}}
	for _, t := range targets {
		s.targets[t] = &problem{}
	}
	return s
}

// Serve serves the streams that l accepts, until ctx ends or l is closed. Then it resets all connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.serve(ctx, l, s.handle) }

// handle serves a stream. Those of a Client come in order: it waits for the reply.
func (s *Server) handle(ctx context.Context, c net.Conn, next func()) {
	next()
	peer := c.RemoteAddr().String() // that of the session: all streams of a Client have the same
	if !s.shares.take(peer) {
		if s.crowded.is() {
			s.say("%v has its share of %d connections: more must wait", c.RemoteAddr(), s.shares.total)
		}
		_, _ = c.Write(reply{status: statusBusy}.encode())
		_ = c.Close()
		return
	}
	defer s.shares.give(peer)
	s.crowded.gone()
	b, answer := s.meet(ctx, c)
	if answer == nil {
		reset(c)
		return
	}
	if _, err := c.Write(answer.encode()); err != nil {
		reset(c)
		if b != nil {
			reset(b)
		}
		return
	}
	if b == nil {
		_ = c.Close() // waits until the answer has arrived
		return
	}
	join(ctx, c, b)
}

// meet reads the request of a Client and connects to the target. Without a reply the request was wrong.
func (s *Server) meet(ctx context.Context, c net.Conn) (net.Conn, *reply) {
	defer context.AfterFunc(ctx, func() { reset(c) })()
	_ = c.SetReadDeadline(time.Now().Add(requestTime))
	q, err := readRequest(c)
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return nil, nil
	}
	down := s.targets[q.target]
	switch {
	case down == nil:
		if s.strangers.is() {
			s.say("%v asked for %s, which --forward does not name; further requests like this are not told", c.RemoteAddr(), q.target)
		}
		return nil, &reply{status: statusUnnamed}
	case q.want == wantCheck:
		return nil, &reply{}
	}
	b, err := (&net.Dialer{Timeout: targetTime}).DialContext(ctx, q.target.network(), string(q.target))
	switch {
	case err == nil:
		if down.gone() {
			s.say("%s is back", q.target)
		}
		return b, &reply{}
	case ctx.Err() == nil && down.is():
		s.say("%s cannot be reached: %v", q.target, err)
	}
	return nil, &reply{status: statusFailed, text: printable(cause(err))}
}

// cause is the text of an error of Dial without the address, which the Client knows.
func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err.Error()
}
