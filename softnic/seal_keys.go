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

// Seal is one side of an encrypted session: NICs on UDPLinks encrypt and authenticate the packets of
// its QPs (docs/wire.md). Set it as verbs.QPConfig.Path.Seal, or as ibverbx.Config.Seal for all lanes
// of a VirtualQP. The connected QPs must have a Seal with the same secret and the other role. QPs on
// several NICs may share a Seal. Close it after its QPs and AHs; each NIC keeps the keys until then. It
// is safe for concurrent use.
type Seal struct {
	// mu guards the fields below. It may be locked while a core's lock is held.
	mu sync.Mutex
	// session holds the secret, nil once the Seal is closed.
	session *seal.Session
	closed  bool
	// parts holds the NICs' sealings, by seat. A seat is never reused.
	parts []*sealing
	// users counts QPs and AHs.
	users int
	// wrongKeys counts wrong keys used by the peer.
	wrongKeys int
	// over is set when wrongKeys has reached its limit.
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
		return nil, verbs.NewOpError("create seal", "", 0, verbs.Invalidf("%v", err))
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

// join adds a user to the NIC's part in the session and returns that part.
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

// leave reverts join. It is a no-op if g is nil or stands for all sessions.
func (g *sealing) leave() {
	if g != nil && !g.any() {
		g.seal.mu.Lock()
		g.seal.users--
		g.seal.mu.Unlock()
	}
}

// sealing is a NIC's part in a session, until the Seal is closed. The core's lock guards it. Its nonce
// is never reused. The sealing for verbs.AnySeal has no session and stands for all of them: see
// NIC.anySealing.
type sealing struct {
	nic     *NIC
	seal    *Seal
	session *seal.Session
	// greeting is sent to peers.
	greeting seal.Greeting
	// peers holds the associations with the peer's NICs, by seat. They never change once created: a key
	// must not be reused with a new counter.
	peers [seal.Seats]*association
	// meetings counts successful calls of meet.
	meetings uint64
}

// sealings holds a NIC's parts in sessions, by receive number.
type sealings struct {
	slots[*sealing]
	// shared is the sealing for verbs.AnySeal, created with its first QP.
	shared *sealing
}

// association pairs a sealing with one of the peer's NICs.
type association struct {
	*seal.Association
	of *sealing
	// greeting is the peer's.
	greeting seal.Greeting
	// addr is the receive address of the peer's NIC.
	addr udpAddr
	// from is the path of its packets. Their source address on the wire is not authenticated.
	from path
	// peer describes the peer's NIC.
	peer udpPeer
	// met is the value of sealing.meetings after the last call for this association.
	met uint64
}

// sealing returns the NIC's part in the session of s and adds a user to it. It returns nil if s is nil.
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

// anySealing returns the sealing of QPs that seal each datagram with the Seal of its AH.
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

// sends reports whether a QP with this sealing, which may be nil, can send datagrams on a path.
func (g *sealing) sends(p *path) bool {
	return p.sealing == g || g.any() && p.sealing != nil
}

// newSealing creates the NIC's part in a session.
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
	_, _ = crand.Read(nonce[:]) // never fails: it aborts the process instead
	g.greeting = seal.NewGreeting(number, uint8(seat), nonce)
	return g, nil
}

// meet returns the association with a peer's NIC, from the NIC's description. It creates the
// association on first use.
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

// find returns the most recently met association with the NIC at an address, nil if none matches. Port
// 0 matches any port.
func (g *sealing) find(to udpAddr) (found *association) {
	for _, a := range g.peers {
		if a != nil && a.at(to) && (found == nil || a.met > found.met) {
			found = a
		}
	}
	return found
}

// at reports whether the peer's NIC receives at an address. Port 0 matches any port.
func (a *association) at(to udpAddr) bool {
	return a.addr.gid == to.gid && (to.port == 0 || a.addr.port == to.port)
}

// maxWrongKeys is the number of wrong keys, over all QPs of a sealed session, that disables the
// session. Unlike on plain QPs, the peer is known to be their sender.
const maxWrongKeys = 16

// wrongKey records a wrong key used by the peer. On plain UC QPs, the limit applies per time interval,
// so a forger cannot close them. At the limit of a sealed session, all its QPs on this NIC fail
// immediately, and its other QPs because they receive no more packets.
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

// WrongKey implements verbs.KeyCounter. At the limit, the QPs of the session stop receiving packets.
func (s *Seal) WrongKey() {
	if s != nil {
		s.count()
	}
}

// count records a wrong key of the peer, and reports whether it reached the limit.
func (s *Seal) count() (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrongKeys++
	s.over.Store(s.wrongKeys >= maxWrongKeys)
	return s.wrongKeys == maxWrongKeys
}

// accepts reports whether the QP accepts a packet of an association, nil for a plain packet. It counts
// rejected packets. The packet or the QP is sealed.
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
