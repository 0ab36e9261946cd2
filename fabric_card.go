package ibverbx

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"ibverbx/internal/strictjson"
	"ibverbx/verbs"
)

// CardVersion is the card format version that this package writes and accepts.
const CardVersion = 2

// Card describes a VirtualQP to its peer: its lanes, their addresses and its limits. Exchange cards over
// any channel, then call Connect on both sides. DecodeCard and Connect validate every field. A Card is
// plain data: concurrent reads are safe.
type Card struct {
	// Version is the format version. It must be CardVersion.
	Version int `json:"version"`
	// Incarnation identifies this VirtualQP: a random number from 1 to 2^53-1. A different number behind
	// the same address means a different peer.
	Incarnation uint64 `json:"incarnation"`
	// Scheme is the notification scheme. It must be the same on both sides.
	Scheme Scheme `json:"scheme"`
	// Rails is the number of rails, 1 to MaxRails. Each region of this side has one key per rail.
	Rails int `json:"rails"`
	// AtomicRail is the index of the rail that executes all atomics on this side's memory.
	AtomicRail int `json:"atomic_rail"`
	// DataLanes is the number of data lanes. They precede the other lanes in Lanes.
	DataLanes int `json:"data_lanes"`
	// MessageLane is the index of the message lane, or -1 if the VirtualQP has a single lane without
	// failover.
	MessageLane int `json:"message_lane"`
	// NotifyLane is the index of the notify lane; -1 unless the scheme is Spray.
	NotifyLane int `json:"notify_lane"`
	// MaxMsgSize is the largest fragment, in bytes, that every lane of this side can carry.
	MaxMsgSize uint64 `json:"max_msg_sz"`
	// MaxRdAtomic is the maximum number of outstanding READs and atomics that each lane serves.
	MaxRdAtomic uint8 `json:"max_rd_atomic"`
	// Window is the size of this side's reorder window in DQPLB sequence numbers. It is 0 for other
	// schemes.
	Window uint32 `json:"window,omitempty"`
	// Limits are the queue depths of this side.
	Limits CardLimits `json:"limits"`
	// Lanes are all lanes: data lanes, then the message lane and the notify lane if they exist.
	Lanes []CardLane `json:"lanes"`
	// Addresses are the port addresses of all rails, zero if unknown: data lanes may move there. It is empty without failover.
	Addresses []verbs.GID `json:"addresses,omitempty"`
}

// CardLimits are the queue depths of the VirtualQP that wrote the card.
type CardLimits struct {
	// SendDepth is the maximum number of outstanding send requests (Config.SendDepth).
	SendDepth int `json:"send_depth"`
	// RecvDepth is the maximum number of posted receives of each kind (Config.RecvDepth).
	RecvDepth int `json:"recv_depth"`
}

// CardLane is one lane: its rail and its QP's address. Apart from Rail, the fields mirror
// verbs.Endpoint.
type CardLane struct {
	Rail            int       `json:"rail"`               // index of the rail
	QPN             uint32    `json:"qpn"`                // QP number
	PSN             uint32    `json:"psn"`                // first packet sequence number
	LID             uint16    `json:"lid,omitempty"`      // InfiniBand only
	GID             verbs.GID `json:"gid"`                // port address
	MTU             verbs.MTU `json:"mtu"`                // largest path MTU
	MaxRdAtomic     uint8     `json:"max_rd_atomic"`      // outstanding READs and atomics issued
	MaxDestRdAtomic uint8     `json:"max_dest_rd_atomic"` // outstanding READs and atomics served
	Extra           []byte    `json:"extra,omitempty"`    // opaque data of the provider
	// Absent is set if the lane's device has failed and it cannot use its QP. Only Rail is valid then. The lane
	// starts out of service, which needs Config.Control.
	Absent bool `json:"absent,omitempty"`
}

// endpoint returns the lane's address.
func (l *CardLane) endpoint() verbs.Endpoint {
	return verbs.Endpoint{
		QPN: l.QPN, PSN: l.PSN, LID: l.LID, GID: l.GID, MTU: l.MTU,
		MaxRdAtomic: l.MaxRdAtomic, MaxDestRdAtomic: l.MaxDestRdAtomic, Extra: l.Extra,
	}
}

