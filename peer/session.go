package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/closer"
	"ibverbx/verbs"
)

// Session is a VirtualQP that is connected to a peer's VirtualQP, with its memory and its
// connection. One goroutine at a time may use the VirtualCQ and the VirtualQP. With failover
// both sides must poll while the Session is open.
//
// With failover a dead peer ends the VirtualQP with ibverbx.ErrPeerGone. That happens at once
// if the peer's host reports it, otherwise after bootstrap.Config.DeadAfter. Without failover
// only failed requests and Conn.Done show that the peer is dead.
type Session struct {
	QP    *ibverbx.VirtualQP
	CQ    *ibverbx.VirtualCQ
	Rails *ibverbx.Rails
	// Conn is the connection to the peer. It carries the control channel and the messages of
	// the application (bootstrap.KindApplication).
	Conn *bootstrap.Conn
	// Agreed is the result of the negotiation.
	Agreed Agreement
	// Link is what joins the two sides: LinkShm, LinkUDP, or empty if the NICs are hardware.
	Link Link
	// LinkReason says why Link is not LinkShm.
	LinkReason string

	// local is this side's memory by name.
	local map[string]*ibverbx.Region
	// remote is the peer's memory by name.
	remote map[string]*ibverbx.RemoteRegion
	// closers close everything that the Session created or opened.
	closers closer.Stack
	// on runs a step that uses CQ: Config.SharedCQ, or the step itself.
	on func(step func(*ibverbx.VirtualCQ) error) error
	// aside is Config.OnServiceMessage.
	aside func(body []byte)
	// shared says that CQ belongs to the program (Config.SharedCQ).
	shared bool
	// incarnation is the number of the VirtualQP in its card. Records in the log have it.
	incarnation uint64
	// peerDone says that the peer has called WaitDone.
	peerDone bool
	// peerStopped says that the peer's WaitDone no longer polls.
	peerStopped bool
}

// Local returns this side's memory of that name (RegionConfig.Name), or nil.
func (s *Session) Local(name string) *ibverbx.Region { return s.local[name] }

// Remote returns the peer's memory of that name, or nil.
func (s *Session) Remote(name string) *ibverbx.RemoteRegion { return s.remote[name] }

// RemoteNames returns the names of the peer's memory, sorted.
func (s *Session) RemoteNames() []string { return slices.Sorted(maps.Keys(s.remote)) }

// Send sends the peer's application a message. See bootstrap.Conn.
func (s *Session) Send(ctx context.Context, body []byte) error {
	return s.Conn.Send(ctx, bootstrap.KindApplication, body)
}

// Recv returns the next message of the peer's application.
func (s *Session) Recv(ctx context.Context) ([]byte, error) {
	return s.take(ctx, bootstrap.KindApplication)
}

// WaitDone tells the peer that this side is done, and waits until the peer is done too or
// ctx ends. Call it before Close, so that neither side closes while the other waits for a
// completion. This side's requests must have completed. WaitDone keeps polling until the
// peer is done, because the peer may need this side to rebuild a lane. When it returns, the
// peer has stopped polling too and does not take this side's Close for a failure.
// Completions and messages that the caller has not taken before are lost. With Config.SharedCQ the
// program polls meanwhile, and loses no completions.
func (s *Session) WaitDone(ctx context.Context) error {
	if err := s.Conn.Send(ctx, bootstrap.KindDone, nil); err != nil {
		return err
	}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- s.takeDone(ctx, &s.peerDone)
		stop()
	}()
	if !s.shared {
		// Serve ends when the peer is done. It also ends when the VirtualQP has failed or the
		// VirtualCQ can no longer be polled, which does not matter here.
		_ = s.CQ.Serve(polling, nil)
	}
	err := <-done
	s.sayStopped(ctx)
	if err == nil && !s.peerStopped {
		_ = s.takeDone(ctx, &s.peerStopped) // both sides are done, so an error does not matter
	}
	return err
}

// stopped is the body of the second KindDone message: the sender no longer polls.
const stopped = "\x01"

// sayStopped tells the peer that this side no longer polls, even if ctx has ended.
func (s *Session) sayStopped(ctx context.Context) {
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.Conn.Send(brief, bootstrap.KindDone, []byte(stopped)) // if the peer is gone it need not know
}

// takeDone receives messages until the peer has sent the one that sets what: peerDone or peerStopped.
func (s *Session) takeDone(ctx context.Context, what *bool) error {
	for !*what {
		m, err := s.Conn.Recv(ctx)
		if err != nil {
			return err
		}
		if m.Kind == bootstrap.KindDone {
			s.peerDone = true
			s.peerStopped = s.peerStopped || string(m.Body) == stopped
		}
	}
	return nil
}

// Close closes everything that the Session created or opened, in dependency order. Outstanding
// requests of the peer fail with ibverbx.ErrPeerGone; WaitDone avoids that. Concurrent and repeated calls return the same result.
func (s *Session) Close() error { return s.closers.Close() }

