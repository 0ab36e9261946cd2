package sim

import (
	"fmt"
	"time"
)

// FaultKind is what goes wrong.
type FaultKind uint8

// Kinds of faults.
const (
	// FaultCut makes a rail between two hosts lose everything, in both directions.
	FaultCut FaultKind = iota
	// FaultBlackHole is a cut in one direction.
	FaultBlackHole
	// FaultPort takes the port of a host down, with its event.
	FaultPort
	// FaultFlap takes a port down and up several times.
	FaultFlap
	// FaultHold keeps the packets of one direction back and releases them late.
	FaultHold
	// FaultSlow makes a rail between two hosts slow.
	FaultSlow
	// FaultQP takes the QP of a lane to the error state: at a time or, if After is not 0,
	// when so many packets of WRITEs of the connection have been placed since; then the
	// lane is the one that brought the last of them.
	FaultQP
	// FaultReset resets a NIC.
	FaultReset
	// FaultDead makes a NIC fail, until it recovers.
	FaultDead
	// FaultCQ ends a CQ as an overrun does.
	FaultCQ
	// FaultRefuse makes a lane refuse a post for want of room.
	FaultRefuse
	// FaultBroken makes a lane refuse a post for good.
	FaultBroken
	// FaultStarve keeps an application from posting receives.
	FaultStarve
	// FaultPause keeps a host from polling.
	FaultPause
	// FaultBadKey makes an application name a key that is not valid.
	FaultBadKey
	// FaultCrash ends the process of an end without a word; after a while another one comes
	// in its place, with a connection of its own to the same host.
	FaultCrash
	// FaultRestart is a crash after which the new process, of another incarnation, answers
	// on the control channel of the old one, whose peer still uses it.
	FaultRestart
	// FaultControlCut makes the control channel of a connection lose everything.
	FaultControlCut
	// FaultControlDelay makes it slow.
	FaultControlDelay
	// FaultControlRepeat makes it repeat datagrams.
	FaultControlRepeat
	// FaultControlReorder makes it change their order.
	FaultControlReorder
	// FaultControlLoss makes it lose some.
	FaultControlLoss
	// FaultPathCut makes one of the paths of a rail between two hosts lose everything, in
	// both directions: the flows that are pinned to it, and no other.
	FaultPathCut
	// FaultPathSlow makes one of the paths slow.
	FaultPathSlow

	numFaults
)

// targets says what a kind of fault names.
type targets uint16

const (
	atRail  targets = 1 << iota // a rail
	atPath                      // two hosts, from and to
	atHost                      // one host
	atEnd                       // a connection and one of its ends
	atLane                      // a lane of it
	atRoute                     // one of the paths between the two hosts
	hasAfter
	hasFor
	hasTimes
	needsFailover
	// ends says that without failover the fault can end a VirtualQP however short it is.
	ends
)

var faultTable = [numFaults]struct {
	name string
	uses targets
}{
	FaultCut:            {"cut", atRail | atPath | hasFor},
	FaultBlackHole:      {"black-hole", atRail | atPath | hasFor},
	FaultPort:           {"port-down", atRail | atHost | hasFor},
	FaultFlap:           {"flap", atRail | atHost | hasFor | hasTimes},
	FaultHold:           {"hold", atRail | atPath | hasFor},
	FaultSlow:           {"slow", atRail | atPath | hasFor},
	FaultQP:             {"lane-error", atEnd | atLane | hasAfter | ends},
	FaultReset:          {"nic-reset", atRail | atHost | ends},
	FaultDead:           {"nic-dead", atRail | atHost | hasFor | ends},
	FaultCQ:             {"cq-error", atRail | atHost | ends},
	FaultRefuse:         {"refuse", atEnd | atLane | hasAfter},
	FaultBroken:         {"broken", atEnd | atLane | hasAfter | ends},
	FaultStarve:         {"starve", atEnd | hasFor},
	FaultPause:          {"pause", atHost | hasFor},
	FaultBadKey:         {"bad-key", atEnd | ends},
	FaultCrash:          {"crash", atEnd | hasFor | ends},
	FaultRestart:        {"restart", atEnd | hasFor | ends | needsFailover},
	FaultControlCut:     {"control-cut", atEnd | hasFor | needsFailover},
	FaultControlDelay:   {"control-delay", atEnd | hasFor | needsFailover},
	FaultControlRepeat:  {"control-repeat", atEnd | hasFor | needsFailover},
	FaultControlReorder: {"control-reorder", atEnd | hasFor | needsFailover},
	FaultControlLoss:    {"control-loss", atEnd | hasFor | needsFailover},
	FaultPathCut:        {"path-cut", atRail | atPath | atRoute | hasFor},
	FaultPathSlow:       {"path-slow", atRail | atPath | atRoute | hasFor},
}

// String returns the name that scenarios use.
func (k FaultKind) String() string {
	if k < numFaults {
		return faultTable[k].name
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// uses says which fields of a Fault count.
func (k FaultKind) uses(t targets) bool { return faultTable[k].uses&t != 0 }

// faultNamed returns the kind of a name.
func faultNamed(name string) (FaultKind, bool) {
	for k := range numFaults {
		if faultTable[k].name == name {
			return k, true
		}
	}
	return 0, false
}

// Fault is one thing that goes wrong. Which fields count depends on its kind.
type Fault struct {
	Kind FaultKind
	At   time.Duration
	For  time.Duration
	Rail int
	// From and To are hosts; a fault of one host has From.
	From, To int
	// Path is one of the paths between them.
	Path int
	// Connect and End name a VirtualQP, Lane one of its lanes.
	Connect, End, Lane int
	// After is how many posts are taken before one is refused, or packets placed before a
	// lane dies.
	After int
	Times int // that a port flaps
}

// survivable is how long RC lives without an answer: the timer of a QP that Connect has
// taken to RTS is 67 ms, and it tries eight times. A fault that is shorter than this, with
// some way to spare, ends nothing.
const survivable = 400 * time.Millisecond

// fatal reports whether without failover a fault gives the VirtualQPs that it meets reason
// to fail.
func (f *Fault) fatal() bool {
	if f.Kind.uses(ends) {
		return true
	}
	switch f.Kind {
	case FaultCut, FaultBlackHole, FaultPort, FaultFlap, FaultHold, FaultPathCut:
		return f.For*time.Duration(max(f.Times, 1)) > survivable
	default:
		return false
	}
}
