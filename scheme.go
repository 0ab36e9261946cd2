package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// Scheme is how a receiver learns that a whole message has arrived.
type Scheme uint8

// Schemes.
const (
	// Tally is the default. Fragments are plain WRITEs; then every lane that carried
	// data since the last notification sends a record of 16 bytes, and the receiver
	// counts them. It carries the immediate and the length.
	Tally Scheme = iota
	// DQPLB makes every fragment of a notified request a WRITE_WITH_IMM whose immediate
	// is a sequence number. It carries the length.
	DQPLB
	// Spray sends plain WRITEs and, when all have completed, one notification on a lane
	// of its own. It carries the immediate. InfiniBand does not promise that the data is
	// visible to whoever sees a notification on another QP (o9-20): prefer Tally.
	Spray
)

var schemeNames = [...]string{"tally", "dqplb", "spray"}

// String returns the name that cards and flags use.
func (s Scheme) String() string {
	if int(s) < len(schemeNames) {
		return schemeNames[s]
	}
	return fmt.Sprintf("Scheme(%d)", uint8(s))
}

// MarshalText returns the name.
func (s Scheme) MarshalText() ([]byte, error) {
	if int(s) >= len(schemeNames) {
		return nil, verbs.Invalidf("there is no scheme %d", uint8(s))
	}
	return []byte(schemeNames[s]), nil
}

// UnmarshalText reads a name.
func (s *Scheme) UnmarshalText(b []byte) error {
	for i, name := range schemeNames {
		if name == string(b) {
			*s = Scheme(i)
			return nil
		}
	}
	return verbs.Invalidf("there is no scheme %q: want tally, dqplb or spray", b)
}

// notifier is what a scheme does. It is chosen when the VirtualQP is made.
type notifier interface {
	// wire says what the fragments of a request are.
	wire(op verbs.Opcode) verbs.Opcode
	// handOver gives a WRITE or READ to lanes, with what tells the receiver. It reports
	// false if lanes lack room: then it is called again and goes on where it stopped.
	handOver(s *sendSlot) bool
	// advance is called after completions came in and before doorbells are rung.
	advance()
	// moved is called when everything that a lane out of service had left was given to
	// another one.
	moved(from, to *lane)
	// received takes a receive of a data or notify lane that was filled.
	received(l *lane, wc *verbs.WC, entry uint32)
	// ahead reports whether what came last on l is so far ahead of what is missing that
	// the lane must wait: its receives are not posted again until the gap closes.
	ahead(l *lane) bool
	// recvSGE makes r, the receive entry of l, fit to take what the peer sends.
	recvSGE(l *lane, entry uint32, r *verbs.RecvWR)
	// connected learns what the peer's card says, and returns how many messages can wait
	// for one before them and become whole at once when that comes.
	connected(remote *Card) (waiting int)
	close() error
}

func (q *VirtualQP) newNotifier() (notifier, error) {
	switch q.setup.cfg.Scheme {
	case DQPLB:
		return newDQPLB(q), nil
	case Spray:
		return &spray{setup: &q.setup, send: &q.send, recv: &q.recv}, nil
	case Tally:
	}
	t, err := newTally(q)
	if err != nil {
		return nil, err // not a nil *tally in an interface
	}
	return t, nil
}
