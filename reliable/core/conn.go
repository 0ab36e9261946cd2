package core

import (
	"math/bits"

	"ibverbx/reliable/wire"
)

// Conn is one end of a connection. It is for one goroutine at a time.
//
// Its parts live in files of their own: flow.go holds the flows, send.go cuts messages and
// transmits, ack.go takes acknowledgements, loss.go finds what is lost, choose.go picks paths,
// recover.go brings them back, receive.go is the other half, timer.go is about time.
type Conn struct {
	cfg   Config
	now   int64
	out   []Action
	rng   uint64
	stats Stats
	paths []path
	up    []uint16 // the paths that are up
	schedule
	traffic
	control
	creditor
}

// traffic is what the flows of the sending half share.
type traffic struct {
	lost        int // chunks to be sent again
	flying      int // transmissions neither acknowledged nor lost
	flyingBytes int
	ghosts      int   // transmissions that silence has ended since the last progress: they may still come
	window      int   // what the peer has receives for
	arrivedAt   int64 // when something was last known to have arrived, of any flow

	rtt          rtt
	rackAt       int64 // the latest of its flows
	reorderAt    int64 // when the next chunk counts as lost
	reorderShift uint8
	calm         uint8 // acknowledgements since the last spurious loss
	last         int32 // the path of the last small chunk, or -1
	lastBytes    uint32
}

// control is the state of control packets.
type control struct {
	route    Route // the control QP in use
	requests uint32
	ackRoute Route  // by which acknowledgements go
	stale    uint32 // duplicates and questions in a row
	credit   int    // receives that this end keeps for what arrives
}

// sender is the sending half of a flow.
//
//	reported <= cut <= posted    messages: completed, cut into chunks, posted
//	una <= nxt                   chunks: the oldest unacknowledged, the next to make
type sender struct {
	msgs                  []message
	depth                 int
	posted, cut, reported uint64
	messageNo             uint32 // of the next message that takes a receive

	chunks    []chunk
	una, nxt  uint64
	lostCount int
	// acked is, by path, one above the last transmission that is known to have arrived.
	acked  []uint32
	rackAt int64 // when the latest transmission was sent that is known to have arrived

	recvLimit uint32 // the first message that the peer has no receive for
	noRecv    bool   // the front message waits for one
	sides     int    // side messages under way
	noRecvAt  int64  // since when it waits

	probeAt    int64
	probes     uint8  // since the last progress
	recvProbes uint8  // for want of a receive
	nonce      uint32 // of the last Solicit
	nonceAt    int64  // when it was sent, never if it is answered
	busy       bool   // something is to be done for which GiveUp counts
	progressAt int64
}

// message is a posted message. Its chunks end before end.
type message struct {
	Message
	number uint32 // among those that take a receive
	off    uint32 // bytes that are cut
	end    uint64
	refs   int32 // transmissions that refer to its memory
	begun  bool
	side   bool // ActSide was given and has not ended
}

// chunk is a piece of a message.
type chunk struct {
	msg                 uint64
	sentAt              int64
	off, len            uint32
	pseq                uint32 // its number on the path that it was last sent on
	path, epoch         uint16
	origPath, origEpoch uint16 // where its one-sided WRITE went
	op                  wire.Op
	flags               wire.HeaderFlags
	xmits               uint8
	state               chunkState
	moved               bool // was sent on more than one path
}

type chunkState uint8

const (
	chunkFlying chunkState = iota
	chunkLost
	chunkAcked
)

// Stats counts what a connection has done.
type Stats struct {
	Chunks        uint64 // first transmissions
	Retransmitted uint64
	SamePathLoss  uint64 // found because a later one of the path arrived
	ReorderLoss   uint64 // found because a later one of another path arrived
	TimeoutLoss   uint64 // found by silence
	Probes        uint64
	Acks          uint64 // sent
	Duplicates    uint64 // received
	Refused       uint64 // received and not taken: beyond the window, without a receive, or of no flow
	Fences        uint64
	PathsDown     uint64
	PathsUp       uint64 // after they were down
	BadRecords    uint64 // records that say what cannot be
}

