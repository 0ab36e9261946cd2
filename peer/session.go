package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/closer"
	"ibverbx/verbs"
)

// Session is a VirtualQP connected to a peer's, with its memory and its connection. Only one goroutine at a time may use the VirtualCQ and
// the VirtualQP. With failover, both sides must poll while the Session is open.
//
// With failover, the VirtualQP fails with ibverbx.ErrPeerGone when the peer dies: immediately if the peer's host reports it, otherwise
// after bootstrap.Config.DeadAfter. Without failover, only failed requests and Conn.Done reveal a dead peer.
type Session struct {
	// QP is the connected VirtualQP.
	QP *ibverbx.VirtualQP
	// CQ is the VirtualCQ of QP. With Config.SharedCQ, use it only as described there.
	CQ *ibverbx.VirtualCQ
	// Rails are the local NICs.
	Rails *ibverbx.Rails
	// Conn is the connection to the peer. It carries the control channel and application messages (bootstrap.KindApplication).
	Conn *bootstrap.Conn
	// Agreed is the result of the negotiation.
	Agreed Agreement
	// Link is the link in use: LinkShm, LinkUDP, or empty for hardware NICs.
	Link Link
	// LinkReason explains why Link is not LinkShm; empty with LinkShm.
	LinkReason string

	// local is this side's memory by name.
	local map[string]*ibverbx.Region
	// remote is the peer's memory by name.
	remote map[string]*ibverbx.RemoteRegion
	// closers close everything that the Session created or opened.
	closers closer.Stack
	// withCQ runs a step that uses CQ: Config.SharedCQ, or the step itself.
	withCQ func(step func(*ibverbx.VirtualCQ) error) error
	// onServiceMessage is Config.OnServiceMessage.
	onServiceMessage func(body []byte)
	// shmConns are the connections for shareMemory.
	shmConns []*net.UnixConn
	// shared is set if CQ belongs to the program (Config.SharedCQ).
	shared bool
	// incarnation is the VirtualQP's number in its card and in log records.
	incarnation uint64
	// peerDone is set when the peer has called WaitDone.
	peerDone bool
	// peerStopped is set when the peer's WaitDone has stopped polling.
	peerStopped bool
}

// Local returns the local region with the given RegionConfig.Name, or nil.
func (s *Session) Local(name string) *ibverbx.Region { return s.local[name] }

// Remote returns the peer's region with the given name, or nil.
func (s *Session) Remote(name string) *ibverbx.RemoteRegion { return s.remote[name] }

// RemoteNames returns the sorted names of the peer's regions.
func (s *Session) RemoteNames() []string { return slices.Sorted(maps.Keys(s.remote)) }

// Send sends a message to the peer's application, at most bootstrap.MaxMessage bytes. See bootstrap.Conn.Send for errors.
func (s *Session) Send(ctx context.Context, body []byte) error {
	return s.Conn.Send(ctx, bootstrap.KindApplication, body)
}

// Recv returns the next message from the peer's application. It fails with bootstrap.ErrProtocol if a message of another kind arrives, such
// as the peer's WaitDone. See bootstrap.Conn.Recv for other errors.
func (s *Session) Recv(ctx context.Context) ([]byte, error) {
	return s.recv(ctx, bootstrap.KindApplication)
}

// WaitDone notifies the peer that this side is done, and waits until the peer is done too or ctx is done. Call it before Close, so that
// neither side closes while the other waits for a completion. Local requests must have completed. WaitDone keeps polling, because the peer
// may need this side to rebuild a lane. When it returns nil, the peer has stopped polling too and does not treat this side's Close as a
// failure. Completions and messages not yet consumed by the caller are lost. With Config.SharedCQ, the program keeps polling, and
// completions are not lost.
func (s *Session) WaitDone(ctx context.Context) error {
	if err := s.Conn.Send(ctx, bootstrap.KindDone, nil); err != nil {
		return err
	}
	polling, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- s.recvDone(ctx, &s.peerDone)
		stop()
	}()
	if !s.shared {
		// Serve returns when the peer is done. It also returns when the VirtualQP has failed or the
		// VirtualCQ can no longer be polled, which does not matter here.
		_ = s.CQ.Serve(polling, nil)
	}
	err := <-done
	s.sendStopped(ctx)
	if err == nil && !s.peerStopped {
		_ = s.recvDone(ctx, &s.peerStopped) // both sides are done, so an error does not matter
	}
	return err
}

