package transfers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"ibverbx/peer"
	"ibverbx/softnic"
)

// Plan is a world derived from a seed.
type Plan struct {
	Seed  uint64
	Hosts int // number of hosts
	Rails int // number of rails
	// Sockets is set when the NICs exchange UDP packets instead of using links in memory. A black hole then takes the port down.
	Sockets bool
	// Fabric has the transport, the link and whether packets are sealed, which Sockets need. Only the connections of Sealed worlds use TLS.
	Fabric peer.Fabric
	// Impairment is applied to the packets on all rails.
	Impairment softnic.Impairment
	// Batches is the number of batches that each process sends to each other host.
	Batches int
	Faults  []Fault // faults to inject
}

// spare reports whether a rail exists without NIC failures. Then no NIC failure may fail an operation.
func (p *Plan) spare() bool {
	var failing [8]bool
	for _, f := range p.Faults {
		failing[f.Rail] = failing[f.Rail] || f.Kind == NICFailure
	}
	return slices.Contains(failing[:p.Rails], false)
}

// losesSessions reports whether the faults may cost a session: they affect all rails, or more than rails.
func (p *Plan) losesSessions() bool {
	var hit [8]bool
	for _, f := range p.Faults {
		if f.Kind == Disconnect || f.Kind == Restart || f.Kind == NICFailure {
			return true
		}
		hit[f.Rail] = true
	}
	return !slices.Contains(hit[:p.Rails], false)
}

// restarted reports whether an error is one of these, with which an operation may fail because a process is killed.
func (p *Plan) restarted(err error, these ...error) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == Restart }) &&
		slices.ContainsFunc(these, func(e error) bool { return errors.Is(err, e) })
}

// Fault is a temporary fault of a host.
type Fault struct {
	Kind FaultKind
	// At is the time since the start of the world, and For the duration.
	At, For time.Duration
	Host    int // index of the host
	// Rail is the affected rail, if any.
	Rail int
}

// FaultKind is the kind of a Fault.
type FaultKind uint8

// Fault kinds.
const (
	// PortDown pulls a NIC's cable.
	PortDown FaultKind = iota
	// BlackHole drops all packets that a host sends on a rail.
	BlackHole
	// NICFailure fails a whole NIC.
	NICFailure
	// LaneFailure fails a queue pair.
	LaneFailure
	// Disconnect closes the connections dialed by other hosts.
	Disconnect
	// Restart kills a host's process and starts another.
	Restart
	faultKinds
)

var faultNames = [faultKinds]string{"port down", "black hole", "NIC failure", "lane failure", "disconnect", "restart"}

// String returns the kind's name.
func (k FaultKind) String() string { return faultNames[k] }

// String describes the fault in one line.
func (f Fault) String() string {
	return fmt.Sprintf("%v after %v for %v: host %d, rail %d", f.Kind, f.At, f.For, f.Host, f.Rail)
}

// Bounds of a world.
const (
	// faultTime is the latest start of a fault.
	faultTime = 300 * time.Millisecond
	// maxRestarts is the maximum number of restarts per host.
	maxRestarts = 2
)

// NewPlan derives a world from a seed. The same seed gives an equal plan.
func NewPlan(seed uint64) *Plan {
	r := rand.New(rand.NewPCG(seed, 0x7472616e73666572))
	p := &Plan{
		Seed: seed, Hosts: 2 + r.IntN(2), Rails: 1 + r.IntN(3), Batches: 40 + r.IntN(80),
		Sockets: r.IntN(3) == 0, Fabric: peer.Fabric{Unsealed: true, Transport: peer.TransportRC},
	}
	if r.IntN(3) == 0 {
		p.Fabric.Transport = []peer.Transport{peer.TransportUC, peer.TransportUD}[seed%2]
		p.Fabric.Reliable.Paths = 2
	}
	if p.Sockets {
		p.Fabric.Link = []peer.Link{peer.LinkAuto, peer.LinkUDP}[r.IntN(2)]
		p.Fabric.Unsealed = r.IntN(2) == 0
		p.Fabric.RequireSealed = !p.Fabric.Unsealed && r.IntN(2) == 0
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
