package core

import (
	"cmp"

	"ibverbx/internal/xorshift"
	"ibverbx/reliable/wire"
)

// Conn is one side of a connection. Only one goroutine at a time may use it.
type Conn struct {
	cfg   Config          // with defaults filled in
	now   int64           // the time of the current step
	age   int64           // Event.Age of the current step
	out   []Action        // the actions of the current step
	rng   xorshift.Source // draws paths
	stats Stats
	paths []path   // the paths, by index
	up    []uint16 // the indices of the paths in PathUp, in order
	schedule
	traffic
	rack       rack
	congestion congestion
	control    control
	credits    credits
}

// traffic is the state shared by the senders of all flows.
type traffic struct {
	lost        int    // the number of chunks to retransmit
	flying      int    // the number of transmissions neither acknowledged nor lost
	flyingBytes int    // the payload of the transmissions of flying, in bytes
	timedOut    int    // transmissions ended by a timeout since the last progress; they may still arrive
	window      int    // the number of transmissions for which the peer has receives
	arrivedAt   int64  // the time of the last acknowledged arrival of any flow
	rtt         rtt    // the round trip time over all paths
	last        int32  // the path of the last small chunk, or -1
	lastBytes   uint32 // the bytes of small chunks since last changed
}

// control is the state of control packets.
type control struct {
	route        Route  // the last working control QP
	routeTurns   uint32 // the number of calls of nextRoute
	ackRoute     Route  // the route of acknowledgements and credit
	lostAckHints uint32 // counts duplicates and Solicits in a row: acknowledgements may be lost
	credit       int    // the number of receives advertised to the peer
	posting      bool   // set while the current step processes an EvPost
	requestDue   bool   // set if a flow requests receives at the next EvFlush
}

// Stats are the counters of a connection.
type Stats struct {
	Chunks        uint64 // counts first transmissions of chunks
	Retransmitted uint64 // counts all other transmissions of chunks
	SamePathLoss  uint64 // counts lost chunk transmissions, detected by the arrival of a later chunk on the same path
	ReorderLoss   uint64 // the same, on another path
	TimeoutLoss   uint64 // the same, inferred from a timeout
	Probes        uint64 // counts requests for an acknowledgement
	Acks          uint64 // counts acknowledgements sent
	Duplicates    uint64 // counts duplicate chunks
	Refused       uint64 // counts dropped chunks: beyond the window, without a receive, or for a flow that is not open
	Fences        uint64 // counts paths taken out of service for the fence
	PathsDown     uint64 // counts paths taken out of service
	PathsUp       uint64 // counts paths returned to service
	BadRecords    uint64 // counts received records with impossible values
	Malformed     uint64 // counts dropped datagrams: malformed, for no connection, or not from its peer; counted by the owner
}

// Add adds the counters of another connection.
func (s *Stats) Add(o *Stats) {
	s.Chunks += o.Chunks
	s.Retransmitted += o.Retransmitted
	s.SamePathLoss += o.SamePathLoss
	s.ReorderLoss += o.ReorderLoss
	s.TimeoutLoss += o.TimeoutLoss
	s.Probes += o.Probes
	s.Acks += o.Acks
	s.Duplicates += o.Duplicates
	s.Refused += o.Refused
	s.Fences += o.Fences
	s.PathsDown += o.PathsDown
	s.PathsUp += o.PathsUp
	s.BadRecords += o.BadRecords
	s.Malformed += o.Malformed
}

// New returns a connection with all paths up, in epoch 0. Errors wrap ErrConfig.
func New(cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg, rng: xorshift.Source(cmp.Or(cfg.Seed^0x9e3779b97f4a7c15, 1))}
	c.out = make([]Action, 0, 16) // grows with the largest step: most connections are idle
	c.window, c.control.credit = cfg.PeerCredit, cfg.RecvCredit
	c.rack, c.last = rack{at: -never, reorderAt: never}, -1
	c.rtt = newRTT(cfg.InitialRTT)
	c.credits.init(c)
	c.up = make([]uint16, 0, cfg.Paths)
	c.paths = make([]path, cfg.Paths)
	for i := range c.paths {
		c.paths[i] = path{c: c, index: uint16(i), ledger: make([]entry, min(firstTableLen, cfg.PathDepth)), rtt: c.rtt, timerAt: never}
		c.up = append(c.up, uint16(i))
	}
	c.congestion.init(c)
	return c, c.initFlows()
}

// Step processes an event at time now, which must never decrease. It returns the actions for the owner,
// valid until the next Step.
func (c *Conn) Step(now int64, ev *Event) []Action {
	c.now, c.age = max(c.now, now), max(ev.Age, 0)
	c.out, c.control.posting = c.out[:0], ev.Kind == EvPost
	switch ev.Kind {
	case EvTick:
		c.tick()
	case EvData:
		c.onData(ev)
	case EvChunk:
		c.onChunk(ev)
	case EvPlaced:
		c.onPlaced(ev)
	case EvRecord:
		c.onRecord(ev)
	case EvSent, EvPathFailed, EvRebuilt:
		if int(ev.Path) < len(c.paths) && c.paths[ev.Path].epoch == ev.Epoch {
			c.paths[ev.Path].onEvent(ev)
		}
	case EvFlush:
		c.flushAcks()
	case EvCredit:
		c.onRecvCredit(ev.Count)
	case EvGrant:
		c.credits.onGrant(ev.Count)
	case EvPost, EvReceives, EvClose:
		if f := c.flow(ev.Flow); f != nil {
			f.onUser(ev)
		}
	}
	c.settle()
	return c.out
}

// settle does everything made possible by the event.
func (c *Conn) settle() {
	for again := true; again && !c.Over(); {
		c.dispatch()
		again = false // repeat if a completion may release a fenced message
		for i := 0; i < len(c.touched); i++ {
			if f := c.flows[c.touched[i]]; !f.failed && f.report() {
				f.touch()
				again = true
			}
		}
	}
	for _, n := range c.touched {
		if f := c.flows[n]; !f.failed {
			f.arm()
		}
	}
	if !c.Over() {
		c.credits.requestMore()
	}
	if c.credits.reportDue {
		c.credits.report()
	}
	for _, n := range c.touched {
		f := c.flows[n]
		f.ackIfDue()
		f.touched = false
		f.setDue(f.deadline())
	}
	c.touched = c.touched[:0]
}

// act appends an action. The pointer is valid until the next call.
func (c *Conn) act(kind ActionKind) *Action {
	c.out = append(c.out, Action{Kind: kind})
	return &c.out[len(c.out)-1]
}

// sendRecord appends an action that sends a record. The pointer is valid until the next action.
func (c *Conn) sendRecord(route Route, r wire.Record) *wire.Record {
	a := c.act(ActControl)
	a.Route, a.Record = route, r
	return &a.Record
}

// Room returns the number of messages that can be posted on a flow.
func (c *Conn) Room(number int) int {
	s := &c.flows[number].send
	return s.depth - int(s.posted-s.reported)
}

// Failed reports whether the sending half of a flow has failed.
func (c *Conn) Failed(number int) bool { return c.flows[number].failed }

// Over reports whether the connection is finished: every flow has failed, and no more can be opened.
func (c *Conn) Over() bool { return c.alive == 0 && c.opened == len(c.flows) }

// Stats returns the connection's counters.
func (c *Conn) Stats() Stats { return c.stats }

// Epoch returns the epoch of a path.
func (c *Conn) Epoch(path int) uint16 { return c.paths[path].epoch }

// PathState returns the state of a path.
func (c *Conn) PathState(path int) PathState { return c.paths[path].state }
