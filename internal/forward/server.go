package forward

import (
	"context"
	"errors"
	"net"
	"time"
)

const (
	// requestTime limits the time until a Client sends its request.
	requestTime = 10 * time.Second
	// targetTime limits the time until a target accepts a connection.
	targetTime = 10 * time.Second
)

// Service is the name of a Server's service in package stream.
const Service = "forward"

// Server connects Clients' streams to the targets listed by its user.
type Server struct {
	acceptLimiter
	// OnServed, unless nil, is called after each connection to a target, and after each request refused or failed. Set it before Serve. Calls may
	// be concurrent.
	OnServed func(Served)
	targets  map[Target]*logOnce
	shares   fairLimiter
	// crowded is set after a Client has exceeded its share.
	crowded logOnce
	// unlisted is set after a Client has requested an unlisted target.
	unlisted logOnce
}

// Served describes a Client's connection that has ended, for an access log.
type Served struct {
	// Stream is the Client's stream. It may be closed.
	Stream net.Conn
	// Target is the requested target. It is not escaped.
	Target Target
	// Start is the time of the request, Duration the time until the connection was closed.
	Start    time.Time
	Duration time.Duration
	// Received counts the bytes from the Client, Sent those to it.
	Received, Sent int64
	// Err is nil if both directions ended regularly.
	Err error
}

// served calls OnServed.
func (s *Server) served(c net.Conn, t Target, start time.Time, moved moved, err error) {
	if s.OnServed != nil {
		s.OnServed(Served{Stream: c, Target: t, Start: start, Duration: time.Since(start), Received: moved.received, Sent: moved.sent, Err: err})
	}
}

// NewServer returns a Server. Without targets it refuses every request.
func NewServer(targets []Target, say Logf) *Server {
	s := &Server{acceptLimiter: newAcceptLimiter(say, MaxServed), targets: map[Target]*logOnce{}, shares: fairLimiter{total: MaxServed, by: map[string]int{}}}
	for _, t := range targets {
		s.targets[t] = &logOnce{}
	}
	return s
}

// Serve serves the streams that l accepts, until ctx is done or l is closed. It then resets all
// connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) error { return s.serve(ctx, l, s.handle) }

// handle serves a stream. A Client's streams arrive in order, because it waits for the reply.
func (s *Server) handle(ctx context.Context, c net.Conn, next func()) {
	next()
	peer := c.RemoteAddr().String() // the session's address, shared by all streams of a Client
	if !s.shares.take(peer) {
		if s.crowded.begins() {
			s.say("%v has its share of %d connections: more must wait", c.RemoteAddr(), s.shares.total)
		}
		_, _ = c.Write(reply{status: statusBusy}.encode())
		_ = c.Close()
		return
	}
	defer s.shares.give(peer)
	s.crowded.gone()
	start := time.Now()
	b, target, answer := s.meet(ctx, c)
	if answer != nil && answer.status != statusOK {
		s.served(c, target, start, moved{}, answer.failure())
	}
	if answer == nil {
		reset(c)
		return
	}
	if _, err := c.Write(answer.encode()); err != nil {
		reset(c)
		if b != nil {
			reset(b)
			s.served(c, target, start, moved{}, err)
		}
		return
	}
	if b == nil {
		_ = c.Close() // waits until the reply has arrived
		return
	}
	moved, err := join(ctx, c, b)
	s.served(c, target, start, moved, err)
}

// meet reads a Client's request and connects to the target. A nil reply means that the request was
// invalid.
func (s *Server) meet(ctx context.Context, c net.Conn) (net.Conn, Target, *reply) {
	defer context.AfterFunc(ctx, func() { reset(c) })()
	_ = c.SetReadDeadline(time.Now().Add(requestTime))
	q, err := readRequest(c)
	if err != nil || c.SetReadDeadline(time.Time{}) != nil {
		return nil, "", nil
	}
	down := s.targets[q.target]
	switch {
	case down == nil:
		if s.unlisted.begins() {
			s.say("%v asked for %s, which --forward does not name; further ones are not logged", c.RemoteAddr(), q.target)
		}
		return nil, q.target, &reply{status: statusUnnamed}
	case q.want == wantCheck:
		return nil, q.target, &reply{}
	}
	b, err := (&net.Dialer{Timeout: targetTime}).DialContext(ctx, q.target.network(), string(q.target))
	switch {
	case err == nil:
		setLinger(b, 0)
		if down.gone() {
			s.say("%s is back", q.target)
		}
		return b, q.target, &reply{}
	case ctx.Err() == nil && down.begins():
		s.say("%s cannot be reached: %v", q.target, err)
	}
	return nil, q.target, &reply{status: statusFailed, text: printable(cause(err))}
}

// failure returns the error of a negative reply.
func (r reply) failure() error {
	if r.status == statusUnnamed {
		return ErrUnnamed
	}
	return errors.New(r.text)
}

// cause returns the text of a Dial error without addresses: the Client knows the target's address, and must not learn the addresses of name servers.
func cause(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case !errors.As(err, &dns):
		if errors.As(err, &op) {
			err = op.Err
		}
		return err.Error()
	case dns.IsNotFound:
		return "no such host"
	case dns.IsTimeout:
		return "resolving its name timed out"
	}
	return "its name cannot be resolved"
}
