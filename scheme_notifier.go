package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// Scheme selects how a receiver is notified that a complete message has arrived.
type Scheme uint8

// Schemes. The zero value is Tally.
const (
	// Tally is the default. Fragments are plain WRITEs. Each lane that carried data since the last
	// notification then sends a 16-byte record, and the receiver counts the records. Tally delivers the
	// immediate and the length.
	Tally Scheme = iota
	// DQPLB sends every fragment of a notified request as a WRITE_WITH_IMM whose immediate is a sequence
	// number. It delivers the length (WCHasLength).
	DQPLB
	// Spray sends plain WRITEs and, once all have completed, one notification on a dedicated lane. It
	// delivers the immediate (WCHasImm). Prefer Tally: InfiniBand does not guarantee that data is
	// visible when a notification on another QP arrives (o9-20).
	Spray
)

var schemeNames = [...]string{"tally", "dqplb", "spray"}

// String returns the scheme's name as used in cards and flags.
func (s Scheme) String() string {
	if int(s) < len(schemeNames) {
		return schemeNames[s]
	}
	return fmt.Sprintf("Scheme(%d)", uint8(s))
}

// MarshalText returns the scheme's name.
func (s Scheme) MarshalText() ([]byte, error) {
	if int(s) >= len(schemeNames) {
		return nil, verbs.Invalidf("unknown scheme %d", uint8(s))
	}
	return []byte(schemeNames[s]), nil
}

// UnmarshalText parses a name returned by String. Other names return verbs.ErrInvalid.
func (s *Scheme) UnmarshalText(b []byte) error {
	for i, name := range schemeNames {
		if name == string(b) {
			*s = Scheme(i)
			return nil
		}
	}
	return verbs.Invalidf("unknown scheme %q: want tally, dqplb or spray", b)
}

// notifier implements a scheme. NewQP selects it.
type notifier interface {
	// dispatch stages a WRITE or READ with its notification. It returns false if the lanes are full; a later call
	// then continues.
	dispatch(s *sendSlot) bool
	// notifyLimit returns the maximum number of fragments of notified requests in a stripe or run, or 0 if earlier
	// data must be covered first. recorded is set if lanes send records with them.
	notifyLimit() (fragments uint32, recorded bool)
	// run builds a lane's chain from at most notifyLimit unfragmented notified requests, in the memory of buf. The
	// lane has at least len(wrs) free entries. If the scheme needs more, the chain has fewer requests, or none.
	run(l *lane, wrs []SendWR, buf []verbs.SendWR) laneChain
	// notifyStripe prepares the notified requests of a stripe. It returns the stripe with its numbers.
	notifyStripe(t stripe) stripe
	// advance is called by sender.dispatch before it rings the doorbells.
	advance()
	// beforeMove is called with each entry of an out-of-service lane before it moves to another lane. If ok, behind
	// follows it there.
	beforeMove(e *entry) (behind entry, ok bool)
	// afterMove is called after all entries of an out-of-service lane have moved.
	afterMove(from, to *lane)
	// received handles a filled receive of a data or notify lane.
	received(l *lane, wc *verbs.WC, entry uint32)
	// tooFarAhead reports whether l must be starved because its latest message is too far ahead of the oldest missing
	// one.
	tooFarAhead(l *lane) bool
	// recvSGEs sets the SGEs of l's receives, the first of which has the number entry.
	recvSGEs(l *lane, entry uint32, chain []verbs.RecvWR)
	// connected handles the peer's card. It returns the maximum number of messages that can wait for an earlier
	// message and complete together with it.
	connected(remote *Card) (waiting int)
}

func (q *VirtualQP) newNotifier() (notifier, error) {
	switch q.setup.cfg.Scheme {
	case DQPLB:
		return newDQPLB(q), nil
	case Spray:
		return &spray{setup: &q.setup, send: &q.send, recv: &q.recv}, nil
	case Tally:
	}
	return newTally(q)
}

// noSGEs sets empty receives, for peers that send only immediates.
func noSGEs(chain []verbs.RecvWR) {
	for i := range chain {
		chain[i].NumSGE = 0
	}
}
