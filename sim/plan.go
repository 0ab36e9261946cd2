package sim

import (
	"slices"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Plan describes a world completely: hosts, networks, traffic and faults. Only payloads and minor
// choices still depend on the seed.
type Plan struct {
	Name     string        // name of the scenario
	Seed     uint64        // seed for payloads and minor choices
	Hosts    int           // number of hosts
	Rails    []RailPlan    // networks; each host has a NIC on every one
	Connects []ConnectPlan // connections
	Work     WorkPlan      // application traffic
	Faults   []Fault       // faults to inject
	Expect   Expectation   // expected outcome
	// Shared is the number of receives in a host's SRQs. 0 means separate receives per lane.
	Shared int
	// Pool is the number of data receives that the VirtualQPs of a host share. 0 means separate ones.
	Pool int
	// Failover gives every VirtualQP a control channel.
	Failover bool
	// KeepAtomics is Config.KeepAtomics: an atomic in doubt fails alone.
	KeepAtomics bool
	// Goodput is the minimum ratio of the goodput of ends a to the capacity of the rails, in hundredths
	// of a percent. 0 disables the measurement.
	Goodput int
	// Quantum is the smallest time step.
	Quantum time.Duration
}

// RailPlan describes one network.
type RailPlan struct {
	MTU        verbs.MTU          // MTU of the ports
	Window     int                // maximum number of a QP's packets in flight
	Queue      int                // maximum number of a NIC's packets in flight
	Impairment softnic.Impairment // loss, delay and rate of the wire
	PortRate   float64            // bytes per second of the switch port at every NIC, 0 for no switch
	PortQueue  int                // queue of the switch port in bytes
	Paths      int                // equal paths between two hosts; a flow is pinned to one
	PathRate   float64            // bytes per second of a path, 0 for no limit
	PathQueue  int                // queue of a path in bytes
	Skew       time.Duration      // maximum extra delay of a path
	TransportPlan
}

// TransportPlan describes a rail's queueing and its QPs' transport.
type TransportPlan struct {
	InTurn  bool // packets enter fabric queues interleaved with other senders' packets
	Wrapped bool // RC QPs are provided by package reliable; the fields below apply only then
	UCPaths int  // reliable.Config.Paths
	Flows   int  // reliable.Config.Flows
	Credits bool // not reliable.Config.NoCredits
	Chunk   int  // reliable.Config.ChunkBytes
	// Datagrams means that the NICs have UD alone, which carries the paths, and that packets may be reordered and repeated.
	Datagrams bool
}

// ConnectPlan describes a connection between two VirtualQPs.
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
	SendDepth      int // maximum number of outstanding requests
	RecvDepth      int // maximum number of posted receives
	LaneDepth      int // maximum number of physical requests per lane
	NotifyDepth    int // engine receives per lane
	SignalInterval int // physical requests per completion; 0 means the default of ibverbx.Config
	Receives       int // receives of each kind that the application keeps posted
	Messages       int // number of requests posted by the application
}

// WorkPlan describes the application traffic. Shares are in hundredths of a percent.
type WorkPlan struct {
	Sizes   [2]int        // smallest and largest request in bytes
	Ops     OpSet         // request kinds
	Burst   int           // maximum number of requests per post
	Gap     time.Duration // maximum time between two posts
	Batch   int           // maximum number of completions per poll
	Polls   time.Duration // maximum time between two polls of a host
	Inline  int           // share of inline requests among small ones
	Fence   int           // share of fenced requests
	Silent  int           // share of unsignaled requests
	Scatter int           // share of requests with several elements
	Room    int           // number of largest requests that fit into an end's memory
}

// OpSet is a set of request kinds.
type OpSet uint8

// Request kinds.
const (
	OpWrite  OpSet = 1 << iota // RDMA WRITE
	OpImm                      // RDMA WRITE_WITH_IMM
	OpRead                     // RDMA READ
	OpSend                     // SEND
	OpAtomic                   // atomics

	allOps = OpWrite | OpImm | OpRead | OpSend | OpAtomic
)

var opNames = [...]string{"write", "imm", "read", "send", "atomic"}

// Expectation is the expected outcome of a scenario.
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
// shared if the lanes of a wrapped one take their receives from an SRQ; pool if VirtualQPs share data receives.
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
	if some(func(r RailPlan) bool { return r.Wrapped && r.Datagrams }) {
		kinds = append(kinds, "datagrams")
	}
	if some(func(r RailPlan) bool { return r.Wrapped && r.Flows > 1 }) {
		kinds = append(kinds, "flows")
	}
	if wrapped && p.Shared > 0 {
		kinds = append(kinds, "shared")
	}
	if p.Pool > 0 {
		kinds = append(kinds, "pool")
	}
	return kinds
}

// completions is the CQ depth that one end of the connection needs.
func (c *ConnectPlan) completions(e *EndPlan) int {
	return (c.Lanes + 2) * (e.LaneDepth + max(e.NotifyDepth, e.RecvDepth))
}
