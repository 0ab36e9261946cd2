package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"ibverbx/internal/printable"
)

// Peer describes the remote end of a Conn.
type Peer struct {
	// Addr is the peer's address on the connection.
	Addr net.Addr
	// Auth is the authentication method.
	Auth Auth
	// Certificate is the peer's certificate with AuthCertificate, otherwise nil.
	Certificate *x509.Certificate
	// Token is the name of the peer's token with Config.TokenDir on a listener, otherwise empty.
	Token string
	// Name is the peer's Config.Name. It is unverified: any peer can claim any name.
	Name string
	// Incarnation identifies the peer's process. It changes when the peer restarts.
	Incarnation uint64
}

// identity returns the key shared by all Conns of one peer, or "" for an unnamed peer.
func (p *Peer) identity() string {
	if p.Name == "" {
		return ""
	}
	if p.Certificate == nil {
		return p.Token + "\x00" + p.Name
	}
	return string(p.Certificate.RawSubjectPublicKeyInfo) + p.Name
}

// unauthConn is an unauthenticated connection. It cannot send messages; only admit turns it into a Conn.
type unauthConn struct {
	raw    net.Conn
	stream net.Conn // raw, or TLS over raw
	cfg    *Config
	cred   *credentials
	dialed bool
	host   string // the dialed host; empty on a listener
	// gate returns an error if an authenticated peer is not admitted. A listener calls it before it
	// sends its hello. Nil admits all.
	gate func(*Peer) error
	// failureLimiter limits wrong proofs from the host at from; nil for a dialer.
	failureLimiter *failureLimiter
	from           netip.Prefix
	admitted       admission
	// secret is the result of Conn.Secret; nil without TLS.
	secret []byte
}

// admit runs the whole handshake, bounded by Config.HandshakeTimeout and ctx. On an error it
// closes the connection.
func (s *unauthConn) admit(ctx context.Context) (_ *Conn, err error) {
	if err := s.raw.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)); err != nil {
		return nil, errors.Join(err, s.raw.Close())
	}
	stop := context.AfterFunc(ctx, func() { _ = s.raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	s.stream = s.raw
	peer, h, err := s.authenticate()
	if err == nil && !stop() {
		err = ctx.Err() // the connection's deadline may have passed because ctx is done
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		err = printable.Error(handshakeError(err)) // errors may contain names from a certificate
		s.reject(err)
		return nil, err
	}
	if err := s.raw.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, s.raw.Close())
	}
	return newConn(s, peer, h), nil
}

// authenticate authenticates both sides and determines the peer's identity. The dialer sends first
// at every step, so connecting alone does not yield data for guessing a token.
func (s *unauthConn) authenticate() (peer Peer, h hello, err error) {
	peer = Peer{Addr: s.raw.RemoteAddr(), Auth: s.cred.auth}
	s.admitted.at = time.Now()
	if err := s.cred.allows(peer.Addr); err != nil {
		return peer, h, err
	}
	var state tls.ConnectionState
	if s.cred.tls != nil {
		if state, err = s.startTLS(); err != nil {
			return peer, h, err
		}
		if s.cred.auth == AuthCertificate {
			s.admitted.chain, s.admitted.pool = state.PeerCertificates, s.cred.pool
			peer.Certificate = s.admitted.chain[0]
		}
	}
	if err := s.exchange(framePreface, preface{Version, s.cred.auth}.encode(), s.checkPreface); err != nil {
		return peer, h, err
	}
	if s.cred.auth == AuthToken {
		if err := s.prove(&state); err != nil {
			return peer, h, err
		}
		peer.Token = s.admitted.token.name
	}
	if s.cred.tls != nil {
		if s.secret, err = sessionSecret(&state, s.admitted.token); err != nil {
			return peer, h, err
		}
	}
	mine := hello{incarnation: s.cfg.Incarnation, deadAfter: s.cfg.DeadAfter, window: window, name: s.cfg.Name}
	err = s.exchange(frameHello, mine.encode(), func(b []byte) (err error) {
		h, err = decodeHello(b)
		peer.Name, peer.Incarnation = h.name, h.incarnation
		if err == nil {
			err = s.cfg.authorize(&peer)
		}
		if err == nil && s.gate != nil {
			err = s.gate(&peer)
		}
		return err
	})
	return peer, h, err
}

func (s *unauthConn) startTLS() (tls.ConnectionState, error) {
	cfg := s.cred.tls
	var c *tls.Conn
	if s.dialed {
		if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
			cfg = cfg.Clone()
			cfg.ServerName = s.host
		}
		c = tls.Client(s.raw, cfg)
	} else {
		c = tls.Server(s.raw, cfg)
	}
	s.stream = c
	if err := c.Handshake(); err != nil {
		return tls.ConnectionState{}, err
	}
	state := c.ConnectionState()
	if state.NegotiatedProtocol != alpn {
		return state, violation("the peer speaks TLS but not %s", alpn)
	}
	return state, nil
}

