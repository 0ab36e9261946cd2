package core

// PathState is the state of a path.
type PathState uint8

const (
	// PathUp carries everything.
	PathUp PathState = iota
	// PathSuspect has lost something while others had not. It carries only what it has
	// lost, once more.
	PathSuspect
	// PathDown is out of service, its QP reset.
	PathDown
	// PathBuilding waits for the owner to make the QP of the next epoch.
	PathBuilding
	// PathOffered has told the peer of its QP and waits for that of the peer.
	PathOffered
	// PathProbing is connected and tried with pings.
	PathProbing
)

var pathStateNames = [...]string{"UP", "SUSPECT", "DOWN", "BUILDING", "OFFERED", "PROBING"}

// String returns the name in capitals.
func (s PathState) String() string { return pathStateNames[s] }

// path is one path, as this end sees it.
//
// What was sent on it is in a ring of entries, numbered by pseq:
//
//	low  <= next    below low nothing is in flight
//	done <= next    below done the NIC no longer needs the memory
type path struct {
	state    PathState
	epoch    uint16
	measured bool

	ledger          []entry
	low, done, next uint32
	inflight        int // bytes
	flying          int // transmissions neither acknowledged nor lost
	rtt             rtt
	measuredAt      int64
	suspectAt       int64
	silentAt        int64 // when the last transmission was sent that silence has ended
	silentFlow      uint16
	silent          bool  // there is one, and nothing was acknowledged since
	loss            uint8 // share of chunks lost, in 256ths

	// The rest is about bringing it back.
	attempts          uint8
	tries             uint8
	pongs             uint8
	havePeer, peerHas bool
	qpn, psn          uint32
	peerQPN, peerPSN  uint32
	timerAt           int64
	pingNonce         uint32
	pingAt            int64
}

// entry is a transmission on a path.
type entry struct {
	csn    uint64
	msg    uint64
	sentAt int64
	flow   uint16
}

func (p *path) init(cfg *Config) {
	p.ledger = make([]entry, cfg.PathDepth)
	p.rtt = newRTT(cfg.InitialRTT)
	p.timerAt = never
}

func (p *path) entry(pseq uint32) *entry { return &p.ledger[pseq&uint32(len(p.ledger)-1)] }

// room reports whether the ledger takes one more.
func (p *path) room() bool {
	oldest := p.low
	if int32(p.done-oldest) < 0 {
		oldest = p.done
	}
	return p.next-oldest < uint32(len(p.ledger))
}

// room reports whether one more can be sent on p: its ledger has room, and the peer a receive.
func (c *Conn) room(p *path) bool {
	if c.cfg.PathCredit && p.flying >= max(c.window/len(c.paths), 1) {
		return false
	}
	return p.room()
}

// carries reports whether the path can carry what it lost.
func (p *path) carries() bool { return p.state == PathUp || p.state == PathSuspect }

// alive reports whether the path has a QP that may be connected.
func (p *path) alive() bool {
	return p.carries() || p.state == PathOffered || p.state == PathProbing
}

// outstanding reports whether transmission pseq of path i is in flight.
func (c *Conn) outstanding(i int, p *path, pseq uint32) bool {
	e := p.entry(pseq)
	f := c.flows[e.flow]
	if e.csn < f.una || e.csn >= f.nxt {
		return false
	}
	ch := f.chunk(e.csn)
	return ch.state == chunkFlying && int(ch.path) == i && ch.pseq == pseq && ch.epoch == p.epoch
}

// setState changes the state of a path and the list of those that are up.
func (c *Conn) setState(i int, s PathState) {
	p := &c.paths[i]
	if p.state == s {
		return
	}
	p.state = s
	c.up = c.up[:0]
	for j := range c.paths {
		if c.paths[j].state == PathUp {
			c.up = append(c.up, uint16(j))
		}
	}
}

// onSent notes that transmissions of a path no longer refer to memory.
func (c *Conn) onSent(ev *Event) {
	if int(ev.Path) >= len(c.paths) {
		return
	}
	p := &c.paths[ev.Path]
	if p.epoch != ev.Epoch || !p.carries() {
		return
	}
	for range ev.Count {
		if p.done == p.next {
			return
		}
		c.unref(p)
	}
}

// unref notes that the oldest transmission that referred to memory does so no more.
func (c *Conn) unref(p *path) {
	e := p.entry(p.done)
	f := c.flows[e.flow]
	f.message(e.msg).refs--
	p.done++
	c.touch(f)
}

// rtt is a smoothed round trip time and its variation (RFC 6298, section 2).
type rtt struct {
	srtt, rttvar int64
	last         int64 // the latest sample
	samples      uint32
}

// newRTT returns what counts before anything is measured.
func newRTT(initial int64) rtt { return rtt{srtt: initial, rttvar: initial / 2, last: initial} }

func (r *rtt) add(sample int64) {
	r.last = sample
	if r.samples++; r.samples == 1 {
		r.srtt, r.rttvar = sample, sample/2
		return
	}
	r.rttvar += (abs(r.srtt-sample) - r.rttvar) / 4
	r.srtt += (sample - r.srtt) / 8
}

// bound is a time within which nearly every answer comes.
func (r *rtt) bound() int64 { return r.srtt + 4*r.rttvar }

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}
