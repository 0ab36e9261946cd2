package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// setup holds the parameters shared by the components of a VirtualQP. It is read-only after Connect, except
// remoteGIDs.
type setup struct {
	// owner identifies the VirtualQP in completions and events. Components do not call its methods.
	owner *VirtualQP
	num   uint32 // unique within the VirtualCQ
	// incarnation identifies this VirtualQP in its card and in control messages. It is never 0.
	incarnation uint64
	peer        uint64 // incarnation of the peer; 0 before Connect
	// cfg includes the defaults.
	cfg    Config
	rails  *Rails          // cq's rails
	cq     *VirtualCQ      // receives the completions of all lanes
	shared *sharedReceives // shared engine receives; nil if every lane has its own
	pool   *dataPool       // shared data receives; nil if the VirtualQP has its own
	scheme notifier        // nil if direct
	direct bool            // one lane without failover: a passthrough

	// all holds the lanes by index: data lanes first, then the message lane and the notify lane.
	all   []*lane
	lanes []*lane // data lanes, the first ones of all
	// messageLane carries SENDs and atomics; nil if direct.
	messageLane *lane
	// notifyLane carries the notifications of Spray; nil with other schemes.
	notifyLane *lane

	// remoteRails is the number of the peer's rails, and of keys per remote region; 0 before Connect.
	remoteRails int
	// remoteRecvs is the number of messages that the peer accepts without a user receive.
	remoteRecvs int
	// remoteGIDs holds the addresses in the peer's card, and later those of rails missing there (failover.allowsGID).
	// Rebuilt lanes must use one of them.
	remoteGIDs []verbs.GID
	// addresses and remoteAddresses are Card.Addresses of the two sides; empty if a card omits them.
	addresses, remoteAddresses []verbs.GID
	// maxMsg is the largest fragment that every lane and the peer accept, in bytes.
	maxMsg uint32
	mtu    uint32 // minimum over the rails, in bytes
	// minCut is the smallest fragment worth its doorbell, in bytes.
	minCut   uint32
	maxWhole uint32 // maximum length of an unfragmented request in bytes; 0 before Connect
	maxSGE   uint8  // maximum number of SGEs on every device
	// keepsWhole is set if requests on device memory are not fragmented: on every rail the device copies them, and
	// each fragment would wait for it (verbs.PortAttr.DeviceCopies). Config.FragmentSize is 0.
	keepsWhole bool
}

// cachedClock holds the time until the next tick, so that a call reads the clock only a few times.
type cachedClock struct {
	now  int64        // in nanoseconds; valid while runs is set
	read func() int64 // Config.Now
	runs bool         // a policy or failover needs the time
	// failover is set if failover needs the time.
	failover bool
}

// run sets whether the policy needs the time.
func (c *cachedClock) run(on bool) { c.runs = on || c.failover }

// tick reads the clock if it runs.
func (c *cachedClock) tick() {
	if c.runs {
		c.now = c.read()
	}
}

// queueReport includes the VirtualQP in the next report.
func (u *setup) queueReport() { u.cq.queueReport(u.owner) }

func (u *setup) opError(op string, err error) error {
	return verbs.NewOpError(op, fmt.Sprintf("virtual QP %d", u.num), 0, err)
}

// recvSource is the origin of a lane's receives.
type recvSource uint8

const (
	ownReceives    recvSource = iota // the lane's own queue
	engineReceives                   // setup.shared
	dataReceives                     // setup.pool
)

// srqOf returns the origin of the receives of lanes with a role.
func (u *setup) srqOf(r role) recvSource {
	switch {
	case u.pool != nil && (u.direct || r == roleMessage):
		return dataReceives
	case u.shared != nil && r != roleMessage:
		return engineReceives
	}
	return ownReceives
}

// receives returns the number of engine receives that can be filled between two polls.
func (u *setup) receives() int {
	if u.shared != nil {
		return u.shared.depth * u.rails.Len()
	}
	return (u.cfg.Lanes + 1) * u.cfg.NotifyDepth
}

// fragmentSize returns the fragment size of a request in bytes: Config.FragmentSize or, if that is 0, an equal share
// per lane in whole MTUs. The bounds are the smallest fragment worth its doorbell and the largest accepted by every
// NIC. NICs that work on the caller's core carry fragments sequentially, so they gain little from many.
func (u *setup) fragmentSize(wr *SendWR, length uint32) uint32 {
	switch {
	case u.cfg.FragmentSize != 0:
		return min(u.cfg.FragmentSize, u.maxMsg)
	case length <= u.minCut:
		return min(max(length, 1), u.maxMsg)
	case u.keepsWhole && wr.usesDevice():
		return min(length, u.maxMsg)
	}
	part := (uint64(length)-1)/uint64(len(u.lanes)) + 1
	part = (part + uint64(u.mtu) - 1) / uint64(u.mtu) * uint64(u.mtu)
	return uint32(min(max(part, uint64(u.minCut)), wantFragment, uint64(u.maxMsg)))
}

// plan returns the lanes of a VirtualQP: data lanes spread over the rails, then the message lane and, with Spray, the
// notify lane. torchcomms assigns QPs to rails in blocks, and has one more QP for notifications and atomics.
func (u *setup) plan() (lanes []laneConfig) {
	n, rails := u.cfg.Lanes, u.rails.Len()
	for i := range n {
		lc := laneConfig{index: i, rail: i % rails, recvs: u.cfg.NotifyDepth}
		if u.cfg.CxxPeer {
			lc.rail = i * rails / n
		}
		if u.direct {
			lc.recvs = u.cfg.RecvDepth
		}
		lanes = append(lanes, lc)
	}
	if u.direct {
		return lanes
	}
	// The message lane holds the user's receives. All VirtualQPs have it on the same rail, because atomics of two
	// NICs are not atomic with each other.
	message := laneConfig{index: n, role: roleMessage, recvs: u.cfg.RecvDepth}
	notify := laneConfig{index: n + 1, role: roleNotify, rail: (n + 1) % rails, recvs: u.cfg.NotifyDepth}
	switch {
	case u.cfg.Scheme != Spray:
		return append(lanes, message)
	case u.cfg.CxxPeer:
		notify.index, notify.rail = n, 0
		return append(lanes, notify)
	}
	return append(lanes, message, notify)
}

// setKeys stores a request's keys for every rail in use.
func (u *setup) setKeys(keys *[MaxRails]keyPair, r *Region, m *RemoteRegion) {
	if r != nil {
		for i := range u.rails.rails {
			keys[i&(MaxRails-1)].local = r.lkeys[i&(MaxRails-1)]
		}
	}
	if m != nil {
		for i, key := range m.RKeys[:u.remoteRails] {
			keys[i&(MaxRails-1)].remote = key
		}
	}
}
