package core

// PathState is the state of a path.
type PathState uint8

const (
	// PathUp carries everything.
	PathUp PathState = iota
	// PathSuspect has lost data while other paths delivered. It only retransmits its own lost chunks.
	PathSuspect
	// PathDown is out of service. Its QP is reset.
	PathDown
	// PathBuilding waits for the owner to create the QP of the next epoch.
	PathBuilding
	// PathOffered has sent its QP to the peer and waits for the peer's.
	PathOffered
	// PathProbing is connected and being tested with pings.
	PathProbing
)

var pathStateNames = [...]string{"UP", "SUSPECT", "DOWN", "BUILDING", "OFFERED", "PROBING"}

// String returns the state's name in capitals.
func (s PathState) String() string { return pathStateNames[s] }

// path is the local state of one path.
//
// Its transmissions are in a ring of entries, numbered by pseq:
//
//	low  <= next    no transmission below low is in flight
//	done <= next    the NIC no longer needs the memory of transmissions below done
type path struct {
	c     *Conn
	index uint16    // the position in c.paths
	state PathState // written by setState only
	epoch uint16    // counts the previous QPs of the path

	ledger   []entry // transmission pseq is at pseq modulo the length, a power of two; grows to Config.PathDepth
	low      uint32  // no transmission below this pseq is in flight
	done     uint32  // the NIC no longer needs the memory of transmissions below this pseq
	next     uint32  // the pseq of the next transmission
	inflight int     // the payload of transmissions in flight, in bytes
	flying   int     // the number of transmissions in flight

	rtt        rtt       // the round trip time of the path
	measured   bool      // set if rtt has a sample of this epoch
	measuredAt int64     // the time of the last sample
	loss       uint8     // the share of lost chunks, in 256ths
	stats      PathStats // its times are filled in by Conn.PathStats
	suspectAt  int64     // when the path became PathSuspect
	// silent is set if a transmission has timed out and no chunk was acknowledged
	// since.
	silent     bool
	silentAt   int64  // the send time of the transmission that made the path silent
	silentFlow uint16 // the flow of the transmission that made the path silent

	// The fields below are used to recover the path; see pathrecovery.go.
	timerAt   int64  // the time of onTimer, or never; never in PathUp
	attempts  uint8  // counts the pauses since the path last carried something, at most 6
	tries     uint8  // counts the offers or pings without a response
	pongs     uint8  // counts the answered pings of this epoch
	own       addr   // the local QP; its qpn is 0 in epoch 0 and without a QP
	peer      addr   // the QP offered by the peer; its qpn is 0 unless it waits to be connected
	havePeer  bool   // set once the owner has connected the QP to the peer's
	peerHas   bool   // set once the peer has connected its QP to ours
	pingNonce uint32 // the nonce of the last ping
	pingAt    int64  // when the last ping was sent
}

// addr is the address of a path's QP.
type addr struct{ qpn, psn uint32 }

// entry is a transmission on a path.
type entry struct {
	csn    uint64 // the chunk
	msg    uint64 // the message of the chunk
	sentAt int64  // when it was sent
	flow   uint16 // the flow of the chunk
}

func (p *path) entry(pseq uint32) *entry { return &p.ledger[pseq&uint32(len(p.ledger)-1)] }

// hasRoom reports whether one more transmission fits: the ledger has a free entry and
// the peer has a receive.
func (p *path) hasRoom() bool {
	c := p.c
	if c.cfg.PathCredit && p.flying >= max(c.window/len(c.paths), 1) {
		return false
	}
	return p.next-p.oldest() < uint32(c.cfg.PathDepth)
}

// oldest is the oldest transmission in the ledger.
func (p *path) oldest() uint32 {
	if int32(p.done-p.low) < 0 {
		return p.done
	}
	return p.low
}

// append adds a transmission to the ledger. The path must not be full.
func (p *path) append(e entry) {
	if first := p.oldest(); p.next-first == uint32(len(p.ledger)) {
		p.ledger = grown(p.ledger, first, p.next)
	}
	*p.entry(p.next) = e
	p.next++
}

// firstTableLen is the initial length of tables that grow. Most connections are idle.
const firstTableLen = 2

// grown returns a table of twice the length with the entries from first to end, each at its number modulo the length.
func grown[T any, N uint32 | uint64](table []T, first, end N) []T {
	wide := make([]T, 2*len(table))
	for i := first; i != end; i++ {
		wide[i&N(len(wide)-1)] = table[i&N(len(table)-1)]
	}
	return wide
}

