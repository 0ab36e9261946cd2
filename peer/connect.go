package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/printable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Dial connects to the listener at addr ("host:port") and returns when both sides are ready. ctx only bounds the call. Errors wrap
// verbs.ErrInvalid for an invalid Config, ErrMismatch if the negotiation fails, or a bootstrap error, for example for failed
// authentication.
func Dial(ctx context.Context, addr string, cfg Config) (*Session, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, printable.Error(fmt.Errorf("dial %s: %w", addr, err))
	}
	conn, err := bootstrap.Dial(ctx, addr, cfg.Auth)
	if err != nil {
		return nil, err
	}
	return ownConn(newSession(ctx, conn, true, &cfg))
}

// Accept waits at addr ("host:port", or ":port" for all addresses) for one authenticated peer, and returns when both sides are ready. It
// rejects peers that fail authentication, and continues waiting. Other errors are as for Dial.
func Accept(ctx context.Context, addr string, cfg Config) (*Session, error) {
	l, err := Listen(ctx, addr, cfg)
	if err != nil {
		return nil, err
	}
	s, err := l.Accept(ctx)
	return s, errors.Join(err, l.Close())
}

// Connect creates a Session on an existing connection. Exactly one side must set dialer. The caller keeps ownership of the connection, but
// must not receive on it during the call. Once both sides have closed the Session, the connection can carry another one. On error, Connect
// closes the connection. Errors are as for Dial.
func Connect(ctx context.Context, conn *bootstrap.Conn, dialer bool, cfg Config) (*Session, error) {
	cfg = cfg.withDefaults()
	if conn == nil {
		return nil, verbs.Invalidf("connect: the Conn is nil")
	}
	err := cfg.validate()
	if ctx == nil {
		err = verbs.Invalidf("the Context is nil")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), conn.Close())
	}
	s, err := newSession(ctx, conn, dialer, &cfg)
	if err == nil && !dialer {
		if err = s.sendReady(ctx); err != nil {
			return nil, errors.Join(err, s.Close(), conn.Close())
		}
	}
	return s, err
}

// ownConn makes the Session close the connection, after everything else.
func ownConn(s *Session, err error) (*Session, error) {
	if err == nil {
		s.closers.AddBelow(s.Conn.Close)
	}
	return s, err
}

// newSession creates a Session on a connection. On error it closes the connection. A listener's peer waits until the listener calls sendReady.
func newSession(ctx context.Context, conn *bootstrap.Conn, dialer bool, c *Config) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	c = c.forPeer(conn.Peer())
	s := &Session{Conn: conn, onServiceMessage: c.OnServiceMessage}
	if err := s.establish(ctx, dialer, c); err != nil {
		role := "this side listens"
		if dialer {
			role = "this side dials"
		}
		err = fmt.Errorf("connect to %v (%s): %w", conn.Peer().Addr, role, err)
		return nil, errors.Join(err, s.Close(), conn.CloseWith(err.Error()))
	}
	return s, nil
}

// establish negotiates with the peer, builds the VirtualQP, and connects it.
func (s *Session) establish(ctx context.Context, dialer bool, c *Config) error {
	var theirs *Offer
	var err error
	if !dialer { // first, so that a silent peer costs only a connection
		if theirs, err = s.recvOffer(ctx); err != nil {
			return err
		}
	}
	rails, err := s.open(c)
	if err != nil {
		return fmt.Errorf("open NICs: %w", err)
	}
	secret := s.Conn.Secret()
	mine, err := c.newOffer(rails, secret != nil)
	if err != nil {
		return err
	}
	link := s.startShmHandshake(ctx, c, rails, theirs)
	mine.Link = link.mine
	if err := s.sendOffer(ctx, mine); err != nil {
		return err
	}
	if dialer {
		if theirs, err = s.recvOffer(ctx); err != nil {
			return err
		}
		s.Agreed, err = negotiate(mine, theirs)
	} else {
		s.Agreed, err = negotiate(theirs, mine)
	}
	if err != nil {
		return err
	}
	if rails, err = s.finishShmHandshake(ctx, link, &theirs.Link, rails); err != nil {
		return err
	}
	if c.RequireSealed && !s.Agreed.Sealed && (s.Link != LinkShm || s.shared) {
		return unsealedError(dialer, mine, theirs)
	}
	cfg := c.QP
	if cfg.Log != nil {
		cfg.Log = peerLogger(cfg.Log, s.Conn.Peer())
	}
	if cfg.Seal, err = s.seal(secret, dialer, cfg.Seal); err != nil {
		return err
	}
	if err := s.shareMemory(ctx, c, rails, cfg.Seal); err != nil {
		return err
	}
	if err := s.build(c, cfg, rails, mine.Rails); err != nil {
		return err
	}
	card, err := s.exchangeCards(ctx, c, mine.Rails)
	if err != nil {
		return err
	}
	if err := s.connect(card); err != nil {
		return err
	}
	if dialer {
		if err := s.sendReady(ctx); err != nil {
			return err
		}
	}
	if err := s.waitReady(ctx); err != nil {
		return err
	}
	s.log(cfg.Log)
	return nil
}

// connect connects the VirtualQP to the peer's.
func (s *Session) connect(card *ibverbx.Card) error {
	for i := range card.Lanes { // a lane uses the smaller MTU of both ends
		card.Lanes[i].MTU = min(card.Lanes[i].MTU, s.Agreed.MTU)
	}
	return s.withCQ(func(*ibverbx.VirtualCQ) error { return s.QP.Connect(card) })
}

