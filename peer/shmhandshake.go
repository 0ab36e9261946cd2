package peer

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/internal/shm"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// proofTimeout is the timeout for the proof of a process at the dialer's socket.
const proofTimeout = time.Second

// shmHandshake is the handshake for shared memory.
type shmHandshake struct {
	mine OfferLink
	// socket is the dialer's socket, or nil.
	socket *net.UnixListener
	// conns are the listener's connections to the socket.
	conns []*net.UnixConn
}

// startShmHandshake starts the handshake. theirs is the dialer's offer, nil on the dialer.
func (s *Session) startShmHandshake(ctx context.Context, c *Config, rails []ibverbx.RailConfig, theirs *Offer) *shmHandshake {
	m := &shmHandshake{mine: OfferLink{Want: c.Link, Beside: s.shared}}
	s.closers.Add(m.close)
	err := s.shareable(c, &m.mine, rails)
	switch {
	case err != nil:
	case theirs == nil:
		err = m.listen()
	case theirs.Link.Nonce == "":
		err = theirs.Link.refusal()
	case theirs.Link.Beside != s.shared:
		err = errors.New("one side shares the NICs of a VirtualCQ (Config.SharedCQ), the other does not")
	case s.shared: // a link for every pair of rails with lanes
		err = m.dial(ctx, theirs.Link.Nonce, max(len(rails), len(theirs.Rails)))
	default:
		err = m.dial(ctx, theirs.Link.Nonce, min(len(rails), len(theirs.Rails)))
	}
	if err != nil {
		why := err.Error()
		m.mine.Nonce, m.mine.Links, m.mine.Why = "", 0, strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")
	}
	return m
}

// shareable returns the reason why this side cannot use shared memory, or nil.
func (s *Session) shareable(c *Config, mine *OfferLink, rails []ibverbx.RailConfig) error {
	if mine.want() == LinkUDP {
		return errors.New("udp was requested")
	}
	for i := range rails {
		if attr, err := rails[i].Context.QueryDevice(); err != nil || attr.Provider != "softnic" || attr.Link != "udp" {
			return fmt.Errorf("rail %d is not a plain software NIC", i)
		}
	}
	v, err := c.allowedAddrs(s.Conn.Peer())
	if err == nil && !v.isLocal(v.peer) {
		err = fmt.Errorf("%v is not an address of this host", v.peer)
	}
	return err
}

// socketPath returns the path of the dialer's socket. Both sides derive it from the nonce, so a peer cannot choose another socket. The path
// is public, but does not reveal the nonce.
func socketPath(nonce string) *net.UnixAddr {
	name := sha256.Sum256([]byte("ibverbx socket of " + nonce))
	return &net.UnixAddr{Net: "unixpacket", Name: filepath.Join(os.TempDir(), fmt.Sprintf("ibverbx-%x.sock", name[:16]))}
}

// listen creates the dialer's socket, accessible only to its user.
func (m *shmHandshake) listen() (err error) {
	nonce := rand.Text()
	if m.socket, err = net.ListenUnix("unixpacket", socketPath(nonce)); err != nil {
		return err
	}
	m.mine.Nonce = nonce
	return os.Chmod(socketPath(nonce).Name, 0o600)
}

// dial connects to the dialer's socket once per link, and proves knowledge of the nonce.
func (m *shmHandshake) dial(ctx context.Context, nonce string, links int) error {
	for range links {
		c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", socketPath(nonce).Name)
		if err != nil {
			return fmt.Errorf("the peer's socket cannot be reached: %w", err)
		}
		conn := c.(*net.UnixConn)
		m.conns = append(m.conns, conn)
		if _, err := shm.NewConn(conn); err != nil { // before it gets the nonce
			return err
		}
		if _, err := conn.Write([]byte(nonce)); err != nil {
			return fmt.Errorf("the peer's socket: %w", err)
		}
	}
	m.mine.Nonce, m.mine.Links = rand.Text(), links
	return nil
}

// finishShmHandshake creates the agreed links. It returns NICs on them in place of rails, or rails without links. With Config.SharedCQ it leaves the
// links to introduce.
func (s *Session) finishShmHandshake(ctx context.Context, m *shmHandshake, theirs *OfferLink, rails []ibverbx.RailConfig) (_ []ibverbx.RailConfig, err error) {
	defer func() { err = errors.Join(err, m.close()) }() // a socket must not outlive its use
	links, err := m.linkCount(theirs)
	if err != nil {
		return nil, err
	}
	if links == 0 {
		s.LinkReason = m.mine.Why
		if s.LinkReason == "" {
			s.LinkReason = theirs.refusal().Error()
		}
		for i := range rails {
			attr, err := rails[i].Context.QueryDevice()
			if s.Link = Link(attr.Link); !errors.Is(err, verbs.ErrDeviceFatal) || i == len(rails)-1 {
				return rails, err
			}
		}
	}
	if links > len(rails) && !s.shared {
		return nil, verbs.Invalidf("%d links of shared memory, this side has %d rails", links, len(rails))
	}
	stop := context.AfterFunc(ctx, m.interrupter())
	defer stop()
	deadline, _ := ctx.Deadline()
	shared := make([]ibverbx.RailConfig, links)
	for i := range shared {
		conn, err := m.provenConn(i, theirs.Nonce, deadline)
		if err != nil {
			return nil, fmt.Errorf("shared memory: %w", err)
		}
		if s.shared {
			s.shmConns = append(s.shmConns, conn)
			s.closers.Add(func() error { _ = conn.Close(); return nil }) // shareMemory may have closed it
			continue
		}
		shared[i] = ibverbx.RailConfig{Path: rails[i].Path}
		shared[i].Path.Seal = nil // without packets, sealing is not needed
		if shared[i].Context, err = s.openShmNIC(conn, rails[i].Context.Device().Name()); err != nil {
			return nil, fmt.Errorf("shared memory: %w", err)
		}
	}
	s.Link = LinkShm
	if s.shared {
		return rails, nil
	}
	return shared, nil
}