// Card returns the card that the peer needs for Connect. The card stays valid until a failed Connect or
// Close. It returns verbs.ErrClosed after Close, and otherwise a NIC's error.
func (q *VirtualQP) Card() (*Card, error) {
	if q.failover.state == stateClosed || q.setup.rails == nil {
		return nil, q.setup.opError("make card", verbs.ErrClosed)
	}
	c := &Card{
		Version: CardVersion, Incarnation: q.setup.incarnation, Rails: q.setup.rails.Len(), Scheme: q.setup.cfg.Scheme,
		DataLanes: len(q.setup.lanes), MessageLane: -1, NotifyLane: -1,
		MaxMsgSize: uint64(q.setup.maxMsg), MaxRdAtomic: math.MaxUint8,
		Limits: CardLimits{SendDepth: q.setup.cfg.SendDepth, RecvDepth: q.setup.cfg.RecvDepth},
	}
	if q.setup.cfg.Scheme == DQPLB {
		c.Window = q.setup.dqplbWindow()
	}
	if q.setup.messageLane != nil {
		c.MessageLane, c.AtomicRail = int(q.setup.messageLane.index), int(q.setup.messageLane.rail)
	}
	if q.setup.notifyLane != nil {
		c.NotifyLane = int(q.setup.notifyLane.index)
	}
	for i, l := range q.setup.all {
		e, err := l.qp.Endpoint()
		if q.setup.cfg.Control != nil && (errors.Is(err, verbs.ErrDeviceFatal) || l.recovery.state != laneUp) {
			c.Lanes = append(c.Lanes, CardLane{Rail: int(l.rail), Absent: true})
			continue
		}
		if err != nil {
			return nil, q.setup.opError("make card", fmt.Errorf("lane %d: %w", i, err))
		}
		c.MaxRdAtomic = min(c.MaxRdAtomic, e.MaxDestRdAtomic)
		c.Lanes = append(c.Lanes, CardLane{
			Rail: int(l.rail), QPN: e.QPN, PSN: e.PSN, LID: e.LID, GID: e.GID, MTU: e.MTU,
			MaxRdAtomic: e.MaxRdAtomic, MaxDestRdAtomic: e.MaxDestRdAtomic, Extra: e.Extra,
		})
	}
	c.Addresses = q.setup.findAddresses(c.Lanes)
	return c, nil
}

// findAddresses returns and stores the addresses of all rails; the peer rejects any other address. For a rail without
// a lane it creates a QP and closes it. If that fails, no lane moves there.
func (u *setup) findAddresses(lanes []CardLane) []verbs.GID {
	if u.cfg.Control == nil || u.addresses != nil {
		return u.addresses
	}
	u.addresses = make([]verbs.GID, u.rails.Len())
	for i := range lanes {
		if !lanes[i].Absent {
			u.addresses[lanes[i].Rail] = lanes[i].GID
		}
	}
	for i := range u.addresses {
		if !u.addresses[i].IsZero() || u.cq.revive(i) != nil {
			continue
		}
		if qp, err := u.rails.createQP(i, u.qpConfig(laneConfig{rail: i, recvs: 1})); err == nil {
			e, _ := qp.Endpoint() // zero on error
			u.addresses[i] = e.GID
			_ = qp.Close()
		}
	}
	return u.addresses
}

// Encode returns the card as JSON.
func (c *Card) Encode() ([]byte, error) { return json.Marshal(c) }

// DecodeCard parses and validates a card of at most 1 MiB. Errors wrap verbs.ErrInvalid and name the
// invalid field. Unknown fields are ignored, so later versions may add optional ones.
func DecodeCard(b []byte) (*Card, error) {
	c := &Card{}
	if err := strictjson.DecodeKnown(b, maxCardBytes, c); err != nil {
		return nil, fmt.Errorf("decode card: %w: %w", verbs.ErrInvalid, err)
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("decode card: %w", err)
	}
	return c, nil
}

// maxCardBytes limits a card's size. A thousand lanes with addresses need a quarter of it.
const maxCardBytes = 1 << 20