// carries reports whether the path can carry its own lost chunks.
func (p *path) carries() bool { return p.state == PathUp || p.state == PathSuspect }

// alive reports whether the path has a QP that may be connected.
func (p *path) alive() bool {
	return p.carries() || p.c.cfg.Carrier.Shared || p.state == PathOffered || p.state == PathProbing
}

// outstanding reports whether transmission pseq is in flight.
func (p *path) outstanding(pseq uint32) bool {
	e := p.entry(pseq)
	s := &p.c.flows[e.flow].send
	if e.csn < s.una || e.csn >= s.nxt {
		return false
	}
	ch := s.chunk(e.csn)
	return ch.state == chunkFlying && ch.path == p.index && ch.pseq == pseq && ch.epoch == p.epoch
}

// setState changes the state of the path and updates the list of paths in PathUp.
func (p *path) setState(s PathState) {
	if p.state == s {
		return
	}
	c := p.c
	p.state = s
	c.up = c.up[:0]
	for j := range c.paths {
		if c.paths[j].state == PathUp {
			c.up = append(c.up, uint16(j))
		}
	}
}

// onEvent processes an event of the QP of the current epoch.
func (p *path) onEvent(ev *Event) {
	switch ev.Kind {
	case EvSent:
		for n := ev.Count; n > 0 && (p.carries() || p.c.cfg.Carrier.Shared) && p.done != p.next; n-- {
			p.unref()
		}
	case EvPathFailed:
		p.failed()
	default:
		p.onRebuilt(ev)
	}
}

// unref records that the NIC no longer needs the memory of the oldest transmission.
func (p *path) unref() {
	e := p.entry(p.done)
	f := p.c.flows[e.flow]
	f.message(e.msg).refs--
	p.done++
	f.touch()
}

// unrefAll makes the owner drop all references of the path's transmissions to memory, if reset is set and any
// exist. What is in flight may arrive or not.
func (p *path) unrefAll(reset bool) {
	if !reset || p.done == p.next {
		return
	}
	a := p.c.act(ActReset)
	a.Path, a.Epoch = p.index, p.epoch
	for p.done != p.next {
		p.unref()
	}
}

// refers reports whether a transmission of f may still need its memory.
func (p *path) refers(f *flow) bool {
	for k := p.done; k != p.next; k++ {
		if p.entry(k).flow == f.number {
			return true
		}
	}
	return false
}

// endFlight removes a chunk from the bytes in flight.
func (p *path) endFlight(ch *chunk) {
	p.c.flying--
	p.c.flyingBytes -= int(ch.len)
	if ch.epoch == p.epoch {
		p.inflight -= int(ch.len)
		p.flying--
	}
	p.c.congestion.onFlightChange()
}

// rtt estimates round trip times in nanoseconds. A sample is the time in the network. An answer
// is the time that a sender waits: it includes the time that completions wait in both hosts and by which
// the acknowledgement is delayed. Timers use answers (RFC 6298, section 2), everything else samples.
type rtt struct {
	srtt    int64  // the smoothed answer
	rttvar  int64  // its mean deviation
	mean    int64  // the smoothed sample
	last    int64  // the latest sample
	least   int64  // the minimum sample, or the initial value
	samples uint32 // counts the samples
}

// newRTT returns an estimate without samples.
func newRTT(initial int64) rtt {
	return rtt{srtt: initial, rttvar: initial / 2, mean: initial, last: initial, least: initial}
}

func (r *rtt) add(sample, answer int64) {
	r.last = sample
	if r.samples++; r.samples == 1 {
		r.srtt, r.rttvar, r.mean, r.least = answer, answer/2, sample, sample
		return
	}
	r.least = min(r.least, sample)
	r.mean += (sample - r.mean) / 8
	r.rttvar += (max(r.srtt-answer, answer-r.srtt) - r.rttvar) / 4
	r.srtt += (answer - r.srtt) / 8
}

// bound is the time within which nearly every response arrives.
func (r *rtt) bound() int64 { return r.srtt + 4*r.rttvar }

// measure adds a sample and its answer to r unless round-trip times are fixed.
func (c *Conn) measure(r *rtt, sample, answer int64) {
	if c.cfg.FixedRTT == 0 {
		r.add(sample, answer)
	}
}
