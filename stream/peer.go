package stream

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"

	"ibverbx/internal/service"
	"ibverbx/internal/u32map"
	"ibverbx/node"
)

// maxRequests limits the outstanding open requests per peer. Further ones wait.
const maxRequests = 256

// peer holds the streams with one peer.
type peer struct {
	owner   *streamService
	service service.Peer
	// traffic holds the counters of the peer's first host.
	traffic  *traffic
	pool     pool
	requests chan struct{}
	// polled is set while a goroutine polls. Others leave polling to it.
	polled atomic.Bool

	// Link is the session. Its Mu guards the fields below too.
	service.Link
	// conns maps ids to the session's streams.
	conns  u32map.Map[*Conn]
	lastID uint16
}

// newPeer returns the state for a peer.
func (h *streamService) newPeer(s service.Peer) *peer {
	addr := s.Identity().Addr
	p := &peer{owner: h, service: s, requests: make(chan struct{}, maxRequests)}
	p.Peer, p.Name, p.Done = s, "streams", h.service.Done()
	p.pool.peer = p
	h.mu.Lock()
	defer h.mu.Unlock()
	_, p.traffic = h.traffic.Of(addr)
	return p
}

// ready waits for a session, other than lost, in which the peer supports streams.
func (p *peer) ready(ctx context.Context, lost service.Session) (s service.Session, err error) {
	err = p.Wait(ctx, nil, func() (bool, error) {
		s = p.Session
		return s != nil && s != lost, nil
	})
	return s, err
}

// isCurrent reports whether s is the current session.
func (p *peer) isCurrent(s service.Session) bool {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	return p.Session == s
}

// Hello implements service.PeerHandler. Its body is still empty.
func (p *peer) Hello(service.Session) ([]byte, bool, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Expect()
	return nil, true, nil
}

// Up implements service.PeerHandler.
func (p *peer) Up(s service.Session, _ []byte) error {
	p.pool.close(false)
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Begin(context.Background(), s)
	return nil
}

// Down implements service.PeerHandler. It resets the session's streams.
func (p *peer) Down(s service.Session, cause error) {
	p.Mu.Lock()
	if !p.Drop(s) {
		p.Mu.Unlock()
		return
	}
	var lost []*Conn
	p.conns.DeleteFunc(func(_ uint32, c *Conn) bool {
		lost = append(lost, c)
		return true
	})
	p.Mu.Unlock()
	err := reset(cause)
	for _, c := range lost {
		c.lose(err)
	}
}

// reset returns the error of a stream whose session is lost. It does not wrap the cause, which may be the connection's io.EOF: a program
// would mistake it for the end of the stream.
func reset(cause error) error { return fmt.Errorf("%w: %s", syscall.ECONNRESET, cause.Error()) }

// Gone implements service.PeerHandler.
func (p *peer) Gone(cause error, _ bool) {
	p.Mu.Lock()
	p.Err = cause
	p.Changed.Raise()
	p.Mu.Unlock()
	p.pool.close(true)
	p.pool.sweep()
	p.owner.retired.free(p.owner)
}

// find returns a session's stream by id, or nil if it is closed.
func (p *peer) find(s service.Session, id uint16) (c *Conn) {
	p.Mu.Lock()
	if p.Session == s {
		c = p.conns.Find(uint32(id))
	}
	p.Mu.Unlock()
	if c == nil {
		p.owner.counts.unclaimed.Add(1)
	}
	return c
}

// add registers a stream in its session and assigns its id.
func (p *peer) add(c *Conn) error {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	switch {
	case p.Session != c.session:
		return node.ErrLost
	case p.conns.Len() >= MaxStreams:
		return fmt.Errorf("%w: the peer has %d", ErrBusy, MaxStreams)
	}
	for p.lastID++; p.conns.Find(uint32(p.lastID)) != nil; {
		p.lastID++
	}
	c.id = p.lastID
	p.conns.Set(uint32(c.id), c)
	return nil
}

