package bootstrap

import (
	"fmt"
	"math/rand/v2"
	"net"
	"time"
	"unicode/utf8"
)

// Bounds and defaults of a Config.
const (
	defaultHandshake  = 10 * time.Second
	defaultDeadAfter  = 30 * time.Second
	defaultHandshakes = 64
	defaultBacklog    = 16
	maxName           = 64
	// A peer says how much silence it bears, and this side speaks three times as often:
	// the bounds keep it from asking for too much.
	minDeadAfter = 100 * time.Millisecond
	maxDeadAfter = 24 * time.Hour
	maxIncarnate = 1<<53 - 1
)

// Config says how to meet peers. It must have certificates, a token, or one of the fields
// that begin with Insecure; the rest can be left zero.
type Config struct {
	// CertFile and KeyFile are this side's certificate and its key, and CAFile the
	// authority that must have signed the peer's; all PEM. Both sides have one. The
	// listener's must name the host that is dialed.
	CertFile, KeyFile, CAFile string
	// ServerName is the name that the certificate of the listener must have. Empty means
	// the host that was dialed.
	ServerName string
	// TokenFile names a file with a secret that both sides share, and Token is the secret
	// itself: at least 16 bytes, and better 32 random ones. White space around it does not
	// count.
	TokenFile string
	Token     []byte

	// InsecurePlaintextOnLoopback does without TLS and without any proof, between
	// loopback addresses. Whoever reaches the port is let in.
	InsecurePlaintextOnLoopback bool
	// InsecurePlaintextOnAnyNetwork does so, if InsecurePlaintextOnLoopback is set too,
	// on every address: keys and addresses can be read and forged on the way.
	InsecurePlaintextOnAnyNetwork bool

	// HandshakeTimeout is how long a peer has to prove itself. Zero means 10 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes is how many peers of a listener may be about to do so; one more takes
	// the place of the one that has taken longest, of those from the host that has most.
	// Zero means 64.
	MaxHandshakes int
	// Backlog is how many Conns wait for Accept; others are told that the listener is
	// busy. Zero means 16.
	Backlog int
	// DeadAfter is how long a peer may be silent. Zero means 30 s; at least 100 ms. A side
	// speaks three times as often as the more impatient of the two wants.
	DeadAfter time.Duration

	// Name is what this side calls itself, at most 64 bytes. A listener that meets the
	// same name, with the same certificate if there are any, in another incarnation ends
	// the Conns of the one before. Empty means that it tells peers apart in no such way.
	Name string
	// Incarnation is a number of this process, below 2^53: a peer that sees another one
	// knows that it was started anew. Zero means a random one for each Listen and Dial.
	Incarnation uint64
	// PeerIncarnation is the one that a peer must have that is dialed again. Zero means
	// any.
	PeerIncarnation uint64

	// Rejected is told of every peer that a listener turned away, by several goroutines
	// at a time. Nil means that they are only counted.
	Rejected func(from net.Addr, err error)
}

// withDefaults returns c with what was left zero.
func (c Config) withDefaults() Config {
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = defaultHandshake
	}
	if c.DeadAfter == 0 {
		c.DeadAfter = defaultDeadAfter
	}
	if c.MaxHandshakes == 0 {
		c.MaxHandshakes = defaultHandshakes
	}
	if c.Backlog == 0 {
		c.Backlog = defaultBacklog
	}
	if c.Incarnation == 0 {
		c.Incarnation = rand.Uint64N(maxIncarnate) + 1
	}
	return c
}

// validate checks a Config whose defaults are filled in.
func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case c.HandshakeTimeout < 0:
		return bad("HandshakeTimeout is %v: want more than 0", c.HandshakeTimeout)
	case c.DeadAfter < minDeadAfter || c.DeadAfter > maxDeadAfter:
		return bad("DeadAfter is %v: want %v to %v", c.DeadAfter, minDeadAfter, maxDeadAfter)
	case c.MaxHandshakes < 1:
		return bad("MaxHandshakes is %d: want 1 or more", c.MaxHandshakes)
	case c.Backlog < 1:
		return bad("Backlog is %d: want 1 or more", c.Backlog)
	case len(c.Name) > maxName || !utf8.ValidString(c.Name):
		return bad("Name has %d bytes: want at most %d of UTF-8", len(c.Name), maxName)
	case c.Incarnation > maxIncarnate:
		return bad("Incarnation is %d: want less than 2^53", c.Incarnation)
	}
	return nil
}