// stopped is the body of the second KindDone message: the sender has stopped polling.
const stopped = "\x01"

// sendStopped notifies the peer that this side has stopped polling, even if ctx is done.
func (s *Session) sendStopped(ctx context.Context) {
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = s.Conn.Send(brief, bootstrap.KindDone, []byte(stopped)) // a dead peer need not know
}

// recvDone receives messages until the peer has set until: peerDone or peerStopped.
func (s *Session) recvDone(ctx context.Context, until *bool) error {
	for !*until {
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

// Close closes everything that the Session created or opened, in dependency order. The peer's
// outstanding requests fail with ibverbx.ErrPeerGone; WaitDone avoids that. Concurrent and repeated
// calls return the same result.
func (s *Session) Close() error { return s.closers.Close() }

// recv receives a message of the given kind. Messages for Config.OnServiceMessage may precede it.
func (s *Session) recv(ctx context.Context, kind bootstrap.Kind) ([]byte, error) {
	m, err := s.Conn.Recv(ctx)
	for err == nil && m.Kind == bootstrap.KindService && s.onServiceMessage != nil {
		s.onServiceMessage(m.Body)
		if m, err = s.Conn.Recv(ctx); ctx.Err() != nil {
			err = ctx.Err() // Recv returns queued messages even then
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

// sharedFragment is the fragment size on rails that share memory with the peer. A core moves one fragment after the other, as on rails with
// verbs.PortAttr.OnCaller, and each lane of a notified request costs a packet and its acknowledgment.
const sharedFragment = 1 << 20

// build registers the memory and creates the VirtualQP with cfg and the agreed values. The connection carries its control channel.
func (s *Session) build(c *Config, cfg ibverbx.Config, rails []ibverbx.RailConfig, offered []OfferRail) (err error) {
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
	cfg.Scheme, cfg.FragmentSize, cfg.CheckGID = a.Scheme, uint32(a.FragmentSize), s.checkGID(c, offered)
	if s.Link == LinkShm && s.shared && cfg.FragmentSize == 0 {
		cfg.FragmentSize = sharedFragment
	}
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
	if err := s.withCQ(func(cq *ibverbx.VirtualCQ) (err error) {
		s.QP, err = cq.NewQP(cfg)
		return err
	}); err != nil {
		return err
	}
	s.closers.Add(func() error { return s.withCQ(func(*ibverbx.VirtualCQ) error { return s.QP.Close() }) })
	return nil
}

// newCQ creates a VirtualCQ for a VirtualQP.
func (s *Session) newCQ(queue ibverbx.CQConfig, cfg *ibverbx.Config) (err error) {
	if queue.Waker == nil {
		queue.Waker = verbs.NewWaker()
	}
	if queue.Depth == 0 {
		queue.Depth = cqDepth(cfg, s.Rails.Len(), queue.SharedReceives+queue.SharedData)
	}
	if s.CQ, err = s.Rails.NewCQ(queue); err != nil {
		return fmt.Errorf("completion queues for %d lanes: %w", cfg.Lanes, err)
	}
	s.closers.Add(s.CQ.Close)
	return nil
}

// control is a Session's control channel. It reports a connection closed by the peer as ibverbx.ErrPeerGone. An idle side would not notice
// otherwise.
type control struct {
	*bootstrap.Control
	conn *bootstrap.Conn
	// gone is the error of the closed connection; nil while it is open.
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

// cqDepth returns the maximum number of outstanding completions per rail: its share of the lanes, the message lane and the notify lane.
func cqDepth(cfg *ibverbx.Config, rails, shared int) int {
	const defaultNotify = 64
	notify := cmp.Or(cfg.NotifyDepth, defaultNotify)
	lanes := (cfg.Lanes-1)/rails + 1 + 2
	return lanes*(cfg.LaneDepth+notify) + cfg.RecvDepth + shared
}

// register registers memory exposed to the peer.
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
