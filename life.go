package ibverbx

import (
	"fmt"

	"ibverbx/internal/counter"
	"ibverbx/internal/guard"
)

// laneState is where a lane is in its life.
//
//	         error, event, peer's Down             drained             peer's Down
//	up  ------------------------------->  dying ----------->  gone  --------------> idle
//	 ^                                      ^                                         |
//	 |  probe came back                     | any error                              | back-off,
//	 +------------------  probing  <--------+--- offered <---------------------------+ peer's offer
//	                        both have the other's address       new QP, next generation
//
// An offer that the peer does not accept is withdrawn: offered goes back to idle. When the
// VirtualQP fails, lanes that are not up go to gone at once.
type laneState uint8

const (
	laneUp      laneState = iota // The lane is in service.
	laneDying                    // The QP is in ERR, and its completions are being drained.
	laneGone                     // The QP is in RESET. The peer's QP may still be in service.
	laneIdle                     // Both QPs are out of service, so nothing late can arrive.
	laneOffered                  // A new QP waits for the peer's.
	laneProbing                  // The new QPs are connected, and a probe is in flight.
)

var laneStateNames = [...]string{"up", "dying", "gone", "idle", "offered", "probing"}

// String names the state.
func (s laneState) String() string { return laneStateNames[s] }

// transitions has, for each state, the set of states that may follow, with bit n for state n.
var transitions = [...]uint8{
	laneUp:      1<<laneDying | 1<<laneGone,
	laneDying:   1 << laneGone,
	laneGone:    1 << laneIdle,
	laneIdle:    1 << laneOffered,
	laneOffered: 1<<laneProbing | 1<<laneDying | 1<<laneGone | 1<<laneIdle,
	laneProbing: 1<<laneUp | 1<<laneDying | 1<<laneGone,
}

// life is what a lane keeps for failover.
type life struct {
	state laneState // written by lane.become only, under VirtualQP.mu
	since int64     // when the lane came to this state
	cause error     // why the lane left service; nil while it is up; written under VirtualQP.mu
	// unsent is why a control message about the lane could not be sent; nil once its offer was sent. It is
	// written under VirtualQP.mu.
	unsent error
	due    int64 // when the next step is to be taken, or a message sent again
	// backoff is the pause before the next attempt to rebuild the lane; 0 after steadyTime in
	// service.
	backoff int64
	emptied barrier // the barrier of the rail from when the lane went out of service
	overdue barrier // the barrier of the rail from when the time to drain was over

	home       uint8 // the rail that the lane was made on, and returns to
	remoteHome uint8 // the rail of the peer's end when the two sides connected

	// sent counts the requests of this generation that the NIC took and that consume a receive
	// of the peer.
	sent     uint32
	received uint32 // counts the receives that this generation delivered
	// failing says that a request of this generation failed. Those from it on are in doubt.
	failing bool
	// drained is one more than the number of the last entry with a completion; valid while
	// failing.
	drained uint32

	downs   downs   // what the two ends said of generations out of service
	meeting meeting // how far the two ends are with the next QP
	// heir is the lane that takes over the rest of the ledger and that is reserved for it; nil
	// if there is none.
	heir *lane

	deaths uint64 // counts how often the lane went out of service; written under VirtualQP.mu
	// replayed counts the requests that other lanes took over or the next generation repeats.
	replayed counter.Counter
	attempts uint64 // counts how often a new QP was made
	before   Counts // what the lane had done when it came to its rail; written under VirtualQP.mu
}

// downs is what the two ends of a lane said of generations that are out of service.
type downs struct {
	peerDown       bool   // the peer took the current generation out of service
	peerReceived   uint32 // how many receives the peer's end delivered; valid with peerDown
	mute           bool   // this side has not announced the last generation's end yet
	said           bool   // lastGeneration and lastReceived are valid
	lastGeneration uint16 // the generation before the current one
	lastReceived   uint32 // how many receives lastGeneration delivered at this side
}

// meeting is how far the two ends of a lane are with the QPs of a generation.
type meeting struct {
	offer     *ctlMessage // the peer's address; nil if it is not known
	mine      uint32      // the qpName of the QP that this side offered last
	peerHas   bool        // the peer has this side's address
	connected bool        // the QP is connected to the one in offer
}

// become takes the lane to another state. It is the only writer of the state. A nil cause keeps
// the one that the lane has until it is up.
func (l *lane) become(state laneState, now int64, cause error) {
	v := &l.life
	if guard.On && transitions[v.state]&(1<<state) == 0 {
		panic(fmt.Sprintf("ibverbx: lane %d goes from %s to %s", l.index, v.state, state))
	}
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	v.state, v.since = state, now
	if state == laneDying {
		v.deaths++
	}
	if cause != nil || state == laneUp {
		v.cause = cause
	}
}

// why returns why the lane is out of service, and what keeps it there if that is known.
func (v *life) why() error {
	if v.unsent == nil || v.cause == nil {
		return v.cause
	}
	return fmt.Errorf("%w; a control message about it could not be sent: %w", v.cause, v.unsent)
}

// receives reports whether the lane's receives are with a NIC that may fill them.
func (v *life) receives() bool {
	return v.state == laneUp || v.state == laneOffered || v.state == laneProbing
}
