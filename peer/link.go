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
	"ibverbx/internal/printable"
	"ibverbx/internal/shm"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Link is the type of link between two sides with software NICs.
type Link string

// Link types.
const (
	// LinkAuto uses shared memory between two processes of one user on one host, otherwise the configured NICs.
	// Session.LinkReason explains why shared memory is not used.
	LinkAuto Link = "auto"
	// LinkShm requires shared memory (softnic.ShmLink). If that is impossible, connecting fails with a MismatchError or the cause. With
	// Config.SharedCQ, the rails remain: they execute WRITEs and READs in the peer's memory (softnic.Introduce), and send the rest as
	// packets.
	LinkShm Link = "shm"
	// LinkUDP uses the configured NICs.
	LinkUDP Link = "udp"
)

// OfferLink is the part of an Offer about shared memory. The dialer offers a socket and a nonce. A listener that has reached the socket
// responds with another nonce. Each side proves over the socket that it knows the other's nonce. Both nonces were sent over the
// authenticated connection, so both ends of the socket belong to the processes at the ends of the connection.
type OfferLink struct {
	// Want is the side's preference. Empty means LinkUDP.
	Want Link `json:"want,omitempty"`
	// Nonce is random, and empty if the side cannot use shared memory. The dialer's also determines the socket's name.
	Nonce string `json:"nonce,omitempty"`
	// Links is the number of shared-memory links started by the listener: one per rail, or 0.
	Links int `json:"links,omitempty"`
	// Beside is set if the rails remain beside shared memory (Config.SharedCQ). It must be equal on both sides.
	Beside bool `json:"beside,omitempty"`
	// Why explains an empty Nonce.
	Why string `json:"why,omitempty"`
}

const (
	nonceLen = 26 // crypto/rand.Text
	maxWhy   = 256
	// proofTimeout is the timeout for the proof of a process at the dialer's socket.
	proofTimeout = time.Second
)

func (o *OfferLink) validate() error {
	switch {
	case o.Want != "" && o.Want != LinkAuto && o.Want != LinkShm && o.Want != LinkUDP:
		return verbs.Invalidf("link %.64q: want auto, shm or udp", o.Want)
	case o.Nonce != "" && (len(o.Nonce) != nonceLen || strings.Trim(o.Nonce, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != ""):
		return verbs.Invalidf("link: the nonce has %d bytes, want %d of base32", len(o.Nonce), nonceLen)
	case o.Links < 0 || o.Links > ibverbx.MaxRails || (o.Links > 0 && o.Nonce == ""):
		return verbs.Invalidf("link: %d links of shared memory", o.Links)
	case len(o.Why) > maxWhy:
		return verbs.Invalidf("link: a reason of %d bytes, want at most %d", len(o.Why), maxWhy)
	}
	return nil
}

// agreeLink returns an error if the sides' preferences or capabilities conflict.
func agreeLink(dialer, listener *OfferLink) error {
	if listener.Links > 0 && dialer.Beside == listener.Beside || dialer.Want != LinkShm && listener.Want != LinkShm && listener.Links == 0 {
		return nil
	}
	text := func(o *OfferLink) string {
		if o.Why == "" || o.want() == LinkUDP {
			return fmt.Sprintf("wants %s", o.want())
		}
		return fmt.Sprintf("wants %s (%s)", o.want(), printable.Text(o.Why))
	}
	return &MismatchError{What: "link", Dialer: text(dialer), Listener: text(listener)}
}

func (o *OfferLink) want() Link { return cmp.Or(o.Want, LinkUDP) }

// refusal returns the reason why the peer cannot use shared memory.
func (o *OfferLink) refusal() error {
	return fmt.Errorf("the peer: %s", cmp.Or(printable.Text(o.Why), "no shared memory"))
}

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

// linkCount returns the number of links. The listener determines it, and has a connection for each.
func (m *shmHandshake) linkCount(theirs *OfferLink) (int, error) {
	switch {
	case m.socket != nil: // this side is the dialer
		return theirs.Links, nil
	case theirs.Links > 0:
		return 0, verbs.Invalidf("the peer claims %d links of shared memory without an offered socket", theirs.Links)
	}
	return len(m.conns), nil
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
