package softnic

import (
	crand "crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/verbs"
)

// Seal is one side of an encrypted session: NICs on UDPLinks encrypt and authenticate the packets of its
// QPs (docs/wire.md). Set it as verbs.QPConfig.Path.Seal, or as ibverbx.Config.Seal for all lanes of a
// VirtualQP. The connected QPs must have a Seal with the same secret and the other role. QPs of several
// NICs may share a Seal. Close it after its QPs: until then each of these NICs keeps its keys. It is
// safe for concurrent use.
type Seal struct {
	// mu guards everything below. A core's lock may be held when it is taken.
	mu sync.Mutex
	// session has the secret, nil when the Seal is closed.
	session *seal.Session
	closed  bool
	// parts are those of the NICs, by seat. No seat is used twice.
	parts []*sealing
	// users counts the QPs and AHs.
	users int
	// wrongKeys counts the wrong keys that the peer has presented.
	wrongKeys int
	// over says that there were too many of them.
	over atomic.Bool
}

var _ verbs.Seal = (*Seal)(nil)

// NewSeal returns one side of a session with a peer. Both sides must pass the same secret of at least 16
// random bytes, such as an exported TLS key, and exactly one of them must be the dialer. Endpoints do
// not contain the secret. A secret may be reused: every session derives its own keys. A short secret
// returns verbs.ErrInvalid.
func NewSeal(secret []byte, dialer bool) (*Seal, error) {
	s, err := seal.NewSession(secret, dialer)
	if err != nil {
		return nil, verbs.NewOpError("make seal", "", 0, verbs.Invalidf("%v", err))
	}
	return &Seal{session: s}, nil
}

// Sealed implements verbs.Seal.
func (*Seal) Sealed() {}

// Close makes all NICs discard the session's keys. It returns verbs.ErrBusy while QPs or AHs use them.
func (s *Seal) Close() error {
	s.mu.Lock()
	if s.users > 0 {
		defer s.mu.Unlock()
		return verbs.NewOpError("close seal", "", 0, fmt.Errorf("%w: %d QPs and AHs use it", verbs.ErrBusy, s.users))
	}
	parts := s.parts
	s.session, s.closed, s.parts = nil, true, nil
	s.mu.Unlock()
	for _, g := range parts {
		g.nic.core.mu.Lock()
		g.nic.sealings.remove(g.greeting.Number())
		g.session = nil
		clear(g.peers[:])
		g.nic.core.mu.Unlock()
	}
	return nil
}

// join adds a user of the NIC's part in the session and returns that part.
func (s *Seal) join(n *NIC) (*sealing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, verbs.ErrClosed
	case s.session == nil:
		return nil, verbs.Invalidf("Seal is empty: want one that softnic.NewSeal has returned")
	case s.over.Load():
		return nil, fmt.Errorf("%w: the peer of the Seal has presented %d wrong keys", verbs.ErrLimit, maxWrongKeys)
	}
	k := slices.IndexFunc(s.parts, func(g *sealing) bool { return g.nic == n })
	if k < 0 {
		g, err := n.newSealing(s, len(s.parts))
		if err != nil {
			return nil, err
		}
		k, s.parts = len(s.parts), append(s.parts, g)
	}
	s.users++
	return s.parts[k], nil
}

// leave takes back a join. It does nothing if g is nil or for any session.
func (g *sealing) leave() {
	if g != nil && !g.any() {
		g.seal.mu.Lock()
		g.seal.users--
		g.seal.mu.Unlock()
	}
}

// sealing is the part of a NIC in a session. The core's lock guards it. It lasts until the Seal is closed. Its
// nonce is never used again. That of verbs.AnySeal has no session, and stands for all of them; see NIC.anySealing.
type sealing struct {
	nic     *NIC
	seal    *Seal
	session *seal.Session
	// greeting is what peers learn of it.
	greeting seal.Greeting
	// peers are the peer's NICs, by seat. Once met they do not change: a key must not be used with a new
	// counter.
	peers [seal.Seats]*association
	// meetings counts the endpoints of peers.
	meetings uint64
}

// sealings are the parts of a NIC in sessions, by the number under which it receives their packets.
type sealings struct {
	slots[*sealing]
	// shared is that of verbs.AnySeal, nil before its first QP.
	shared *sealing
}

// association is a sealing and a NIC of the peer.
type association struct {
	*seal.Association
	of *sealing
	// greeting is the peer's.
	greeting seal.Greeting
	// addr is where the peer's NIC receives.
	addr udpAddr
	// from is the path of its packets. Their source address on the wire is not authenticated.
	from path
	// peer is how the peer's NIC describes itself.
	peer udpPeer
	// met is the number of its last meeting.
	met uint64
}

// sealing returns the NIC's part in the session of s, nil if s is nil. It has one more user.
func (n *NIC) sealing(s verbs.Seal) (*sealing, error) {
	if s == nil {
		return nil, nil
	}
	if n.udp == nil {
		return nil, fmt.Errorf("%w: Seal is set: only NICs on UDPLinks seal packets", verbs.ErrNotSupported)
	}
	if _, ok := s.(verbs.AnySeal); ok {
		return n.anySealing()
	}
	own, ok := s.(*Seal)
	if !ok || own == nil {
		return nil, verbs.Invalidf("Seal is a %T: want one that softnic.NewSeal has returned", s)
	}
	return own.join(n)
}

