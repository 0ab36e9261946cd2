package bootstrap

import (
	"cmp"
	"math/rand/v2"
	"net"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds and defaults of a Config.
const (
	defaultHandshake  = 10 * time.Second
	defaultDeadAfter  = 30 * time.Second
	defaultHandshakes = 256
	defaultBacklog    = 128
	maxName           = 64
	// The bounds of DeadAfter keep a peer from demanding too many keepalives.
	minDeadAfter = 100 * time.Millisecond
	maxDeadAfter = 24 * time.Hour
	maxIncarnate = 1<<53 - 1
)

// Config sets how peers are authenticated and how dead ones are detected. It must have certificates, a
// token, or one of the fields that begin with Insecure. The rest may be zero. Files are read again
// when they change, and a Conn ends within a second when its peer's token or authority is removed.
type Config struct {
	// CertFile and KeyFile name PEM files with the certificate of this side and its key. The
	// certificate of a listener must name the host that is dialed. A key file that others can read
	// is refused.
	CertFile, KeyFile string
	// CAFile names a PEM file with the authority that must have signed the peer's certificate.
	CAFile string
	// ServerName is the name that the certificate of the listener must have. Empty means
	// the host that was dialed.
	ServerName string
	// TokenFile names a file with the token, a secret that both sides share. A file that others can
	// read is refused; ibverbx token makes one. See Token.
	TokenFile string
	// TokenDir names a directory of token files, for a listener whose peers have a token each. The name of
	// a file is the name of its token (Peer.Token). Names that begin with a dot are ignored. There
	// may be 256.
	TokenDir string
	// Token is the token itself: at least 16 bytes, better 32 random ones. White space around it
	// is ignored.
	Token Secret

	// InsecurePlaintextOnLoopback disables TLS and authentication between loopback addresses.
	// Every process that reaches the port is admitted.
	InsecurePlaintextOnLoopback bool
	// InsecurePlaintextOnAnyNetwork extends InsecurePlaintextOnLoopback, which must be set too,
	// to every address. Keys and addresses can then be read and forged on the network.
	InsecurePlaintextOnAnyNetwork bool

	// Authorize returns an error if an authenticated peer shall not be admitted. It is called before a
	// Conn exists, and again several times a second while the Conn is open, which an error ends. It
	// must not block, and several goroutines call it at a time. Nil admits all.
	Authorize func(Peer) error
	// Reloaded is called when a file of this Config has changed: with nil if it is in use, otherwise
	// with the reason why it is not. Nil means that nobody is told.
	Reloaded func(error)

	// HandshakeTimeout is the time that a peer has for the handshake. Zero means 10 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes is how many peers may be in the handshake with a listener. One more
	// replaces the oldest one from the host with the most handshakes. Zero means 256.
	MaxHandshakes int
	// Backlog is how many Conns may wait for Accept. Dial of further peers returns ErrBusy: they
	// may try again later. Zero means 128.
	Backlog int
	// DeadAfter is how long a peer may be silent, at least 100 ms. Zero means 30 s. Both sides
	// send a keepalive three times per DeadAfter, using the shorter of the two.
	DeadAfter time.Duration

	// Name is the name of this side, at most 64 bytes. When a peer reconnects with the same
	// name (and certificate, if any) but another incarnation, the listener ends the Conns of
	// the earlier incarnation. Empty disables this.
	Name string
	// Incarnation identifies this process, below 2^53. A peer that sees another number knows that
	// the process was restarted. Zero means a random one for each Listen and Dial.
	Incarnation uint64

	// Rejected is called for every peer that a listener rejects, by several goroutines at a time. Of peers
	// that fail to authenticate it gets the first of a burst from one address; ListenerStats counts
	// all. Nil means that they are only counted.
	Rejected func(from net.Addr, err error)
}

// withDefaults returns c with defaults in place of zeros.
func (c Config) withDefaults() Config {
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshake)
	c.DeadAfter = cmp.Or(c.DeadAfter, defaultDeadAfter)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, defaultHandshakes)
	c.Backlog = cmp.Or(c.Backlog, defaultBacklog)
	c.Incarnation = cmp.Or(c.Incarnation, rand.Uint64N(maxIncarnate)+1)
	return c
}

// validate checks a Config whose defaults are filled in.
func (c *Config) validate() error {
	switch {
	case c.HandshakeTimeout < 0:
		return badConfig("HandshakeTimeout is %v: want more than 0", c.HandshakeTimeout)
	case c.DeadAfter < minDeadAfter || c.DeadAfter > maxDeadAfter:
		return badConfig("DeadAfter is %v: want %v to %v", c.DeadAfter, minDeadAfter, maxDeadAfter)
	case c.MaxHandshakes < 1:
		return badConfig("MaxHandshakes is %d: want 1 or more", c.MaxHandshakes)
	case c.Backlog < 1:
		return badConfig("Backlog is %d: want 1 or more", c.Backlog)
	case len(c.Name) > maxName || !utf8.ValidString(c.Name) || strings.Contains(c.Name, "\x00"):
		return badConfig("Name %q: want at most %d bytes of UTF-8 without NUL", c.Name, maxName)
	case c.Incarnation > maxIncarnate:
		return badConfig("Incarnation is %d: want less than 2^53", c.Incarnation)
	}
	return nil
}
