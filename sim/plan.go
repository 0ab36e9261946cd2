package sim

import (
	"slices"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Plan describes a world completely: hosts, networks, traffic and faults. Only contents and small
// choices still depend on the seed.
type Plan struct {
	Name     string        // name of the scenario
	Seed     uint64        // seed of contents and small choices
	Hosts    int           // number of hosts
	Rails    []RailPlan    // networks; each host has a NIC on every one
	Connects []ConnectPlan // connections
	Work     WorkPlan      // what applications do
	Faults   []Fault       // what goes wrong
	Expect   Expectation   // what must come of it
	// Shared is the number of receives in the SRQs of a host. 0 means that each lane has its own.
	Shared int
	// Failover gives every VirtualQP a control channel.
	Failover bool
	// KeepAtomics is Config.KeepAtomics: an atomic in doubt fails alone.
	KeepAtomics bool
	// Goodput is the lowest allowed ratio of the goodput of ends a to the capacity of the rails, in
	// hundredths of a percent. 0 means that it is not measured.
	Goodput int
	// Quantum is the smallest step of time.
	Quantum time.Duration
}

// RailPlan describes one network.
type RailPlan struct {
	MTU        verbs.MTU          // MTU of the ports
	Window     int                // most packets of a QP in flight
	Queue      int                // most packets of a NIC in flight
	Impairment softnic.Impairment // loss, delay and rate of the wire
	PortRate   float64            // bytes per second of the switch port at every NIC, 0 for no switch
	PortQueue  int                // bytes that may wait at the switch port
	Paths      int                // equal paths between two hosts; a flow is pinned to one
	PathRate   float64            // bytes per second of a path, 0 for no limit
	PathQueue  int                // bytes that may wait for a path
	Skew       time.Duration      // largest delay that a path adds
	TransportPlan
}

// TransportPlan says how packets wait on a rail, and how its QPs are made.
type TransportPlan struct {
	InTurn  bool // packets enter the queues of the fabric in turn with those of other senders
	Wrapped bool // package reliable makes the RC QPs; the fields below count only then
	UCPaths int  // reliable.Config.Paths
	Flows   int  // reliable.Config.Flows
	Credits bool // not reliable.Config.NoCredits
	Chunk   int  // reliable.Config.ChunkBytes
}

// ConnectPlan describes a connection of two VirtualQPs.
type ConnectPlan struct {
	From     int            // host of end a
	To       int            // host of end b
	Lanes    int            // data lanes
	Scheme   ibverbx.Scheme // Config.Scheme
	Policy   ibverbx.Policy // Config.Policy
	Fragment uint32         // Config.FragmentSize in bytes
	Ends     [2]EndPlan     // ends a and b
}

// EndPlan describes one end of a connection.
type EndPlan struct {
	SendDepth      int // requests outstanding
	RecvDepth      int // receives outstanding
	LaneDepth      int // physical requests of a lane
	NotifyDepth    int // receives that the engine keeps on a lane
	SignalInterval int // physical requests that share a completion; 0 means as ibverbx.Config says
	Receives       int // receives of each kind that the application keeps posted
	Messages       int // requests that the application makes
}

// WorkPlan describes what the applications do. Shares are in hundredths of a percent.
type WorkPlan struct {
	Sizes   [2]int        // smallest and largest request in bytes
	Ops     OpSet         // kinds of requests
	Burst   int           // most requests in one post
	Gap     time.Duration // longest time between two posts
	Batch   int           // most completions in one poll
	Polls   time.Duration // longest time between two polls of a host
	Inline  int           // share of small requests that are inline
	Fence   int           // share of requests that are fenced
	Silent  int           // share of requests that are unsignaled
	Scatter int           // share of requests that have several pieces
	Room    int           // how many of the largest requests fit the memory of an end
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

// Expectation is what a scenario expects of its VirtualQPs.
type Expectation uint8

// Expectations.
const (
	ExpectContract Expectation = iota // A VirtualQP fails only if a fault gives it a reason.
	ExpectSuccess                     // No VirtualQP fails.
	ExpectFailure                     // At least one VirtualQP fails.
)

var expectNames = [...]string{"contract", "success", "failure"}

// railKinds names the kinds of rails of a world: bare, wrapped, or mixed if it has both; in-turn if packets
// wait in turn on one of them; credits and flows if a wrapped one uses these options of package reliable;
// shared if the lanes of a wrapped one take their receives from an SRQ.
func (p *Plan) railKinds() []string {
	some := func(is func(r RailPlan) bool) bool { return slices.ContainsFunc(p.Rails, is) }
	bare, wrapped := some(func(r RailPlan) bool { return !r.Wrapped }), some(func(r RailPlan) bool { return r.Wrapped })
	kinds := []string{"bare"}
	switch {
	case bare && wrapped:
		kinds[0] = "mixed"
	case wrapped:
		kinds[0] = "wrapped"
	}
	if some(func(r RailPlan) bool { return r.InTurn }) {
		kinds = append(kinds, "in-turn")
	}
	if some(func(r RailPlan) bool { return r.Wrapped && r.Credits }) {
		kinds = append(kinds, "credits")
	}
	if some(func(r RailPlan) bool { return r.Wrapped && r.Flows > 1 }) {
		kinds = append(kinds, "flows")
	}
	if wrapped && p.Shared > 0 {
		kinds = append(kinds, "shared")
	}
	return kinds
}

// completions is how many completions a CQ must hold for one end of the connection.
func (c *ConnectPlan) completions(e *EndPlan) int {
	return (c.Lanes + 2) * (e.LaneDepth + max(e.NotifyDepth, e.RecvDepth))
}