// New returns a connection whose paths are all up, in epoch 0.
func New(cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Conn{cfg: cfg, rng: cfg.Seed ^ 0x9e3779b97f4a7c15}
	c.out = make([]Action, 0, 2*cfg.Window+2*cfg.Paths+2*cfg.Flows+16)
	c.window, c.credit = cfg.PeerCredit, cfg.RecvCredit
	c.rackAt, c.last, c.reorderAt = -never, -1, never
	c.rtt = newRTT(cfg.InitialRTT)
	c.initCredit()
	c.up = make([]uint16, 0, cfg.Paths)
	c.paths = make([]path, cfg.Paths)
	for i := range c.paths {
		c.paths[i].init(&cfg)
		c.up = append(c.up, uint16(i))
	}
	return c, c.initFlows()
}

func (f *flow) initSender(c *Conn, depth int) {
	f.msgs = make([]message, ceilPow2(depth))
	f.chunks = make([]chunk, c.cfg.Window)
	f.depth = depth
	f.acked = make([]uint32, len(c.paths))
	for i := range c.paths {
		f.acked[i] = c.paths[i].next
	}
	f.rackAt, f.probeAt, f.nonceAt = -never, never, never
}

func ceilPow2(n int) int { return 1 << bits.Len(uint(n-1)) }

// Step tells the connection what happened at now, which never goes back, and returns what is
// to be done. The actions are valid until the next Step.
func (c *Conn) Step(now int64, ev *Event) []Action {
	c.now = max(c.now, now)
	c.out = c.out[:0]
	switch ev.Kind {
	case EvTick:
		c.tick()
	case EvData:
		c.onData(ev)
	case EvChunk:
		c.onChunk(ev)
	case EvRecord:
		c.onRecord(ev)
	case EvSent:
		c.onSent(ev)
	case EvPathFailed:
		if int(ev.Path) < len(c.paths) && c.paths[ev.Path].epoch == ev.Epoch {
			c.pathFailed(int(ev.Path))
		}
	case EvRebuilt:
		c.onRebuilt(ev)
	case EvFlush:
		c.flush()
	case EvCredit:
		c.onRecvCredit(ev.Count)
	case EvGrant:
		c.onGrant(ev.Count)
	case EvPost, EvReceives, EvSide, EvClose:
		if f := c.flow(ev.Flow); f != nil {
			c.onUser(f, ev)
		}
	}
	c.settle()
	return c.out
}

// onUser takes what the user of a flow does.
func (c *Conn) onUser(f *flow, ev *Event) {
	switch ev.Kind {
	case EvPost:
		c.post(f, &ev.Message)
	case EvReceives:
		c.onReceives(f, ev.Count)
	case EvSide:
		c.onSide(f, ev)
	default:
		c.fail(f, ev.Status)
	}
	c.touch(f)
}

// settle does what has become possible.
func (c *Conn) settle() {
	for again := true; again && !c.over(); {
		c.dispatch()
		again = false // a fence may wait for a message to end
		for i := 0; i < len(c.touched); i++ {
			if f := c.flows[c.touched[i]]; !f.failed && c.report(f) {
				c.touch(f)
				again = true
			}
		}
	}
	for _, n := range c.touched {
		if f := c.flows[n]; !f.failed {
			c.arm(f)
		}
	}
	if !c.over() {
		c.ask()
	}
	for _, n := range c.touched {
		f := c.flows[n]
		c.ackIfDue(f)
		f.touched = false
		c.retime(f, c.deadline(f))
	}
	c.touched = c.touched[:0]
}

// act appends an action. The pointer is valid until the next one.
func (c *Conn) act(kind ActionKind) *Action {
	c.out = append(c.out, Action{Kind: kind})
	return &c.out[len(c.out)-1]
}

// Room is how many messages may be posted on a flow.
func (c *Conn) Room(number int) int {
	f := c.flows[number]
	return f.depth - int(f.posted-f.reported)
}

// Failed reports whether the sending half of a flow has ended in an error.
func (c *Conn) Failed(number int) bool { return c.flows[number].failed }

// Stats returns what the connection has done.
func (c *Conn) Stats() Stats { return c.stats }

// Epoch returns the epoch of a path.
func (c *Conn) Epoch(path int) uint16 { return c.paths[path].epoch }

// PathState returns the state of a path.
func (c *Conn) PathState(path int) PathState { return c.paths[path].state }

func (s *sender) message(i uint64) *message { return &s.msgs[i&uint64(len(s.msgs)-1)] }
func (s *sender) chunk(csn uint64) *chunk   { return &s.chunks[csn&uint64(len(s.chunks)-1)] }

// random returns the next number of a xorshift generator.
func (c *Conn) random() uint64 {
	x := c.rng
	if x == 0 {
		x = 1
	}
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	c.rng = x
	return x
}