// checkPreface compares the peer's preface with this side's settings.
func (s *unauthConn) checkPreface(b []byte) error {
	p, err := decodePreface(b)
	switch {
	case err != nil:
		return err
	case p.version != Version:
		return fmt.Errorf("%w: the peer speaks version %d, this side %d", ErrVersion, p.version, Version)
	case p.auth != s.cred.auth:
		return fmt.Errorf("%w: the peer authenticates by %v, this side requires %v", ErrAuth, p.auth, s.cred.auth)
	}
	return nil
}

// prove shows that both sides know the token. The listener sends its proof only after the
// dialer's proof was correct.
func (s *unauthConn) prove(state *tls.ConnectionState) error {
	if s.dialed {
		one := &s.cred.tokens[0]
		dialer, listener, err := proofs(one.key, state)
		if err != nil {
			return err
		}
		s.admitted.token = one
		return s.exchange(frameProof, dialer[:], func(b []byte) error {
			if !proofMatches(b, listener) {
				return errWrongToken
			}
			return nil
		})
	}
	proof, err := s.readExpected(frameProof)
	if err != nil {
		return err
	}
	var answer [proofLen]byte
	var failed error
	checked, ok := s.failureLimiter.try(s.from, time.Now(), func() bool {
		s.admitted.token, answer, failed = s.cred.match(proof, state)
		return s.admitted.token != nil
	})
	switch {
	case failed != nil:
		return failed
	case !checked:
		return errTooManyWrong
	case !ok:
		return errWrongToken
	}
	return s.send(frameProof, answer[:])
}

var (
	errWrongToken   = fmt.Errorf("%w: the peer does not have the same token", ErrAuth)
	errTooManyWrong = fmt.Errorf("%w: too many wrong proofs from this address", ErrBusy)
)

// admission holds the credentials a peer was admitted with.
type admission struct {
	token *token
	chain []*x509.Certificate
	at    time.Time
	// pool last verified chain.
	pool *x509.CertPool
}

// verify returns an error if credentials no longer admit the peer.
func (a *admission) verify(cr *credentials, dialed bool) error {
	switch {
	case cr.auth == AuthToken && !cr.contains(a.token):
		return fmt.Errorf("%w: its token was removed", ErrAuth)
	case cr.auth == AuthCertificate && cr.pool != a.pool:
		rest := x509.NewCertPool()
		for _, c := range a.chain[1:] {
			rest.AddCert(c)
		}
		use := x509.ExtKeyUsageClientAuth
		if dialed {
			use = x509.ExtKeyUsageServerAuth
		}
		// Use the time of the handshake: a Conn may outlive a certificate.
		opts := x509.VerifyOptions{Roots: cr.pool, Intermediates: rest, CurrentTime: a.at, KeyUsages: []x509.ExtKeyUsage{use}}
		if _, err := a.chain[0].Verify(opts); err != nil {
			return fmt.Errorf("%w: %w", ErrAuth, err)
		}
		a.pool = cr.pool
	}
	return nil
}

// exchange sends one frame and reads one of the same type. The dialer sends first. The
// listener sends only after check has accepted the dialer's frame.
func (s *unauthConn) exchange(typ frameType, mine []byte, check func(theirs []byte) error) error {
	if s.dialed {
		if err := s.send(typ, mine); err != nil {
			return err
		}
	}
	theirs, err := s.readExpected(typ)
	if err != nil {
		return err
	}
	if err := check(theirs); err != nil || s.dialed {
		return err
	}
	return s.send(typ, mine)
}

func (s *unauthConn) send(typ frameType, payload []byte) error {
	_, err := s.stream.Write(appendFrame(nil, typ, 0, payload))
	return err
}

// readExpected reads one frame of the given type. A refusal becomes an error.
func (s *unauthConn) readExpected(want frameType) ([]byte, error) {
	h, err := readHeader(s.stream)
	if err != nil {
		return nil, err
	}
	if h.typ != want && h.typ != frameRefusal {
		return nil, violation("a frame of type %d, want type %d", h.typ, want)
	}
	b, err := readPayload(s.stream, h)
	if err != nil || h.typ == want {
		return b, err
	}
	r, err := decodeRefusal(b)
	if err != nil {
		return nil, err
	}
	return nil, &r
}

// Bounds for closing a rejected connection.
const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// reject sends the peer the cause, if possible, and closes the connection. It first reads the peer's data, within limits. Closing with
// unread bytes would reset the connection and lose the response.
func (s *unauthConn) reject(cause error) {
	if sendsRefusal(cause) && s.raw.SetDeadline(time.Now().Add(lingerTime)) == nil {
		c, secure := s.stream.(*tls.Conn)
		if !secure || c.ConnectionState().HandshakeComplete {
			_ = s.send(frameRefusal, refusalOf(cause).encode())
		}
		closeAndDrain(s.raw)
	}
	_ = s.raw.Close()
}

// sendsRefusal reports whether to send the peer a refusal for err: not if the peer refused this side, is too slow to read, or if plain text is
// not allowed.
func sendsRefusal(err error) bool {
	var refused *refusal
	return !errors.As(err, &refused) && !errors.Is(err, ErrInsecure) && !errors.Is(err, ErrTimeout) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, net.ErrClosed)
}

// closeAndDrain closes the sending direction and reads until the peer closes too. The deadlines of
// raw bound the wait.
func closeAndDrain(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, raw, lingerBytes)
	}
}
