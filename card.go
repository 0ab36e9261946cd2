package ibverbx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"ibverbx/verbs"
)

// CardVersion is the version of the cards that this package writes and reads.
const CardVersion = 1

// maxCardBytes bounds a card: a thousand lanes with an address each need a quarter of it.
const maxCardBytes = 1 << 20

// Card is what a peer needs to connect to a VirtualQP. It comes from a peer: DecodeCard
// and Connect check everything in it.
type Card struct {
	Version int `json:"version"`
	// Rails is how many rails this side has; keys of its regions are counted by them.
	Rails int `json:"rails"`
	// MaxMsgSize is the largest fragment that all lanes of this side can carry.
	MaxMsgSize uint64 `json:"max_msg_size"`
	// Scheme must be the same on both sides.
	Scheme Scheme `json:"scheme"`
	// DataLanes is how many of the lanes carry data; the message lane and, with Spray,
	// the notify lane follow. With one lane there is only that.
	DataLanes int `json:"data_lanes"`
	// SendDepth is how many requests this side can have outstanding, and Window how many
	// numbers of DQPLB it can put in order.
	SendDepth int        `json:"send_depth"`
	Window    uint32     `json:"window,omitempty"`
	Lanes     []CardLane `json:"lanes"`
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
	c := &Card{
		Version: CardVersion, Rails: q.rails.Len(), MaxMsgSize: uint64(q.maxMsg), Scheme: q.cfg.Scheme,
		DataLanes: len(q.lanes), SendDepth: q.cfg.SendDepth,
	}
	if q.cfg.Scheme == DQPLB {
		c.Window = q.dqplbWindow()
	}
	for i, l := range q.all {
		e, err := l.qp.Endpoint()
		if err != nil {
			return nil, q.opError("make card", fmt.Errorf("lane %d: %w", i, err))
		}
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
	if len(b) > maxCardBytes {
		return nil, fmt.Errorf("decode card: %w", verbs.Invalidf("%d bytes, at most %d are allowed", len(b), maxCardBytes))
	}
	if err := checkNames(b); err != nil {
		return nil, fmt.Errorf("decode card: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	c := &Card{}
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("decode card: %w: %w", verbs.ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("decode card: %w", verbs.Invalidf("something follows the card"))
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("decode card: %w", err)
	}
	return c, nil
}

// cardFields are the names that a card must have.
var cardFields = []string{"version", "rails", "max_msg_size", "scheme", "data_lanes", "send_depth", "lanes"}

// checkNames refuses what encoding/json lets pass: a field that occurs twice, of which it
// takes the last and other readers the first; a name in another case; and a field that is
// missing. A card must mean one thing.
func checkNames(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	var open []map[string]bool // one for each open object, nil for an array
	var top map[string]bool
	key := false // the next token is a name
	for {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
		}
		if name, ok := t.(string); ok && key {
			if err := addName(open[len(open)-1], name); err != nil {
				return err
			}
			key = false
			continue
		}
		switch t {
		case json.Delim('{'):
			open = append(open, map[string]bool{})
			if top == nil {
				top = open[0]
			}
		case json.Delim('['):
			open = append(open, nil)
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
	for _, name := range cardFields {
		if !top[name] {
			return verbs.Invalidf("field %q is missing", name)
		}
	}
	return nil
}

func addName(names map[string]bool, name string) error {
	switch {
	case name != strings.ToLower(name):
		return verbs.Invalidf("field %q is not in lower case", name)
	case names[name]:
		return verbs.Invalidf("field %q occurs twice", name)
	}
	names[name] = true
	return nil
}

// validate checks a card on its own.
func (c *Card) validate() error {
	switch {
	case c.Version != CardVersion:
		return verbs.Invalidf("version %d, this side speaks %d", c.Version, CardVersion)
	case c.Rails < 1 || c.Rails > MaxRails:
		return verbs.Invalidf("%d rails: want 1 to %d", c.Rails, MaxRails)
	case c.MaxMsgSize < 1:
		return verbs.Invalidf("max_msg_size is 0")
	case c.DataLanes < 1 || c.DataLanes > len(c.Lanes):
		return verbs.Invalidf("%d of %d lanes carry data", c.DataLanes, len(c.Lanes))
	case c.SendDepth < 1 || c.SendDepth > maxDepth:
		return verbs.Invalidf("send_depth is %d: want 1 to %d", c.SendDepth, maxDepth)
	case c.Scheme == DQPLB && (c.Window < 1 || c.Window > 1<<23):
		return verbs.Invalidf("window is %d: want 1 to %d", c.Window, 1<<23)
	case len(c.Lanes) < 1 || len(c.Lanes) > maxLanes:
		return verbs.Invalidf("%d lanes: want 1 to %d", len(c.Lanes), maxLanes)
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
	return nil
}

// Connect connects every lane to the lane of the same index of the peer. If one cannot be
// connected the VirtualQP can be connected again, with its receives still posted, and the
// error says which and why; its card must be taken anew then.
func (q *VirtualQP) Connect(remote *Card) error {
	if q.state != stateNew {
		return q.opError("connect", fmt.Errorf("%w: it was connected or closed before", verbs.ErrState))
	}
	if remote == nil {
		return q.opError("connect", verbs.Invalidf("no card"))
	}
	if err := remote.validate(); err != nil {
		return q.opError("connect", err)
	}
	switch {
	case remote.Scheme != q.cfg.Scheme:
		return q.opError("connect", verbs.Invalidf("the peer's scheme is %s, this side's %s", remote.Scheme, q.cfg.Scheme))
	case len(remote.Lanes) != len(q.all) || remote.DataLanes != len(q.lanes):
		return q.opError("connect", verbs.Invalidf("the peer has %d lanes, %d of them for data, this side %d and %d",
			len(remote.Lanes), remote.DataLanes, len(q.all), len(q.lanes)))
	}
	for i, l := range q.all {
		if err := l.qp.Connect(remote.Lanes[i].endpoint()); err != nil {
			return q.opError("connect", errors.Join(fmt.Errorf("lane %d on rail %d (%s): %w", i, l.rail, q.rails.rails[l.rail].name, err), q.disconnect(i)))
		}
		l.remoteRail = uint8(remote.Lanes[i].Rail)
	}
	q.remoteRails = remote.Rails
	q.maxMsg = uint32(min(uint64(q.maxMsg), remote.MaxMsgSize))
	if q.scheme != nil {
		q.holdEarly(q.scheme.connected(remote))
	}
	q.state = stateConnected
	return nil
}

// disconnect takes the first n lanes, and the one that failed, back to where they were.
func (q *VirtualQP) disconnect(n int) error {
	var errs []error
	for _, l := range q.all[:n+1] {
		if l.qp.State() == verbs.StateInit {
			continue // it never left
		}
		err := l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState)
		if err == nil {
			err = q.prepare(l)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
