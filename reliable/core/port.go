package core

import "sync"

// Port is the state shared by the pacers of one port: the peers that compete for its link, and the
// number of bytes that keep the link busy. It measures both from arrivals. It is safe for concurrent
// use.
//
// While peers compete, granted bytes that have not arrived are kept at a window. A round lasts until
// two windows have arrived. The window then follows the rate of the round:
//
//	below the best                 the window grows by the missing amount, and a half
//	higher since the window grew   grows by the same amount again: more in flight helps
//	otherwise                      shrinks by a 32nd: a queue may have formed
//
// If growing twice does not help, the link has become slower, and the best rate is replaced. The window thus
// stays slightly above the bandwidth-delay product, for any link speed, length and host delay.
type Port struct {
	mu        sync.Mutex
	peers     map[Peer]*peer // the peers with connections
	busyPeers int            // the number of peers with a busy connection
	busy      int            // the number of busy connections; see creditDemand
	waiting   int            // the number of connections that wait for a grant
	topPeer   *peer          // the peer with the most recent arrivals
	topLead   uint64         // its lead over all others in bytes, at most maxLead
	window    float64        // the limit of granted bytes that have not arrived
	debt      float64        // the part of the window withheld for uncredited arrivals
	best      float64        // the best rate of two rounds in a row, in bytes per nanosecond; it decays
	last      float64        // the rate of the last round
	stable    float64        // the rate of the last round that began without a growth of the window
	grown     bool           // set if the window has grown since the round of stable
	fresh     bool           // set if it grew at the end of the last round
	futile    int            // counts consecutive growths of the window without a higher rate
	round     round
	roundTime int64 // the length of the last round, in nanoseconds
}

// round counts the arrivals of a round.
type round struct {
	open     bool   // set during a round
	since    int64  // its start
	bytes    uint64 // the bytes arrived
	expected uint64 // the requested and granted bytes among them
}

// Peer identifies the remote NIC of connections, for example by its GID. Its traffic shares one link.
type Peer [18]byte

// peer is a Port's state of a peer.
type peer struct {
	name        Peer
	connections int // the number of its connections
	busy        int // the number of its busy connections
}

const (
	// firstWindow is the initial window of a Port; leastWindow and mostWindow limit it. All are in bytes.
	firstWindow, leastWindow, mostWindow = 256 << 10, 64 << 10, 64 << 20
	// leastRound is the minimum number of bytes per round. Chunks end in clusters, so the rate of
	// fewer bytes would be meaningless.
	leastRound = 1 << 20
	// minCreditLifetime is the minimum time until unused credit expires, in nanoseconds.
	minCreditLifetime = 2_000_000
	// creditLifetimeRounds is that time in rounds.
	creditLifetimeRounds = 8
	// aloneLead is the lead of a peer that has the port to itself, in bytes. It exceeds the
	// credit of an idle sender, so that others have had the time to request credit.
	aloneLead = 192 << 10
	// maxLead bounds the lead, so that another peer can soon overtake it.
	maxLead = 384 << 10
	// debtPerByte is the number of bytes withheld from the window per uncredited byte.
	debtPerByte = 2
)

// NewPort returns a Port without measurements.
func NewPort() *Port { return &Port{window: firstWindow, peers: make(map[Peer]*peer)} }

// join adds a connection to a peer, and reports whether the peer is the only one.
func (p *Port) join(to Peer) (of *peer, only bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of = p.peers[to]; of == nil {
		of = &peer{name: to}
		p.peers[to] = of
	}
	of.connections++
	return of, len(p.peers) == 1
}

// leave undoes join for a connection that is not busy.
func (p *Port) leave(of *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.connections--; of.connections == 0 {
		delete(p.peers, of.name)
	}
}

// change updates the numbers of busy and waiting connections.
func (p *Port) change(of *peer, busy, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busyPeers -= oneIf(of.busy > 0)
	of.busy += busy
	p.busyPeers += oneIf(of.busy > 0)
	p.busy += busy
	if p.waiting += waiting; p.waiting == 0 {
		p.round.open = false // no connection waits: the peers determine the rate, not the link
	}
}

// arrived counts n bytes that have arrived. The expected bytes among them were requested and granted.
// The bytes beyond were not granted.
func (p *Port) arrived(now int64, from *peer, n, expected, beyond uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case from == p.topPeer:
		p.topLead = min(p.topLead+n, maxLead)
	case n <= p.topLead:
		p.topLead -= n
	default:
		p.topPeer, p.topLead = from, min(n-p.topLead, maxLead)
	}
	p.debt = min(max(p.debt-float64(n-beyond), 0)+debtPerByte*float64(beyond), p.window)
	r := &p.round
	switch {
	case p.waiting == 0:
	case !r.open:
		*r = round{open: true, since: now}
	default:
		r.bytes += n
		r.expected += expected
		if r.bytes >= max(leastRound, 2*uint64(p.window)) && now > r.since {
			p.roundTime = now - r.since
			p.end(float64(r.bytes)/float64(p.roundTime), r.expected >= r.bytes-r.bytes/8)
			*r = round{open: true, since: now}
		}
	}
}

// end processes the rate of a round. With expected, the window has determined this rate.
func (p *Port) end(rate float64, expected bool) {
	twice := min(rate, p.last) // a single round may contain the ends of many chunks
	mean := (rate + p.last) / 2
	p.last = rate
	if !expected {
		p.best = max(p.best, twice)
		return
	}
	if p.fresh {
		p.fresh = false // the previous window applied to part of the round
		return
	}
	before := p.stable
	p.stable = rate
	if p.grown && rate < 1.03*before {
		p.futile++
	} else {
		p.futile = 0
	}
	if p.futile == 2 {
		p.best = min(p.best, max(rate, before))
	}
	switch {
	case before == 0:
		p.grow(2)
	case mean < 0.98*p.best, rate < 0.95*p.best:
		p.grow(1.5 * p.best / mean)
	case p.grown && rate > 1.1*before:
		p.grow(rate / before)
	default:
		p.grown, p.futile = false, 0
		p.window = max(p.window*(1-1.0/32), leastWindow)
	}
	p.best = max(p.best*(1-1.0/128), twice)
}

// grow enlarges the window, at most to twice its size.
func (p *Port) grow(factor float64) {
	p.grown, p.fresh = true, true
	p.window = min(p.window*min(factor, 2), mostWindow)
}

// share returns the window of a pacer with the given number of busy connections.
func (p *Port) share(busy int) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return (p.window - p.debt) * float64(busy) / float64(max(p.busy, 1))
}

// isAlone reports whether a busy peer has the port to itself: it is the only peer, or the only busy one, and
// nearly all bytes arrive from it.
func (p *Port) isAlone(from *peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.peers) == 1 || (p.busyPeers == 1 && p.topPeer == from && p.topLead >= aloneLead)
}

// creditLifetime is the time until unused credit expires.
func (p *Port) creditLifetime() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(minCreditLifetime, creditLifetimeRounds*p.roundTime)
}
