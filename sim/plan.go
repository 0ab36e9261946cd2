package sim

import (
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Plan is a world in which nothing is left open: what is built, what is sent, and what goes
// wrong when. Only contents and small choices still come from the seed.
type Plan struct {
	// Name is that of the scenario.
	Name string
	Seed uint64
	// Hosts are joined by Rails, each a network of its own.
	Hosts    int
	Rails    []RailPlan
	Connects []ConnectPlan
	Work     WorkPlan
	Faults   []Fault
	Expect   Expectation
	// Shared is how many receives the SRQs of a host hold, 0 if lanes have their own.
	Shared int
	// Failover gives every VirtualQP a control channel.
	Failover bool
	// KeepAtomics lets an atomic in doubt fail by itself.
	KeepAtomics bool
	// Goodput is the least share, in hundredths of a percent, of what the rails can carry
	// that ends a must reach. 0 is not to measure it.
	Goodput int
	// Quantum is the least that time moves on at once.
	Quantum time.Duration
}

// RailPlan is one network.
type RailPlan struct {
	MTU           verbs.MTU
	Window, Queue int
	Impairment    softnic.Impairment
	// PortRate and PortQueue are of the switch port in front of every NIC; a rate of 0 is
	// no switch.
	PortRate  float64
	PortQueue int
	// Paths is how many equal ways lead from one host to another, each with a rate and a
	// queue of its own and up to Skew more delay; a rate of 0 is without limit. A flow is
	// pinned to one of them.
	Paths     int
	PathRate  float64
	PathQueue int
	Skew      time.Duration
}

// ConnectPlan is a connection of two VirtualQPs.
type ConnectPlan struct {
	From, To        int // hosts
	Lanes           int
	TrackSingleLane bool
	Scheme          ibverbx.Scheme
	Policy          ibverbx.Policy
	Fragment        uint32
	Ends            [2]EndPlan
}

// EndPlan is what may differ between the two ends of a connection.
type EndPlan struct {
	SendDepth, RecvDepth   int
	LaneDepth, NotifyDepth int
	SignalInterval         int
	Receives               int // that the application keeps posted, of each kind
	Messages               int // that it sends
}

// WorkPlan is what the applications do.
type WorkPlan struct {
	Sizes   [2]int // least and most bytes of a request
	Ops     OpSet
	Burst   int           // requests of one post at the most
	Gap     time.Duration // between two posts at the most
	Batch   int           // completions of one poll at the most
	Polls   time.Duration // time between two polls of a host at the most
	Inline  int           // of 100 small requests so many are inline
	Fence   int           // of 100 requests so many are fenced
	Silent  int           // of 100 requests so many are not signaled
	Scatter int           // of 100 requests so many have several pieces
	Room    int           // of the largest requests so many fit an end's memory
}

// OpSet is a set of kinds of requests.
type OpSet uint8

// Kinds of requests.
const (
	OpWrite OpSet = 1 << iota
	OpImm
	OpRead
	OpSend
	OpAtomic

	allOps = OpWrite | OpImm | OpRead | OpSend | OpAtomic
)

var opNames = [...]string{"write", "imm", "read", "send", "atomic"}

// Expectation is what a scenario wants of its VirtualQPs.
type Expectation uint8

// Expectations.
const (
	// ExpectContract holds the contract: a VirtualQP may fail only if a fault gave it
	// reason to.
	ExpectContract Expectation = iota
	// ExpectSuccess says that no VirtualQP fails, whatever the faults.
	ExpectSuccess
	// ExpectFailure says that at least one VirtualQP fails.
	ExpectFailure
)

var expectNames = [...]string{"contract", "success", "failure"}

// direct reports whether a connection passes everything straight through.
func (c *ConnectPlan) direct() bool { return c.Lanes == 1 && !c.TrackSingleLane }

// completions bounds what a CQ must hold for one end of the connection.
func (c *ConnectPlan) completions(e *EndPlan) int {
	return (c.Lanes + 2) * (e.LaneDepth + max(e.NotifyDepth, e.RecvDepth))
}
