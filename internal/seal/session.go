package seal

import (
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// MinSecret is the minimum length of a secret in bytes.
const MinSecret = 16

// ErrSecret is returned for a secret that is too short.
var ErrSecret = errors.New("seal: the secret is too short")

// ErrReflected is returned for the NIC's own greeting.
var ErrReflected = errors.New("seal: the peer's greeting is the NIC's own")

// Labels of the key schedule.
const (
	labelSecret   = "ibverbx seal 1 secret"
	labelDialer   = "ibverbx seal 1 from the dialer"
	labelListener = "ibverbx seal 1 from the listener"
	labelKey      = "ibverbx seal 1 key"
	labelSalt     = "ibverbx seal 1 salt"
	labelNext     = "ibverbx seal 1 next"

	secretLen = sha256.Size
	keyLen    = 16
	saltLen   = 12
)

// Session is a secret shared by two processes, and the role of this one. It is immutable.
type Session struct {
	prk    []byte
	dialer bool
}

// NewSession returns a session for a secret. Exactly one of the two sides must be the dialer.
func NewSession(secret []byte, dialer bool) (*Session, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("%w: it has %d bytes, want at least %d random ones", ErrSecret, len(secret), MinSecret)
	}
	prk, err := hkdf.Extract(sha256.New, secret, []byte(labelSecret))
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return &Session{prk: prk, dialer: dialer}, nil
}

// Associate returns the association of a local NIC and a peer's NIC. It must not be called twice
// with the same greetings: both associations would use the same nonces.
func (s *Session) Associate(own, peer *Greeting) (*Association, error) {
	if own == peer || *own == *peer {
		return nil, ErrReflected
	}
	a := &Association{}
	mine, theirs := labelDialer, labelListener
	if !s.dialer {
		mine, theirs = theirs, mine
	}
	first, err := s.direction(mine, own, peer)
	if err != nil {
		return nil, err
	}
	if err := a.out.init(first, indexTo(own, peer)); err != nil {
		return nil, err
	}
	if first, err = s.direction(theirs, peer, own); err != nil {
		return nil, err
	}
	return a, a.in.init(first)
}

// direction returns the initial secret of a direction.
func (s *Session) direction(label string, from, to *Greeting) ([]byte, error) {
	return expand(s.prk, label+string(from[:])+string(to[:]), secretLen)
}

// expand derives n bytes from a secret.
func expand(secret []byte, info string, n int) ([]byte, error) {
	b, err := hkdf.Expand(sha256.New, secret, info, n)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return b, nil
}

// Association holds the keys of both directions between two NICs.
type Association struct {
	out outgoing
	in  incoming
	// ticks counts calls of Tick since the last rekeying.
	ticks int
	// unanswered counts the key changes since a packet from the peer was last opened.
	unanswered int
}

// Limits of a key.
const (
	// maxPackets is the maximum number of packets per key. With 4 KiB each, the advantage of
	// distinguishing GCM from random bytes stays below 2^-57 (draft-irtf-cfrg-aead-limits, single
	// key).
	maxPackets = 1 << 26
	// ticksPerKey is the number of ticks after which a key is replaced.
	ticksPerKey = 60
)

// Tick must be called once a minute. After 60 ticks the sender switches to the next key, if it has
// used the present one. It stops after 32 such keys without a response, because the receiver may
// have missed all of them. After seeing the next key, a receiver drops the previous one at the
// second tick.
func (a *Association) Tick() {
	a.in.expire()
	if a.ticks++; a.ticks >= ticksPerKey {
		a.ticks = 0
		if a.out.counter > a.out.first && a.unanswered < maxAhead/2 {
			a.rekey()
		}
	}
}

// rekey switches the sender to the next key.
func (a *Association) rekey() {
	a.out.rekey()
	a.ticks = 0
	a.unanswered++
}
