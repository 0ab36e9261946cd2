package sim

import (
	"fmt"
	"time"
)

// FaultKind is the kind of a Fault.
type FaultKind uint8

// Fault kinds.
const (
	FaultCut       FaultKind = iota // A rail between two hosts loses everything in both directions.
	FaultBlackHole                  // A rail between two hosts loses everything in one direction.
	FaultPort                       // A host's port goes down, with its event.
	FaultFlap                       // A port goes down and up several times.
	FaultHold                       // Packets of one direction are held and released late.
	FaultSlow                       // A rail between two hosts becomes slow.
	// FaultQP moves a lane's QP to the error state: immediately if After is 0, otherwise once After
	// WRITE packets have been placed, on the lane of the last one.
	FaultQP
	FaultReset   // A NIC is reset.
	FaultDead    // A NIC fails until it recovers.
	FaultCQ      // A CQ fails as after an overrun.
	FaultRefuse  // A lane rejects a post because its queue is full.
	FaultBroken  // A lane rejects a post with a permanent error.
	FaultStarve  // An application stops posting receives.
	FaultPause   // A host stops polling.
	FaultBadKey  // An application uses an invalid remote key.
	FaultCrash   // A process exits silently. Later another one replaces it, with a new connection.
	FaultRestart // As FaultCrash, but the new process also answers on the old control channel.
	// The next five affect the control channel of a connection in one direction.
	FaultControlCut     // All datagrams are lost.
	FaultControlDelay   // Datagrams are delayed.
	FaultControlRepeat  // Datagrams are duplicated.
	FaultControlReorder // Datagrams are reordered.
	FaultControlLoss    // Some datagrams are lost.
	FaultPathCut        // One path of a rail between two hosts loses everything in both directions.
	FaultPathSlow       // One path of a rail between two hosts becomes slow.

	numFaults
)

// targets are the fields of a Fault that a kind uses, and its severity.
type targets uint16

const (
	atRail   targets = 1 << iota // Rail
	atPath                       // From and To
	atHost                       // From
	atEnd                        // Connect and End
	atLane                       // Lane
	atRoute                      // Path
	hasAfter                     // After
	hasFor                       // For
	hasTimes                     // Times
	ends                         // Without failover it can fail a VirtualQP, however short it is.
	silences                     // NICs wait for responses while it lasts.
)

var faultTable = [numFaults]struct {
	name string
	uses targets
}{
	FaultCut:            {"cut", atRail | atPath | hasFor | silences},
	FaultBlackHole:      {"black-hole", atRail | atPath | hasFor | silences},
	FaultPort:           {"port-down", atRail | atHost | hasFor | silences},
	FaultFlap:           {"flap", atRail | atHost | hasFor | hasTimes | silences},
	FaultHold:           {"hold", atRail | atPath | hasFor | silences},
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
	FaultRestart:        {"restart", atEnd | hasFor | ends},
	FaultControlCut:     {"control-cut", atEnd | hasFor},
	FaultControlDelay:   {"control-delay", atEnd | hasFor},
	FaultControlRepeat:  {"control-repeat", atEnd | hasFor},
	FaultControlReorder: {"control-reorder", atEnd | hasFor},
	FaultControlLoss:    {"control-loss", atEnd | hasFor},
	FaultPathCut:        {"path-cut", atRail | atPath | atRoute | hasFor | silences},
	FaultPathSlow:       {"path-slow", atRail | atPath | atRoute | hasFor},
}

// String returns the kind's name as used in scenarios.
func (k FaultKind) String() string {
	if k < numFaults {
		return faultTable[k].name
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// uses reports whether a kind has at least one of the targets.
func (k FaultKind) uses(t targets) bool { return faultTable[k].uses&t != 0 }

// faultNamed returns the kind with a name.
func faultNamed(name string) (FaultKind, bool) {
	for k := range numFaults {
		if faultTable[k].name == name {
			return k, true
		}
	}
	return 0, false
}

// Fault is one fault. Its kind determines which fields are used. Out-of-range rail, host, path,
// connection and lane numbers wrap.
type Fault struct {
	// Kind selects the fault.
	Kind    FaultKind
	At      time.Duration // virtual time of the fault
	For     time.Duration // duration; for a flap, the downtime of each cycle
	Rail    int           // number of the rail
	From    int           // number of the only or the first host
	To      int           // number of the second host
	Path    int           // number of a path between the two hosts
	Connect int           // number of the connection
	End     int           // end of the connection, 0 for a and 1 for b
	Lane    int           // number of the lane
	After   int           // accepted posts before a rejection, or placed packets before a lane fails
	Times   int           // number of flaps
}

// survivable is the length of an outage that RC survives for certain. Connect sets a timer of 67 ms and eight attempts, which is 536 ms.
const survivable = 400 * time.Millisecond

// fatal reports whether VirtualQPs may fail because of a fault, without failover.
func (f *Fault) fatal() bool {
	return f.Kind.uses(ends) || (f.Kind.uses(silences) && f.For*time.Duration(max(f.Times, 1)) > survivable)
}

// length is the total duration of a fault.
func (f *Fault) length() time.Duration {
	if f.Kind == FaultFlap {
		return 2 * f.For * time.Duration(f.Times)
	}
	return f.For
}