// anySealing returns the sealing of QPs whose datagrams have the Seals of their AHs.
func (n *NIC) anySealing() (*sealing, error) {
	if err := n.core.udpNIC.plugSealed(n); err != nil {
		return nil, err
	}
	if n.sealings.shared == nil {
		n.sealings.shared = &sealing{nic: n}
	}
	return n.sealings.shared, nil
}

// any reports whether g stands for all sessions.
func (g *sealing) any() bool { return g != nil && g.seal == nil }

// sends reports whether a QP with this sealing, which may be nil, sends datagrams on a path.
func (g *sealing) sends(p *path) bool {
	return p.sealing == g || g.any() && p.sealing != nil
}

// newSealing makes the NIC's part in a session.
func (n *NIC) newSealing(s *Seal, seat int) (*sealing, error) {
	if seat == seal.Seats {
		return nil, fmt.Errorf("%w: a Seal serves %d NICs", verbs.ErrLimit, seal.Seats)
	}
	if err := n.core.udpNIC.plugSealed(n); err != nil {
		return nil, err
	}
	g := &sealing{nic: n, seal: s, session: s.session}
	number := n.sealings.add(g)
	if number == 0 {
		return nil, verbs.ErrLimit
	}
	var nonce [seal.NonceLen]byte
	_, _ = crand.Read(nonce[:]) // never fails: it ends the process instead
	g.greeting = seal.NewGreeting(number, uint8(seat), nonce)
	return g, nil
}

// meet returns the association with a NIC of the peer, which describes itself. It makes one if there is none.
func (g *sealing) meet(peer *seal.Greeting, addr udpAddr, as *udpPeer) (*association, error) {
	if *peer == g.greeting {
		return nil, verbs.Invalidf("a sealed QP cannot be connected to a QP of its own NIC")
	}
	if peer.Seat() >= seal.Seats {
		return nil, verbs.Invalidf("the peer's endpoint has seat %d: want at most %d", peer.Seat(), seal.Seats-1)
	}
	if addr.port == 0 || addr.port == roce.Port {
		return nil, verbs.Invalidf("the peer's endpoint has UDP port %d: sealed packets need a port of their own", addr.port)
	}
	a := g.peers[peer.Seat()]
	if a == nil {
		keys, err := g.session.Associate(&g.greeting, peer)
		if err != nil {
			return nil, verbs.Invalidf("%v", err)
		}
		a = &association{Association: keys, of: g, greeting: *peer, addr: addr, from: g.nic.pathFrom(addr), peer: udpPeer{budget: newBudget()}}
		g.peers[peer.Seat()] = a
	}
	if a.greeting != *peer || a.addr != addr {
		return nil, verbs.Invalidf("the peer's endpoint has another greeting or address for seat %d than before", peer.Seat())
	}
	a.peer.describe(as)
	g.meetings++
	a.met = g.meetings
	return a, nil
}

// find returns the association with the NIC at an address that was met last, nil if there is none. Port 0 is any.
func (g *sealing) find(to udpAddr) (found *association) {
	for _, a := range g.peers {
		if a != nil && a.at(to) && (found == nil || a.met > found.met) {
			found = a
		}
	}
	return found
}

// at reports whether the peer's NIC receives at an address. Port 0 is any.
func (a *association) at(to udpAddr) bool {
	return a.addr.gid == to.gid && (to.port == 0 || a.addr.port == to.port)
}

// maxWrongKeys is how many wrong keys a peer of a sealed session may present, on all its QPs together. The peer is
// known to be the sender.
const maxWrongKeys = 16

// wrongKey counts a wrong key of the peer. Plain UC QPs share a limit per time, so that a forger can end none. The last
// wrong key of a sealed session ends the session: all its QPs on this NIC at once, and the others because they
// get no more packets.
func (q *qp) wrongKey() {
	q.nic.stats.WrongKeys++
	if q.sealing == nil {
		if q.typ == verbs.UC {
			q.pd.keyGuesses.count(q.core)
		}
		return
	}
	if !q.sealing.seal.count() {
		return
	}
	for other := range q.nic.qps.all() {
		if other.sealing == q.sealing && receivable[other.state] && !other.failingNAK {
			other.raise(verbs.EventQPAccessErr)
			other.failingNAK = true
			other.core.lists.failing.push(other)
		}
	}
}

// WrongKey implements verbs.KeyCounter. The last wrong key ends the session: its QPs get no more packets.
func (s *Seal) WrongKey() {
	if s != nil {
		s.count()
	}
}

// count counts a wrong key of the peer, and reports whether it was the last that ends the session.
func (s *Seal) count() (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrongKeys++
	s.over.Store(s.wrongKeys >= maxWrongKeys)
	return s.wrongKeys == maxWrongKeys
}

// accepts reports whether the QP takes a packet of an association, which is nil if the packet is plain, and counts it if
// not. The packet or the QP is sealed.
func (q *qp) accepts(a *association) bool {
	switch {
	case a == nil:
		q.nic.stats.Seals.Plain++
	case a == q.assoc, q.typ == verbs.UD && (a.of == q.sealing || q.sealing.any()):
		return true
	default:
		q.nic.stats.Seals.Wrong++
	}
	return false
}
