package ibverbx

import (
	"encoding/json"
	"fmt"
	"math"

	"ibverbx/internal/strictjson"
	"ibverbx/verbs"
)

// CardVersion is the version of the cards that this package writes and reads.
const CardVersion = 1

// Card is what a peer needs to connect to a VirtualQP. It comes from a peer: DecodeCard
// and Connect check everything in it.
type Card struct {
	Version int `json:"version"`
	// Incarnation is a random number of this VirtualQP, below 2^53: another one behind the
	// same address is another peer.
	Incarnation uint64 `json:"incarnation"`
	// Scheme must be the same on both sides.
	Scheme Scheme `json:"scheme"`
	// Rails is how many rails this side has; keys of its regions are counted by them.
	Rails int `json:"rails"`
	// AtomicRail is the one that all atomics on this side's memory go through.
	AtomicRail int `json:"atomic_rail"`
	// DataLanes is how many of the lanes, the first ones, carry data. MessageLane and
	// NotifyLane are the indices of those two, -1 if there is none: one lane that passes
	// everything through has neither, and only Spray has the second.
	DataLanes   int `json:"data_lanes"`
	MessageLane int `json:"message_lane"`
	NotifyLane  int `json:"notify_lane"`
	// MaxMsgSize is the largest fragment that all lanes of this side can carry, and
	// MaxRdAtomic how many READs and atomics each can have outstanding.
	MaxMsgSize  uint64 `json:"max_msg_sz"`
	MaxRdAtomic uint8  `json:"max_rd_atomic"`
	// Window is how many numbers of DQPLB this side can put in order.
	Window uint32     `json:"window,omitempty"`
	Limits CardLimits `json:"limits"`
	Lanes  []CardLane `json:"lanes"`
}

// CardLimits says how much this side has outstanding at the most.
type CardLimits struct {
	// SendDepth counts requests, and RecvDepth receives of each kind.
	SendDepth int `json:"send_depth"`
	RecvDepth int `json:"recv_depth"`
}

// CardLane is one lane: the rail that it is on, and the address of its QP.
type CardLane struct {
	Rail            int       `json:"rail"`
	QPN             uint32    `json:"qpn"`
	PSN             uint32    `json:"psn"`
	LID             uint16    `json:"lid,omitempty"`
	GID             verbs.GID `json:"gid"`
	MTU             verbs.MTU `json:"mtu"`
	MaxRdAtomic     uint8     `json:"max_rd_atomic"`
	MaxDestRdAtomic uint8     `json:"max_dest_rd_atomic"`
	Extra           []byte    `json:"extra,omitempty"`
}

// endpoint returns the address in the words of package verbs.
func (l *CardLane) endpoint() verbs.Endpoint {
	return verbs.Endpoint{
		QPN: l.QPN, PSN: l.PSN, LID: l.LID, GID: l.GID, MTU: l.MTU,
		MaxRdAtomic: l.MaxRdAtomic, MaxDestRdAtomic: l.MaxDestRdAtomic, Extra: l.Extra,
	}
}

// Card returns what the peer needs.
func (q *VirtualQP) Card() (*Card, error) {
	if q.failover.state == stateClosed {
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
		if err != nil {
			return nil, q.setup.opError("make card", fmt.Errorf("lane %d: %w", i, err))
		}
		c.MaxRdAtomic = min(c.MaxRdAtomic, e.MaxDestRdAtomic)
		c.Lanes = append(c.Lanes, CardLane{
			Rail: int(l.rail), QPN: e.QPN, PSN: e.PSN, LID: e.LID, GID: e.GID, MTU: e.MTU,
			MaxRdAtomic: e.MaxRdAtomic, MaxDestRdAtomic: e.MaxDestRdAtomic, Extra: e.Extra,
		})
	}
	return c, nil
}

// Encode returns the card as JSON.
func (c *Card) Encode() ([]byte, error) { return json.Marshal(c) }

// DecodeCard reads a card and checks it. An error says what is wrong and where.
func DecodeCard(b []byte) (*Card, error) {
	c := &Card{}
	if err := strictjson.Decode(b, maxCardBytes, c); err != nil {
		return nil, fmt.Errorf("decode card: %w: %w", verbs.ErrInvalid, err)
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("decode card: %w", err)
	}
	return c, nil
}

// maxCardBytes bounds a card. A thousand lanes with an address each need a quarter of it.
const maxCardBytes = 1 << 20

// validate checks a card on its own.
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
	if c.Scheme == DQPLB && (c.Window < 1 || c.Window > originalWindow) {
		return verbs.Invalidf("window is %d: want 1 to %d", c.Window, originalWindow)
	}
	return c.validateLanes()
}

// validateLanes checks that every lane has one role, and an address.
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
		e := l.endpoint()
		if err := e.Validate(); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	if c.MessageLane >= 0 && c.Lanes[c.MessageLane].Rail != c.AtomicRail {
		return verbs.Invalidf("atomic_rail is %d, and the message lane is on rail %d", c.AtomicRail, c.Lanes[c.MessageLane].Rail)
	}
	return nil
}
