// Package rpc carries requests and responses between a service and its counterpart in a peer's
// process, over the sessions of package node.
//
// # Messages
//
// The first byte of a message is its kind. Kinds below Response are requests: the next four bytes
// are an id chosen by the client and repeated in the response. Unknown requests are refused, and
// unknown messages from Response on are ignored, so that later versions can add kinds. A Refusal is
// the response to a failed request.
//
// The header and the Refusal are common to all services on top of this package: a change needs a new
// version of each.
//
// # Sessions
//
// A request outlives its session: Process.Ask retries it in the next session with the same process.
// Every request must therefore be idempotent. A request fails with its process (Process.End).
package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"ibverbx/internal/broadcast"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// Kind is the type of a message, its first byte.
type Kind uint8

const (
	// Response is the first kind that is not a request.
	Response Kind = 0x80
	// KindRefusal is the kind of a Refusal in all services: id, code u8, text.
	KindRefusal Kind = 0x83

	maxText = 256 // maximum length of a Refusal's text, in bytes
)

// Begin returns the header of a request or a response.
func Begin(k Kind, id uint32) []byte { return binary.LittleEndian.AppendUint32([]byte{byte(k)}, id) }

// Refusal is the response to a failed request.
type Refusal struct {
	ID   uint32
	Code Code
	Text string
}

// Encode returns the message. A long text is truncated.
func (m *Refusal) Encode() []byte {
	text := m.Text[:min(len(m.Text), maxText)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return append(append(Begin(KindRefusal, m.ID), byte(m.Code)), text...)
}

// ReadRefusal decodes a Refusal after its kind.
func ReadRefusal(r *wire.Reader) *Refusal {
	m := &Refusal{ID: r.U32(), Code: Code(r.U8()), Text: r.Text(maxText)}
	r.Check(m.Code != 0)
	return m
}

// Unknown is a request of an unknown kind.
type Unknown struct{ ID uint32 }

// ReadUnknown decodes a message of an unknown kind, after the kind. It returns an *Unknown, or nil
// if the message must be ignored.
func ReadUnknown(k Kind, r *wire.Reader) (m any) {
	if r.Check(k != 0); k < Response {
		m = &Unknown{ID: r.U32()}
	}
	r.Skip()
	return m
}

// Process is a peer's process, while both sides remember each other, with its outstanding requests.
// Peer.NewProcess returns one.
type Process struct {
	// ID is the id chosen by the process. Incarnation is the incarnation of its sessions.
	ID, Incarnation uint64
	// Err is the reason why the process is unusable. Peer.Mu guards it.
	Err   error
	ended chan struct{}
	peer  link

	mu      sync.Mutex
	last    uint32
	waiting map[uint32]chan any
}

// link is the Peer of a Process.
type link interface {
	reach(ctx context.Context, want *Process) (s service.Session, live context.Context, err error)
	dead(proc *Process) error
	service() service.ID
}

func (c *Process) base() *Process { return c }

// Ended is closed when the process becomes unusable.
func (c *Process) Ended() <-chan struct{} { return c.ended }

// Over reports whether the process is unusable.
func (c *Process) Over() bool { return broadcast.Closed(c.ended) }

// End fails all requests to the process, and reports whether it is the first call. Peer.Mu must be held.
func (c *Process) End(err error) bool {
	if c.Err != nil {
		return false
	}
	c.Err = err
	close(c.ended)
	return true
}

// Ask sends a request to the process and returns the response. If the session closes first, Ask
// retries the request in the next one. The error for a Refusal wraps the error of its code.
//
// limit holds a token for each unanswered request. An abandoned request keeps its token until the
// peer responds: the peer still serves it, and closes the session of a client with too many
// requests.
func (c *Process) Ask(ctx context.Context, limit Limit, request func(id uint32) []byte) (any, error) {
	if err := limit.Take(ctx); err != nil {
		return nil, err
	}
	release := limit.Give
	defer func() { release() }()
	for {
		s, live, err := c.peer.reach(ctx, c)
		if err != nil {
			return nil, err
		}
		number, call := c.begin()
		sent := s.Send(ctx, c.peer.service(), request(number)) == nil // otherwise the session is closed or ctx is done
		var m any
		select {
		case m = <-call:
		case <-live.Done():
		case <-c.ended:
		case <-ctx.Done():
			if sent {
				release = func() { go c.outwait(live, limit, number, call) }
				return nil, context.Cause(ctx)
			}
		}
		c.end(number)
		switch m := m.(type) {
		case *Refusal:
			return nil, fmt.Errorf("%w (the peer says %q)", m.Code.Err(), m.Text)
		case nil:
			if err := errors.Join(c.peer.dead(c), context.Cause(ctx)); err != nil {
				return nil, err
			}
		default:
			return m, nil
		}
	}
}

// begin registers a request.
func (c *Process) begin() (id uint32, call chan any) {
	call = make(chan any, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = map[uint32]chan any{}
	}
	c.last++
	c.waiting[c.last] = call
	return c.last, call
}

func (c *Process) end(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// outwait releases the token of an abandoned request once the peer has responded or the session has
// closed.
func (c *Process) outwait(live context.Context, limit Limit, id uint32, call chan any) {
	select {
	case <-call:
	case <-live.Done():
	case <-c.ended:
	}
	c.end(id)
	limit.Give()
}

// Answer delivers a response to its request. Unexpected responses are ignored.
func (c *Process) Answer(id uint32, m any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call := c.waiting[id]; call != nil {
		delete(c.waiting, id)
		call <- m
	}
}

// Waiting reports whether a request waits for its response.
func (c *Process) Waiting(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting[id] != nil
}

// As converts the results of Process.Ask to a message of type M.
func As[M any](m any, err error) (M, error) {
	answer, ok := m.(M)
	if err == nil && !ok {
		err = fmt.Errorf("%w: the peer's response is a %T", ErrProtocol, m)
	}
	return answer, err
}

// Limit bounds concurrent use of a resource: it holds a token for each user.
type Limit chan struct{}

// Take adds a token. It blocks while the limit is reached, until ctx is done.
func (l Limit) Take(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Try adds a token unless the limit is reached.
func (l Limit) Try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give removes a token.
func (l Limit) Give() { <-l }