// validate checks the fields that do not depend on the local side.
func (c *Card) validate() error {
	for _, f := range [...]struct {
		name        string
		v, min, max int64
	}{
		{"version", int64(c.Version), CardVersion, CardVersion},
		{"incarnation", int64(min(c.Incarnation, math.MaxInt64)), 1, 1<<53 - 1},
		{"rails", int64(c.Rails), 1, MaxRails},
		{"atomic_rail", int64(c.AtomicRail), 0, int64(c.Rails) - 1},
		{"the number of lanes", int64(len(c.Lanes)), 1, maxLanes},
		{"data_lanes", int64(c.DataLanes), 1, int64(len(c.Lanes))},
		{"max_msg_sz", int64(min(c.MaxMsgSize, math.MaxInt64)), 1, math.MaxInt64},
		{"limits.send_depth", int64(c.Limits.SendDepth), 1, maxDepth},
		{"limits.recv_depth", int64(c.Limits.RecvDepth), 1, maxDepth},
	} {
		if f.v < f.min || f.v > f.max {
			return verbs.Invalidf("%s is %d: want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if c.Scheme == DQPLB && (c.Window < 1 || c.Window > cxxWindow) {
		return verbs.Invalidf("window is %d: want 1 to %d", c.Window, cxxWindow)
	}
	return c.validateLanes()
}

// validateLanes checks that every lane has one role and an address.
func (c *Card) validateLanes() error {
	special := 0
	for _, f := range [...]struct {
		name string
		lane int
	}{{"message_lane", c.MessageLane}, {"notify_lane", c.NotifyLane}} {
		if f.lane < -1 || (f.lane >= 0 && f.lane < c.DataLanes) || f.lane >= len(c.Lanes) {
			return verbs.Invalidf("%s is %d: want -1 or %d to %d", f.name, f.lane, c.DataLanes, len(c.Lanes)-1)
		}
		if f.lane >= 0 {
			special++
		}
	}
	if c.MessageLane >= 0 && c.MessageLane == c.NotifyLane {
		special--
	}
	if c.DataLanes+special != len(c.Lanes) {
		return verbs.Invalidf("%d lanes, but %d carry data and %d have another use", len(c.Lanes), c.DataLanes, special)
	}
	for i := range c.Lanes {
		l := &c.Lanes[i]
		if l.Rail < 0 || l.Rail >= c.Rails {
			return verbs.Invalidf("lane %d is on rail %d of %d", i, l.Rail, c.Rails)
		}
		if l.Absent {
			continue
		}
		e := l.endpoint()
		if err := e.Validate(); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	if n := len(c.Addresses); n != 0 && n != c.Rails {
		return verbs.Invalidf("%d addresses for %d rails", n, c.Rails)
	}
	if c.MessageLane >= 0 && c.Lanes[c.MessageLane].Rail != c.AtomicRail {
		return verbs.Invalidf("atomic_rail is %d, and the message lane is on rail %d", c.AtomicRail, c.Lanes[c.MessageLane].Rail)
	}
	return nil
}

// Connect connects every lane to the peer's lane with the same index. Both sides must call it with the
// other's card.
//
// It returns verbs.ErrInvalid if the card does not match Config, verbs.ErrState if the VirtualQP was
// connected or closed before, and otherwise the NIC's error with the lane that failed. After such an
// error, Connect may be called again: posted receives stay posted, but the lanes have new addresses, so
// exchange new cards. With Config.Control, lanes whose port is down or whose device has failed, at either
// end, start out of service and Connect succeeds.
func (q *VirtualQP) Connect(remote *Card) error {
	if remote == nil {
		return q.setup.opError("connect", verbs.Invalidf("no card"))
	}
	if err := remote.validate(); err != nil {
		return q.setup.opError("connect", err)
	}
	return q.connect(remote, func(l *lane, to verbs.Endpoint) error { return l.qp.Connect(to) })
}

// connect checks that a card fits and moves all lanes to RTS. On error, it restores their state.
func (q *VirtualQP) connect(remote *Card, one func(l *lane, to verbs.Endpoint) error) error {
	if q.failover.state != stateNew {
		return q.setup.opError("connect", fmt.Errorf("%w: already connected or closed", verbs.ErrState))
	}
	if err := q.fits(remote); err != nil {
		return q.setup.opError("connect", err)
	}
	if q.setup.cfg.Control != nil {
		if err := q.setup.cq.join(); err != nil {
			return q.setup.opError("connect", err)
		}
	}
	var apart []*lane // lanes with an inactive port or failed device on either side
	for i, l := range q.setup.all {
		err := errNotConnected
		if !remote.Lanes[i].Absent && l.recovery.state == laneUp {
			err = one(l, remote.Lanes[i].endpoint())
		}
		if err != nil && !errors.Is(err, errNotConnected) && (q.setup.cfg.Control == nil || !q.setup.rails.rails[l.rail].down()) {
			return q.setup.opError("connect", errors.Join(fmt.Errorf("lane %d on rail %d (%s): %w", i, l.rail, q.setup.rails.rails[l.rail].name, err), q.disconnect(i)))
		}
		if err != nil {
			apart = append(apart, l)
		}
		l.remoteRail = uint8(remote.Lanes[i].Rail)
		l.recovery.remoteHome = l.remoteRail
	}
	q.setup.remoteGIDs, q.failover.railsWithoutGID = remote.gids()
	q.setup.remoteAddresses = remote.Addresses
	q.setup.remoteRails = remote.Rails
	q.setup.peer = remote.Incarnation
	u := &q.setup
	u.maxMsg = uint32(min(uint64(u.maxMsg), remote.MaxMsgSize))
	switch u.maxWhole = min(u.minCut, u.maxMsg); {
	case u.cfg.FragmentSize != 0:
		u.maxWhole = min(u.cfg.FragmentSize, u.maxMsg)
	case len(u.lanes) == 1:
		u.maxWhole = min(wantFragment, u.maxMsg)
	}
	q.setup.remoteRecvs = remote.Limits.RecvDepth
	if q.setup.scheme != nil {
		q.recv.connected(q.setup.scheme.connected(remote))
	}
	q.failover.state = stateConnected
	if q.setup.cfg.Control != nil {
		q.clock.tick()
		q.failover.begin(apart)
		q.setup.cfg.Control.Notify(q.wake)
		q.wake() // for messages that have already arrived
	}
	return nil
}

// gids returns the addresses of a card's lanes, and the bit set of rails that have lanes but no address.
func (c *Card) gids() (all []verbs.GID, unmet uint8) {
	met := uint8(0)
	for i := range c.Lanes {
		l := &c.Lanes[i]
		if l.Absent {
			unmet |= 1 << l.Rail
			continue
		}
		met |= 1 << l.Rail
		if !slices.Contains(all, l.GID) {
			all = append(all, l.GID)
		}
	}
	for rail, gid := range c.Addresses {
		if !gid.IsZero() {
			met |= 1 << rail
		}
	}
	return all, unmet &^ met
}

// fits checks that a peer's VirtualQP has the same layout as this one.
func (q *VirtualQP) fits(remote *Card) error {
	special := func(l *lane) int {
		if l == nil {
			return -1
		}
		return int(l.index)
	}
	switch {
	case q.setup.cfg.Control == nil && slices.ContainsFunc(remote.Lanes, func(l CardLane) bool { return l.Absent }):
		return verbs.Invalidf("a device of the peer has failed, and this side has no Config.Control")
	case remote.Scheme != q.setup.cfg.Scheme:
		return verbs.Invalidf("the peer's scheme is %s, this side's %s", remote.Scheme, q.setup.cfg.Scheme)
	case len(remote.Lanes) != len(q.setup.all) || remote.DataLanes != len(q.setup.lanes):
		return verbs.Invalidf("the peer has %d lanes, %d of them for data, this side %d and %d",
			len(remote.Lanes), remote.DataLanes, len(q.setup.all), len(q.setup.lanes))
	case remote.MessageLane != special(q.setup.messageLane) || remote.NotifyLane != special(q.setup.notifyLane):
		return verbs.Invalidf("the peer's message and notify lanes are %d and %d, this side's %d and %d",
			remote.MessageLane, remote.NotifyLane, special(q.setup.messageLane), special(q.setup.notifyLane))
	}
	return nil
}

// disconnect returns the first n lanes, and the one that failed, to INIT.
func (q *VirtualQP) disconnect(n int) error {
	var errs []error
	for _, l := range q.setup.all[:n+1] {
		if l.qp.State() == verbs.StateInit || l.absent() {
			continue // not connected
		}
		err := l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)
		if err == nil {
			err = q.recv.prepare(l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// LanePath describes a lane and its physical QP. Use it to connect peers that do not read a Card, such
// as C++ peers, and to match lanes with NIC or switch counters. It does not expose the QP itself: a
// request or transition unknown to the engine would corrupt the lane's ledger.
type LanePath struct {
	// Lane is the index of the lane.
	Lane int
	// Role is "data", "message" or "notify".
	Role string
	// Rail is the index of the lane's rail.
	Rail int
	// Device is the NIC's name.
	Device string
	// Port is the NIC's port number.
	Port uint8
	// Endpoint is the QP's address: QP number, GID or LID, and MTU. With Config.CxxPeer, its PSN is 0.
	Endpoint verbs.Endpoint
	// QP is the NIC's view of the QP: its state and, once connected, the peer's QP number and address,
	// path MTU, PSNs, timeouts and retry counts.
	QP verbs.QPAttr
	// Sealed is set when the lane's packets are encrypted and authenticated (Config.Seal).
	Sealed bool
}

// Paths returns all lanes with their QPs, in lane order. On real NICs it makes a system call per lane. A
// rebuilt lane has a new QP number. Endpoint and QP are zero for a lane whose device has failed. Paths
// returns verbs.ErrClosed after Close.
func (q *VirtualQP) Paths() ([]LanePath, error) {
	u := &q.setup
	if q.failover.state == stateClosed {
		return nil, u.opError("list paths", verbs.ErrClosed)
	}
	paths := make([]LanePath, 0, len(u.all))
	for i, l := range u.all {
		e, err := l.qp.Endpoint()
		if err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
			return nil, u.opError("list paths", fmt.Errorf("lane %d: %w", i, err))
		}
		if u.cfg.CxxPeer {
			e.PSN = 0
		}
		attr, err := l.qp.Query()
		if err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
			return nil, u.opError("list paths", fmt.Errorf("lane %d: %w", i, err))
		}
		r := &u.rails.rails[l.rail]
		paths = append(paths, LanePath{
			Lane: i, Role: roleNames[l.role], Rail: int(l.rail), Device: r.name, Port: r.cfg.Port, Endpoint: e, QP: attr,
			Sealed: u.sealed(int(l.rail)),
		})
	}
	return paths, nil
}
