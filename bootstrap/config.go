package bootstrap

import (
	"cmp"
	"math/rand/v2"
	"net"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits and defaults of a Config.
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

// Config configures authentication and failure detection. It requires certificates, a token or key, or one of the fields that begin with Insecure;
// other fields may be zero. Changed files are reloaded, and a Conn is closed within a second after its peer's token or authority was
// removed.
type Config struct {
	// CertFile and KeyFile are PEM files with the local certificate and its key. A listener's certificate must contain the dialed host
	// name. A key file readable by other users is rejected.
	CertFile, KeyFile string
	// CAFile is a PEM file with the authority that must have signed the peer's certificate.
	CAFile string
	// ServerName is the host name required in the listener's certificate. Empty means the dialed host.
	ServerName string
	// TokenFile is a file with the token, a secret shared by both sides. A file readable by other users is rejected; "ibverbx token"
	// creates one. See Token.
	TokenFile string
	// TokenDir is a directory of token files, for a listener with a separate token per peer, at most 256. A file's name is the name of its
	// token (Peer.Token). Names that begin with a dot are ignored.
	TokenDir string
	// Token is the token itself: 16 to 4096 bytes, preferably 32 random ones. Surrounding white space is ignored.
	Token Secret
	// Key replaces the token if a program has generated the secret: 32 random bytes, or a key derived from a TokenKey. Unlike a token, it is
	// not hashed 2^17 times, which costs some tens of milliseconds per token.
	Key Secret

	// InsecurePlaintextOnLoopback disables TLS and authentication between loopback addresses. Every process that reaches the port is
	// admitted.
	InsecurePlaintextOnLoopback bool
	// InsecurePlaintextOnAnyNetwork extends InsecurePlaintextOnLoopback, which must be set too, to every address. An attacker on the
	// network can then read and forge keys and addresses.
	InsecurePlaintextOnAnyNetwork bool

	// Authorize returns an error to reject an authenticated peer. It runs before a Conn exists, and several times a second while the Conn
	// is open; an error closes the Conn. It must not block and must be safe for concurrent use. Nil admits all.
	Authorize func(Peer) error
	// Reloaded is called after a file of this Config has changed: with nil if the new contents are in use, otherwise with the reason why
	// not. It may be nil.
	Reloaded func(error)

	// HandshakeTimeout bounds the handshake. Zero means 10 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes is the maximum number of concurrent handshakes of a listener. One more replaces the oldest handshake of the host with
	// the most. Zero means 256.
	MaxHandshakes int
	// Backlog is the maximum number of Conns waiting for Accept. Further peers get ErrBusy from Dial and may retry later. Zero means 128.
	Backlog int
	// DeadAfter is the maximum silence before a peer is considered dead, from 100 ms to 24 h. Zero means 30 s. Both sides send at
	// least three keepalives per DeadAfter, using the shorter of the two.
	DeadAfter time.Duration

	// Name identifies this side, at most 64 bytes. When a peer reconnects with the same name (and certificate, if any) but another
	// incarnation, the listener closes the Conns of the earlier incarnation with ErrRestarted. Empty disables this.
	Name string
	// Incarnation identifies this process, below 2^53. Peers detect a restart by a different number. Zero means a random one for each
	// Listen, Dial and NewDialer.
	Incarnation uint64

	// Rejected is called for every peer rejected by a listener, from several goroutines. Failed authentications are reported once per burst
	// from one address; ListenerStats counts all. It may be nil.
	Rejected func(from net.Addr, err error)
}

// withDefaults returns c with defaults applied.
func (c Config) withDefaults() Config {
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, defaultHandshake)
	c.DeadAfter = cmp.Or(c.DeadAfter, defaultDeadAfter)
	c.MaxHandshakes = cmp.Or(c.MaxHandshakes, defaultHandshakes)
	c.Backlog = cmp.Or(c.Backlog, defaultBacklog)
	c.Incarnation = cmp.Or(c.Incarnation, rand.Uint64N(maxIncarnate)+1)
	return c
}

// validate checks a Config after withDefaults.
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