// peerLogger returns a logger whose records identify the peer.
func peerLogger(log *slog.Logger, p bootstrap.Peer) *slog.Logger {
	log = log.With(slog.String("peer", p.Addr.String()))
	if p.Name != "" {
		log = log.With(slog.String("name", p.Name))
	}
	return log
}

// log records that the Session is connected, and adds a closer that records that it is closed. It
// is a no-op if to is nil.
func (s *Session) log(to *slog.Logger) {
	if to == nil {
		return
	}
	a := &s.Agreed
	vqp := slog.Uint64("vqp", s.incarnation)
	to.Info("connected", vqp, slog.String("link", string(s.Link)), slog.Int("rails", s.Rails.Len()), slog.Int("lanes", a.Lanes),
		slog.String("scheme", a.Scheme.String()), slog.Bool("failover", a.Failover), slog.Bool("sealed", a.Sealed))
	s.closers.Add(func() error {
		attrs := []any{vqp}
		if err := s.QP.Err(); err != nil {
			attrs = append(attrs, slog.Any("cause", err))
		}
		to.Info("closed", attrs...)
		return nil
	})
}

// seal returns the Seal for the Session's packets: the agreed one, or given.
func (s *Session) seal(secret []byte, dialer bool, given verbs.Seal) (verbs.Seal, error) {
	if s.Link == LinkShm && !s.shared { // shared memory does not use packets
		s.Agreed.Sealed = false
		return nil, nil
	}
	if !s.Agreed.Sealed {
		return given, nil
	}
	seal, err := softnic.NewSeal(secret, dialer)
	if err != nil {
		return nil, err
	}
	s.closers.Add(seal.Close) // after the VirtualQP
	return seal, nil
}

// open returns the local rails. It opens NICs if the Config does not contain any.
func (s *Session) open(c *Config) ([]ibverbx.RailConfig, error) {
	if s.withCQ = c.SharedCQ; s.withCQ != nil {
		s.shared = true
		if err := s.withCQ(func(cq *ibverbx.VirtualCQ) error {
			s.CQ, s.Rails = cq, cq.Rails()
			return nil
		}); err != nil {
			return nil, err
		}
		return s.Rails.Configs(), nil
	}
	s.withCQ = func(step func(*ibverbx.VirtualCQ) error) error { return step(s.CQ) }
	if c.base != nil {
		return c.base.Configs(), nil
	}
	if len(c.Rails) > 0 {
		return c.withPaths(c.Rails)
	}
	nics, err := c.openNICs(s.Conn.LocalAddr())
	if err != nil {
		return nil, err
	}
	if nics.Close != nil {
		s.closers.Add(nics.Close)
	}
	return nics.Rails, nil
}

// openNICs opens the NICs of a Config without Rails. local is the connection's local address.
func (c *Config) openNICs(local net.Addr) (NICs, error) {
	if c.Open != nil {
		return c.OpenWith(c.Open)
	}
	addr, err := localAddr(local)
	if err != nil {
		return NICs{}, err
	}
	return c.OpenNICs(addr)
}

func (s *Session) sendOffer(ctx context.Context, mine *Offer) error {
	b, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	return s.Conn.Send(ctx, bootstrap.KindOffer, b)
}

func (s *Session) recvOffer(ctx context.Context) (*Offer, error) {
	b, err := s.recv(ctx, bootstrap.KindOffer)
	if err != nil {
		return nil, err
	}
	return decodeOffer(b)
}

// exchangeCards exchanges cards and region lists with the peer, and returns the peer's card.
func (s *Session) exchangeCards(ctx context.Context, c *Config, rails []OfferRail) (*ibverbx.Card, error) {
	var mine *ibverbx.Card
	err := s.withCQ(func(*ibverbx.VirtualCQ) (err error) {
		mine, err = s.QP.Card()
		return err
	})
	if err != nil {
		return nil, err
	}
	s.incarnation = mine.Incarnation
	b, err := mine.Encode()
	if err != nil {
		return nil, err
	}
	if err := s.Conn.Send(ctx, bootstrap.KindCard, b); err != nil {
		return nil, err
	}
	if b, err = encodeRegions(c.Regions, s.local); err != nil {
		return nil, err
	}
	if err := s.Conn.Send(ctx, bootstrap.KindRegions, b); err != nil {
		return nil, err
	}
	if b, err = s.recv(ctx, bootstrap.KindCard); err != nil {
		return nil, err
	}
	card, err := ibverbx.DecodeCard(b)
	if err != nil {
		return nil, err
	}
	if err := s.checkCard(c, rails, mine, card); err != nil {
		return nil, err
	}
	if b, err = s.recv(ctx, bootstrap.KindRegions); err != nil {
		return nil, err
	}
	s.remote, err = decodeRegions(b, card.Rails)
	return card, err
}

// sendReady notifies the peer that the local QPs are in RTR. Requests that arrive earlier would be dropped.
func (s *Session) sendReady(ctx context.Context) error {
	return s.Conn.Send(ctx, bootstrap.KindReady, nil)
}

// waitReady waits until the peer has called sendReady.
func (s *Session) waitReady(ctx context.Context) error {
	b, err := s.recv(ctx, bootstrap.KindReady)
	if err == nil && len(b) > 0 {
		err = verbs.Invalidf("a ready message has %d bytes, want 0", len(b))
	}
	return err
}