// take receives a message, which must have the given kind. Those for Config.OnServiceMessage may come before it.
func (s *Session) take(ctx context.Context, kind bootstrap.Kind) ([]byte, error) {
	m, err := s.Conn.Recv(ctx)
	for err == nil && m.Kind == bootstrap.KindService && s.aside != nil {
		s.aside(m.Body)
		if m, err = s.Conn.Recv(ctx); ctx.Err() != nil {
			err = ctx.Err() // Recv returns messages that are there even then
		}
	}
	if err != nil {
		return nil, err
	}
	if m.Kind != kind {
		return nil, fmt.Errorf("receive from %v: %w: a message of kind %d, want kind %d", s.Conn.Peer().Addr, bootstrap.ErrProtocol, m.Kind, kind)
	}
	return m.Body, nil
}

// build registers the memory and creates the VirtualQP with cfg and the agreed values. The connection
// carries its control channel.
func (s *Session) build(c *Config, cfg ibverbx.Config, rails []ibverbx.RailConfig) (err error) {
	if err := checkPorts(rails, s.Agreed.Failover); err != nil {
		return err
	}
	if !s.shared {
		if c.base != nil && s.Link != LinkShm {
			s.Rails, err = c.base.Fork()
		} else {
			s.Rails, err = ibverbx.NewRails(rails...)
		}
		if err != nil {
			return err
		}
		s.closers.Add(s.Rails.Close)
	}
	// Memory is registered first and therefore closed last. In the other order the peer's
	// requests would fail with a wrong key instead of a missing QP.
	s.local = make(map[string]*ibverbx.Region, len(c.Regions))
	for i := range c.Regions {
		if err := s.register(&c.Regions[i]); err != nil {
			return fmt.Errorf("region %d (%q): %w", i, c.Regions[i].Name, err)
		}
	}
	a := &s.Agreed
	cfg.Lanes, cfg.SendDepth, cfg.RecvDepth, cfg.LaneDepth = a.Lanes, a.SendDepth, a.RecvDepth, a.LaneDepth
	cfg.Scheme, cfg.FragmentSize = a.Scheme, uint32(a.FragmentSize)
	if a.Failover {
		cfg.Control = &control{Control: s.Conn.Control(), conn: s.Conn}
	} else {
		cfg.Deadline, cfg.KeepAtomics = 0, false // they need the control channel
	}
	if !s.shared {
		if err := s.newCQ(c.CQ, &cfg); err != nil {
			return err
		}
	}
	if err := s.on(func(cq *ibverbx.VirtualCQ) (err error) {
		s.QP, err = cq.NewQP(cfg)
		return err
	}); err != nil {
		return err
	}
	s.closers.Add(func() error { return s.on(func(*ibverbx.VirtualCQ) error { return s.QP.Close() }) })
	return nil
}

// newCQ makes a VirtualCQ for a VirtualQP.
func (s *Session) newCQ(queue ibverbx.CQConfig, cfg *ibverbx.Config) (err error) {
	if queue.Waker == nil {
		queue.Waker = verbs.NewWaker()
	}
	if queue.Depth == 0 {
		queue.Depth = completions(cfg, s.Rails.Len(), queue.SharedReceives)
	}
	if s.CQ, err = s.Rails.NewCQ(queue); err != nil {
		return err
	}
	s.closers.Add(s.CQ.Close)
	return nil
}

// control is the control channel of a Session. It reports a connection that the peer has ended
// as ibverbx.ErrPeerGone. An idle side would not notice otherwise.
type control struct {
	*bootstrap.Control
	conn *bootstrap.Conn
	// gone is the error of the ended connection; nil while it is open.
	gone error
}

// A datagram of the connection holds every control message.
const _ = uint(bootstrap.MaxDatagram - ibverbx.MaxControl)

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

// completions is how many completions a rail can have outstanding: those of its share of the
// lanes, of the message lane and of the notify lane.
func completions(cfg *ibverbx.Config, rails, shared int) int {
	const defaultNotify = 64
	notify := cmp.Or(cfg.NotifyDepth, defaultNotify)
	lanes := (cfg.Lanes-1)/rails + 1 + 2
	return lanes*(cfg.LaneDepth+notify) + cfg.RecvDepth + shared
}

// register registers memory that the peer may use.
func (s *Session) register(r *RegionConfig) (err error) {
	var region *ibverbx.Region
	mem, access := r.Memory, cmp.Or(r.Access, verbs.AccessAll)
	if d := r.DMABuf; d != nil {
		region, err = s.Rails.RegisterDMABuf(d.FD, d.Offset, d.Length, access)
	} else {
		if mem == nil {
			if mem, err = verbs.AllocMemory(r.Size, &verbs.MemoryConfig{Shared: s.Link == LinkShm}); err != nil {
				return err
			}
			s.closers.Add(mem.Free)
		}
		region, err = s.Rails.Register(mem, access)
	}
	if err != nil {
		return err
	}
	s.closers.Add(region.Close)
	s.local[r.Name] = region
	return nil
}
