package transfers

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx/softnic"
)

// Plan is a world as a seed decides it.
type Plan struct {
	Seed  uint64
	Hosts int
	Rails int
	// Wrapped says that rails are UC paths that package reliable makes RC of.
	Wrapped bool
	// Impairment is what all rails do to packets.
	Impairment softnic.Impairment
	// Batches is how many batches each process sends to each other host.
	Batches int
	Faults  []Fault
}

// Fault is something that happens to a host at a time, and ends by itself.
type Fault struct {
	Kind FaultKind
	// At is when it happens, from the beginning of the world on, and For how long it lasts.
	At, For time.Duration
	Host    int
	// Rail is the rail, if the fault is about one.
	Rail int
}

// FaultKind is a kind of fault.
type FaultKind uint8

// Kinds of faults.
const (
	// PortDown pulls the cable of a NIC.
	PortDown FaultKind = iota
	// BlackHole makes a rail lose all packets that a host sends.
	BlackHole
	// NICFailure makes a NIC fail as a whole.
	NICFailure
	// LaneFailure makes a queue pair fail.
	LaneFailure
	// Disconnect ends the connections that the others have dialed.
	Disconnect
	// Restart kills the process of a host and starts another one.
	Restart
	faultKinds
)

var faultNames = [faultKinds]string{"port down", "black hole", "NIC failure", "lane failure", "disconnect", "restart"}

// String names the kind.
func (k FaultKind) String() string { return faultNames[k] }

// String describes the fault in a line.
func (f Fault) String() string {
	return fmt.Sprintf("%v after %v for %v: host %d, rail %d", f.Kind, f.At, f.For, f.Host, f.Rail)
}

// Bounds of a world.
const (
	// faultTime is when the last fault begins at the latest.
	faultTime = 300 * time.Millisecond
	// maxRestarts is how often a host is started again at most.
	maxRestarts = 2
)

// NewPlan draws a world.
func NewPlan(seed uint64) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x7472616e73666572))
	p := &Plan{
		Seed: seed, Hosts: 2 + r.IntN(2), Rails: 1 + r.IntN(3), Wrapped: r.IntN(3) == 0, Batches: 40 + r.IntN(80),
	}
	if r.IntN(2) == 0 {
		p.Impairment = softnic.Impairment{Loss: 0.01 * r.Float64(), Reorder: 0.01 * r.Float64(), Corrupt: 0.002 * r.Float64()}
	}
	if r.IntN(2) == 0 {
		p.Impairment.Delay = time.Duration(r.IntN(200)) * time.Microsecond
	}
	restarts := make([]int, p.Hosts)
	for range r.IntN(7) {
		f := Fault{
			Kind: FaultKind(r.IntN(int(faultKinds))), At: time.Duration(r.Int64N(int64(faultTime))),
			For: time.Duration(r.Int64N(int64(100 * time.Millisecond))), Host: r.IntN(p.Hosts), Rail: r.IntN(p.Rails),
		}
		if f.Kind == Restart {
			if restarts[f.Host]++; restarts[f.Host] > maxRestarts {
				continue
			}
		}
		p.Faults = append(p.Faults, f)
	}
	return p
}
