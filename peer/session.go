package peer

import (
	"context"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// Session is a VirtualQP that is connected to one of a peer, and what belongs to it. The
// VirtualCQ and the VirtualQP are for one goroutine at a time; with failover both sides
// must poll as long as the Session is open. A peer that dies ends the VirtualQP in
// ibverbx.ErrPeerGone, at once if its host says so and otherwise when it has been silent for
// too long; without failover only requests to it notice, and Conn.Done.
type Session struct {
	QP    *ibverbx.VirtualQP
	CQ    *ibverbx.VirtualCQ
	Rails *ibverbx.Rails
	// Local is this side's memory, in the order of Config.Regions, and Remote the peer's.
	Local  []*ibverbx.Region
	Remote []RemoteRegion
	// Conn is the connection to the peer: it carries the control channel, and messages of
	// the program's own (bootstrap.KindApplication).
	Conn *bootstrap.Conn
	// Agreed is what the two sides agreed on.
	Agreed Agreement

	closers []func() error
}

// RemoteRegion is memory of the peer, and what the peer calls it.
type RemoteRegion struct {
	Name string
	ibverbx.RemoteRegion
}

// Region returns the peer's memory of that name, nil if there is none.
func (s *Session) Region(name string) *ibverbx.RemoteRegion {
	for i := range s.Remote {
		if s.Remote[i].Name == name {
			return &s.Remote[i].RemoteRegion
		}
	}
	return nil
}

// Send sends the peer a message of the program's own, and Recv takes one: see
// bootstrap.Conn.
func (s *Session) Send(ctx context.Context, body []byte) error {
	return s.Conn.Send(ctx, bootstrap.KindApplication, body)
}

// Recv takes the next message of the peer.
func (s *Session) Recv(ctx context.Context) ([]byte, error) {
	return s.take(ctx, bootstrap.KindApplication)
}

// Finish tells the peer that this side has all it wanted of it, and waits until the peer
// says the same, or ctx ends: then neither closes while the other still waits for a
// completion. Meanwhile it polls, because the peer may need this side to bring a lane back.
// Requests of this side must have ended; completions and messages that nobody has taken are
// lost.
func (s *Session) Finish(ctx context.Context) error {
	if err := s.Conn.Send(ctx, bootstrap.KindDone, nil); err != nil {
		return err
	}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- s.takeDone(ctx)
		stop()
	}()
	// It ends when the peer is done, or the VirtualCQ can be polled no more, which does not
	// matter here.
	_ = s.CQ.Serve(polling, nil)
	return <-done
}

// takeDone waits until the peer says that it is done.
func (s *Session) takeDone(ctx context.Context) error {
	for {
		m, err := s.Conn.Recv(ctx)
		if err != nil || m.Kind == bootstrap.KindDone {
			return err
		}
	}
}

// Close closes everything that the call made or opened, in the right order. A peer whose
// requests have not ended sees them fail (ibverbx.ErrPeerGone): see Finish.
func (s *Session) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *Session) onClose(f func() error) { s.closers = append(s.closers, f) }

// take takes a message that must be of the given kind.
func (s *Session) take(ctx context.Context, kind bootstrap.Kind) ([]byte, error) {
	m, err := s.Conn.Recv(ctx)
	if err != nil {
		return nil, err
	}
	if m.Kind != kind {
		return nil, fmt.Errorf("receive from %v: %w: a message of kind %d, where one of kind %d belongs", s.Conn.Peer().Addr, bootstrap.ErrProtocol, m.Kind, kind)
	}
	return m.Body, nil
}

// build registers memory and makes the VirtualQP that was agreed on. The connection carries
// its control channel.
func (s *Session) build(c *Config, rails []ibverbx.RailConfig) (err error) {
	if s.Rails, err = ibverbx.NewRails(rails...); err != nil {
		return err
	}
	s.onClose(s.Rails.Close)
	// Memory goes behind the VirtualQP: requests that the peer has under way would meet dead
	// keys otherwise, and say so instead of that this side has gone.
	for i := range c.Regions {
		if err := s.register(&c.Regions[i]); err != nil {
			return fmt.Errorf("region %d (%q): %w", i, c.Regions[i].Name, err)
		}
	}
	cfg := c.QP
	a := &s.Agreed
	cfg.Lanes, cfg.SendDepth, cfg.RecvDepth, cfg.LaneDepth = a.Lanes, a.SendDepth, a.RecvDepth, a.LaneDepth
	cfg.Scheme, cfg.FragmentSize, cfg.Track = a.Scheme, uint32(a.FragmentSize), a.Track
	queue := c.CQ
	if queue.Waker == nil {
		queue.Waker = verbs.NewWaker()
	}
	if queue.Depth == 0 {
		queue.Depth = completions(&cfg, len(rails), queue.SharedReceives)
	}
	if a.Failover {
		cfg.Control = &control{Control: s.Conn.Control(queue.Waker.Wake), conn: s.Conn}
	}
	if s.CQ, err = s.Rails.NewCQ(queue); err != nil {
		return err
	}
	s.onClose(s.CQ.Close)
	if s.QP, err = s.CQ.NewQP(cfg); err != nil {
		return err
	}
	s.onClose(s.QP.Close)
	return nil
}

// control is the control channel of a Session. When the connection has ended, and not by this
// side, the peer is gone: a side that only waits for the peer would not learn of it otherwise.
type control struct {
	*bootstrap.Control
	conn *bootstrap.Conn
	gone error
}

// Recv implements ibverbx.Control.
func (c *control) Recv(b []byte) (int, error) {
	n, err := c.Control.Recv(b)
	if err == nil {
		return n, nil
	}
	if c.gone == nil {
		if c.gone = c.conn.Err(); !errors.Is(c.gone, bootstrap.ErrClosed) {
			c.gone = fmt.Errorf("%w: %w", ibverbx.ErrPeerGone, c.gone)
		}
	}
	return 0, c.gone
}

// completions is how many of them a rail can have outstanding: those of its share of the
// lanes, and of the message and the notify lane.
func completions(cfg *ibverbx.Config, rails, shared int) int {
	const defaultNotify = 64
	notify := cfg.NotifyDepth
	if notify == 0 {
		notify = defaultNotify
	}
	lanes := (cfg.Lanes-1)/rails + 1 + 2
	return lanes*(cfg.LaneDepth+notify) + cfg.RecvDepth + shared
}

// register gives the peer memory.
func (s *Session) register(r *RegionConfig) (err error) {
	mem := r.Memory
	if mem == nil {
		if mem, err = verbs.AllocMemory(r.Size, nil); err != nil {
			return err
		}
		s.onClose(mem.Free)
	}
	access := r.Access
	if access == 0 {
		access = verbs.AccessAll
	}
	region, err := s.Rails.Register(mem, access)
	if err != nil {
		return err
	}
	s.onClose(region.Close)
	s.Local = append(s.Local, region)
	return nil
}