// shareMemory makes the rails share memory with the peer's, for QPs with the Seal. Link i joins the rails of lane i. If it fails, the rails
// alone carry the Session, unless this side requires shared memory.
func (s *Session) shareMemory(ctx context.Context, c *Config, rails []ibverbx.RailConfig, seal verbs.Seal) error {
	met := &shmHandshake{conns: s.shmConns}
	defer context.AfterFunc(ctx, met.interrupter())()
	for i, conn := range s.shmConns {
		rail := &rails[i%len(rails)]
		near, err := softnic.Introduce(rail.Context, conn, cmp.Or(seal, rail.Path.Seal))
		if err == nil {
			s.closers.Add(near.Close)
			continue
		}
		err = fmt.Errorf("shared memory: %w", err)
		if c.Link == LinkShm {
			return err
		}
		met.interrupter()() // the peer's side of the other links fails too
		s.Link, s.LinkReason = LinkUDP, err.Error()
		break
	}
	return nil
}

// linkCount returns the number of links. The listener determines it: none unless it has reached the socket for each.
func (m *shmHandshake) linkCount(theirs *OfferLink) (int, error) {
	switch {
	case m.socket != nil: // this side is the dialer
		return theirs.Links, nil
	case theirs.Links > 0:
		return 0, verbs.Invalidf("the peer claims %d links of shared memory without an offered socket", theirs.Links)
	}
	return m.mine.Links, nil
}

// openShmNIC creates a NIC on a link over conn.
func (s *Session) openShmNIC(conn *net.UnixConn, name string) (verbs.Context, error) {
	link, err := softnic.NewShmLink(conn)
	if err != nil {
		return nil, err
	}
	nic, err := softnic.New(link, softnic.Config{Name: name})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s.closers.Add(nic.Close)
	return nic.Open()
}

// interrupter returns a function that aborts all waits of the handshake.
func (m *shmHandshake) interrupter() func() {
	socket, conns := m.socket, slices.Clone(m.conns)
	return func() {
		if socket != nil {
			_ = socket.Close()
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

// provenConn returns the connection of link i after the process at its other end has proved to be the peer. The listener waits for the dialer's
// proof. The dialer accepts connections until one presents its nonce, and then proves itself.
func (m *shmHandshake) provenConn(i int, nonce string, deadline time.Time) (*net.UnixConn, error) {
	if m.socket == nil {
		conn := m.conns[i]
		m.conns[i] = nil
		err := checkProof(conn, m.mine.Nonce, deadline)
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
		return conn, err
	}
	if err := m.socket.SetDeadline(deadline); err != nil {
		return nil, err
	}
	for {
		conn, err := m.socket.AcceptUnix()
		if err != nil {
			return nil, err
		}
		// The peer wrote its proof before its offer. Another, silent process must not consume the time.
		soon := time.Now().Add(proofTimeout)
		if soon.After(deadline) {
			soon = deadline
		}
		if checkProof(conn, m.mine.Nonce, soon) == nil {
			if _, err = conn.Write([]byte(nonce)); err == nil {
				return conn, nil
			}
		}
		_ = conn.Close() // another process, or a peer that has exited
	}
}

// checkProof checks that the other end of conn knows the nonce and belongs to the same user.
func checkProof(conn *net.UnixConn, nonce string, deadline time.Time) error {
	if _, err := shm.NewConn(conn); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	var b [nonceLen + 1]byte
	n, err := conn.Read(b[:])
	if err == nil && subtle.ConstantTimeCompare(b[:n], []byte(nonce)) != 1 {
		err = errors.New("the process at the other end of the socket is not the peer")
	}
	if err != nil {
		return err
	}
	return conn.SetReadDeadline(time.Time{})
}

// close closes the socket and the unused connections.
func (m *shmHandshake) close() error {
	var errs []error
	if m.socket != nil {
		errs = append(errs, m.socket.Close())
	}
	for _, c := range m.conns {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	m.socket, m.conns = nil, nil
	return errors.Join(errs...)
}
