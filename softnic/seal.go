package softnic

import (
	crand "crypto/rand"
	"fmt"
	"sync"

	"ibverbx/internal/seal"
	"ibverbx/verbs"
)

// Seal makes NICs on UDPLinks encrypt and authenticate packets (docs/wire.md). It is one side of a session. QPs
// get it as verbs.QPConfig.Path.Seal, or all lanes of a VirtualQP as ibverbx.Config.Seal. The QPs that they are
// connected to must have a Seal with the same secret and the other role. QPs of several NICs may share a Seal.
type Seal struct {
	session *seal.Session

	mu sync.Mutex
	// seats is how many seats have been taken.
	seats int
}

var _ verbs.Seal = (*Seal)(nil)

// NewSeal returns one side of a session with a peer. The two sides must share a secret of at least 16 random
// bytes, such as a key that a TLS session exports, and exactly one of them must be the dialer. Endpoints do not
// contain the secret. A secret may be used for several sessions: every session has its own keys.
func NewSeal(secret []byte, dialer bool) (*Seal, error) {
	s, err := seal.NewSession(secret, dialer)
	if err != nil {
		return nil, verbs.NewOpError("make seal", "", 0, verbs.Invalidf("%v", err))
	}
	return &Seal{session: s}, nil
}

// Sealed implements verbs.Seal.
func (*Seal) Sealed() {}

// sit returns a seat that was not taken before.
func (s *Seal) sit() (uint8, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seats == seal.Seats {
		return 0, fmt.Errorf("%w: a Seal serves %d NICs", verbs.ErrLimit, seal.Seats)
	}
	s.seats++
	return uint8(s.seats - 1), nil
}

// sealing is the part of a NIC in a session. The core's lock guards it. It lasts as long as a PD uses it. Its
// nonce is never used again.
type sealing struct {
	seal *Seal
	// users counts the PDs.
	users int
	// greeting is what peers learn of it.
	greeting seal.Greeting
	// peers are the peer's NICs, by seat. Once met they do not change: a key must not be used with a new
	// counter.
	peers [seal.Seats]*association
	// meetings counts the endpoints of peers.
	meetings uint64
}

// association is a sealing and a NIC of the peer.
type association struct {
	*seal.Association
	of *sealing
	// greeting is the peer's.
	greeting seal.Greeting
	// addr is where the peer's NIC receives.
	addr udpAddr
	// met is the number of its last meeting.
	met uint64
}

// sealing returns the NIC's part in the session of s, nil if s is nil. The PD uses it from now on.
func (d *pd) sealing(s verbs.Seal) (*sealing, error) {
	if s == nil {
		return nil, nil
	}
	n := d.ctx.nic
	if n.udp == nil {
		return nil, fmt.Errorf("%w: Seal is set: only NICs on UDPLinks seal packets", verbs.ErrNotSupported)
	}
	own, ok := s.(*Seal)
	if !ok || own == nil || own.session == nil {
		return nil, verbs.Invalidf("Seal is a %T: want one that softnic.NewSeal has returned", s)
	}
	for _, g := range d.sealings {
		if g.seal == own {
			return g, nil
		}
	}
	g, err := n.sealing(own)
	if err != nil {
		return nil, err
	}
	g.users++
	d.sealings = append(d.sealings, g)
	return g, nil
}

// sealing returns the NIC's part in a session.
func (n *NIC) sealing(s *Seal) (*sealing, error) {
	if n.sealed == nil {
		if err := n.core.wire.plugSealed(n); err != nil {
			return nil, err
		}
	}
	for g := range n.sealings.all() {
		if g.seal == s {
			return g, nil
		}
	}
	seat, err := s.sit()
	if err != nil {
		return nil, err
	}
	g := &sealing{seal: s}
	number := n.sealings.add(g)
	if number == 0 {
		return nil, verbs.ErrLimit
	}
	var nonce [seal.NonceLen]byte
	_, _ = crand.Read(nonce[:]) // never fails: it ends the process instead
	g.greeting = seal.NewGreeting(number, seat, nonce)
	return g, nil
}

// unseal ends the PD's part in all sessions.
func (d *pd) unseal() {
	for _, g := range d.sealings {
		if g.users--; g.users == 0 {
			d.ctx.nic.sealings.remove(g.greeting.Number())
		}
	}
	d.sealings = nil
}

// meet makes the association with a NIC of the peer, unless there is one.
func (g *sealing) meet(peer *seal.Greeting, addr udpAddr) error {
	a := g.peers[peer.Seat()]
	switch {
	case *peer == g.greeting:
		return verbs.Invalidf("a sealed QP cannot be connected to a QP of its own NIC")
	case a == nil:
		keys, err := g.seal.session.Associate(&g.greeting, peer)
		if err != nil {
			return verbs.Invalidf("%v", err)
		}
		a = &association{Association: keys, of: g, greeting: *peer, addr: addr}
		g.peers[peer.Seat()] = a
	case a.greeting != *peer || a.addr != addr:
		return verbs.Invalidf("the peer's endpoint has another greeting or address for seat %d than before", peer.Seat())
	}
	g.meetings++
	a.met = g.meetings
	return nil
}

// find returns the association with the NIC at an address that was met last, nil if there is none. Port 0 is any.
func (g *sealing) find(to udpAddr) (found *association) {
	for _, a := range g.peers {
		if a != nil && a.addr.gid == to.gid && (to.port == 0 || a.addr.port == to.port) && (found == nil || a.met > found.met) {
			found = a
		}
	}
	return found
}

// maxWrongKeys is how many wrong keys a sealed UC QP takes from its peer, which is known to be the sender.
const maxWrongKeys = 16

// wrongKey counts a wrong key of a UC peer. Plain QPs share a limit per time, so that a forger can end none. A
// sealed QP ends.
func (q *qp) wrongKey() {
	q.nic.stats.WrongKeys++
	if q.sealing == nil {
		q.pd.guesses.count(q.core)
		return
	}
	if q.wrongKeys++; q.wrongKeys == maxWrongKeys {
		q.raise(verbs.EventQPAccessErr)
		q.dying = true
		q.core.lists.failing.push(q)
	}
}

// accepts reports whether the QP takes a packet of an association, which is nil if the packet is plain, and counts it if
// not. The packet or the QP is sealed.
func (q *qp) accepts(a *association) bool {
	switch {
	case a == nil:
		q.nic.stats.Seals.Plain++
	case a == q.assoc, q.typ == verbs.UD && a.of == q.sealing:
		return true
	default:
		q.nic.stats.Seals.Wrong++
	}
	return false
}