// remove forgets a stream whose memory is unused. It may be called with the shard's lock held.
func (p *peer) remove(c *Conn) {
	p.Mu.Lock()
	if p.conns.Find(uint32(c.id)) == c {
		p.conns.Delete(uint32(c.id))
	}
	p.Mu.Unlock()
	p.pool.put(c.block)
	p.traffic.streams.Add(-1)
}

// Message implements service.PeerHandler.
func (p *peer) Message(s service.Session, body []byte) error {
	m, err := decode(body)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *open:
		answer := p.serve(s, m)
		_ = s.Send(context.Background(), service.StreamID, answer) // without the session the stream is lost
	case *accept:
		c := p.dialing(s, m.to)
		if c == nil {
			return fmt.Errorf("%w: stream %d was not asked for", errProtocol, m.to)
		}
		c.establish(m.from, m.ring)
		c.push()
		c.returnCredit()
	case *refuse:
		c := p.dialing(s, m.to)
		if c == nil {
			return fmt.Errorf("%w: stream %d was not asked for", errProtocol, m.to)
		}
		var err error = syscall.ECONNREFUSED
		if m.code == codeBusy {
			err = ErrBusy
		}
		c.lose(fmt.Errorf("%w (the peer says %q)", err, m.text))
	}
	return nil
}

// Immediate implements service.PeerHandler.
func (p *peer) Immediate(s service.Session, imm, length uint32) error {
	if service.Class(imm) == classCredit {
		m := decodeCredit(imm)
		if c := p.find(s, m.id); c != nil {
			return c.credited(m)
		}
		return nil
	}
	d, err := decodeData(imm)
	if err != nil {
		return err
	}
	if c := p.find(s, d.id); c != nil {
		return c.arrived(length, d)
	}
	return nil
}

// dialing returns a stream waiting for the peer's response, or nil.
func (p *peer) dialing(s service.Session, id uint16) *Conn {
	c := p.find(s, id)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open || c.err != nil {
		return nil
	}
	return c
}

// serve returns the response to an open request.
func (p *peer) serve(s service.Session, m *open) []byte {
	p.owner.mu.RLock()
	l := p.owner.listeners[m.service]
	p.owner.mu.RUnlock()
	if l == nil {
		p.owner.counts.refused.Add(1)
		return (&refuse{m.from, codeUnknown, "unknown service"}).encode()
	}
	c, err := p.newConn(&l.cfg, s, m.service)
	if err == nil {
		answer := (&accept{to: m.from, from: c.id, ring: c.block.grant()}).encode()
		c.establish(m.from, m.ring)
		if l.offer(c) {
			p.owner.counts.accepted.Add(1)
			return answer
		}
		c.mu.Lock()
		c.closed = true // before fail, which counts the loss of an open stream
		c.fail(ErrBusy)
		c.unlock()
	}
	p.owner.counts.refused.Add(1)
	if l.isClosed() {
		return (&refuse{m.from, codeUnknown, "the service is closed"}).encode()
	}
	return (&refuse{m.from, codeBusy, "try again later"}).encode()
}

// newConn creates a stream in a session.
func (p *peer) newConn(cfg *Config, s service.Session, service string) (*Conn, error) {
	b, err := p.pool.get(cfg.Ring, cfg.Memory)
	if err != nil {
		return nil, err
	}
	c := newConn(p, s, service, b)
	if err := p.add(c); err != nil {
		p.pool.put(b)
		return nil, err
	}
	p.traffic.streams.Add(1)
	return c, nil
}

// request opens a stream at the peer.
func (p *peer) request(ctx context.Context, c *Conn) error {
	select {
	case p.requests <- struct{}{}:
	case <-ctx.Done():
		c.lose(context.Cause(ctx))
		return context.Cause(ctx)
	}
	m := open{from: c.id, ring: c.block.grant(), service: c.service}
	if err := c.session.Send(ctx, service.StreamID, m.encode()); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		c.lose(err)
		<-p.requests
		return err
	}
	select {
	case <-c.responded:
		<-p.requests
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err
	case <-ctx.Done():
		go func() { // the request is outstanding until the peer responds or the session is lost
			<-c.responded
			<-p.requests
		}()
		return context.Cause(ctx)
	}
}
