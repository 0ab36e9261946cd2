package ibverbx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"

	"ibverbx/internal/strictjson"
	"ibverbx/verbs"
)

// cxxWindow is the DQPLB reorder window of a C++ peer, in sequence numbers.
const cxxWindow = 1 << 23

// CxxCard is the card of the C++ implementation in torchcomms, called a business card there. It contains only QP numbers: the peers must agree
// on addresses and MTU by other means (VirtualQP.Paths returns those of this side). Packet sequence numbers start at 0.
//
// A card has two encodings. DecodeCxxCard reads both; which one to send depends on the peer's version of torchcomms:
//
//	MarshalBinary  since September 2026: little-endian uint32 values, 8 + 4n bytes
//	               number of QPs n | notify QP number, or 0 | n QP numbers
//	MarshalJSON    before: {"qpNums":["0000000017","0000000018"],"notifyQpNum":"0000000019"}
type CxxCard struct {
	// QPNums are the data QPs' numbers.
	QPNums []uint32
	// NotifyQPNum is the notification QP's number. Every scheme has this QP if there are several data
	// QPs; otherwise it is 0.
	NotifyQPNum uint32
}

// MarshalJSON returns the JSON form. Every number is a string of ten digits, so the length depends only on the number of QPs.
func (b *CxxCard) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(`{"qpNums":[`)
	for i, n := range b.QPNums {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, `"%010d"`, n)
	}
	fmt.Fprintf(&out, `],"notifyQpNum":"%010d"}`, b.NotifyQPNum)
	return out.Bytes(), nil
}

// MarshalBinary returns the binary form. It fails with verbs.ErrInvalid if the card has too many QPs.
func (b *CxxCard) MarshalBinary() ([]byte, error) {
	if n := len(b.QPNums); n > maxLanes-1 {
		return nil, verbs.Invalidf("encode business card: %d QPs: want 1 to %d", n, maxLanes-1)
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(b.QPNums)))
	out = binary.LittleEndian.AppendUint32(out, b.NotifyQPNum)
	for _, n := range b.QPNums {
		out = binary.LittleEndian.AppendUint32(out, n)
	}
	return out, nil
}

// DecodeCxxCard decodes and validates a card in either form. In JSON, fields may have any order, and numbers are strings of decimal digits.
// It fails with verbs.ErrInvalid.
func DecodeCxxCard(card []byte) (*CxxCard, error) {
	decode := decodeCxxJSON
	if isCxxBinary(card) {
		decode = decodeCxxBinary
	}
	b, err := decode(card)
	if err == nil && len(b.QPNums) > 1 && b.NotifyQPNum == 0 {
		err = verbs.Invalidf("%d QPs and no notify QP", len(b.QPNums))
	}
	if err != nil {
		return nil, fmt.Errorf("decode business card: %w", err)
	}
	return b, nil
}

// cxxHeader is the size of the two numbers before the QP numbers of a binary card, in bytes.
const cxxHeader = 8

// isCxxBinary reports whether a card is binary: its length matches its count or, if it is damaged, it contains a zero
// byte. The first byte does not decide, because a count of 123 begins with the byte of '{'. JSON never matches: it
// contains no zero byte, so its first four bytes would be a count above 150 million.
func isCxxBinary(card []byte) bool {
	if len(card) >= cxxHeader && uint64(len(card)) == cxxHeader+4*uint64(binary.LittleEndian.Uint32(card)) {
		return true
	}
	return bytes.IndexByte(card, 0) >= 0
}

func decodeCxxBinary(card []byte) (*CxxCard, error) {
	if len(card) < cxxHeader {
		return nil, verbs.Invalidf("binary card of %d bytes: want at least %d", len(card), cxxHeader+4)
	}
	n := binary.LittleEndian.Uint32(card)
	switch want := cxxHeader + 4*uint64(n); {
	case n < 1 || n > maxLanes-1:
		return nil, verbs.Invalidf("binary card with %d QPs: want 1 to %d", n, maxLanes-1)
	case uint64(len(card)) != want:
		return nil, verbs.Invalidf("binary card of %d bytes: want %d for %d QPs", len(card), want, n)
	}
	b := &CxxCard{NotifyQPNum: binary.LittleEndian.Uint32(card[4:])}
	if b.NotifyQPNum >= 1<<24 {
		return nil, verbs.Invalidf("notify QP: %d is not a QP number: want 0 to %d", b.NotifyQPNum, 1<<24-1)
	}
	for i := range int(n) {
		qpn := binary.LittleEndian.Uint32(card[cxxHeader+4*i:])
		if qpn < 1 || qpn >= 1<<24 {
			return nil, verbs.Invalidf("QP %d: %d is not a QP number: want 1 to %d", i, qpn, 1<<24-1)
		}
		b.QPNums = append(b.QPNums, qpn)
	}
	return b, nil
}

func decodeCxxJSON(text []byte) (*CxxCard, error) {
	var raw struct {
		QPNums      []string `json:"qpNums"`
		NotifyQPNum *string  `json:"notifyQpNum,omitempty"`
	}
	if err := strictjson.Decode(text, maxCardBytes, &raw); err != nil {
		return nil, fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	if n := len(raw.QPNums); n < 1 || n > maxLanes-1 {
		return nil, verbs.Invalidf("%d qpNums: want 1 to %d", n, maxLanes-1)
	}
	b := &CxxCard{}
	for i, text := range raw.QPNums {
		n, err := parseQPNum(text, 1)
		if err != nil {
			return nil, fmt.Errorf("qpNums[%d]: %w", i, err)
		}
		b.QPNums = append(b.QPNums, n)
	}
	if raw.NotifyQPNum != nil {
		n, err := parseQPNum(*raw.NotifyQPNum, 0)
		if err != nil {
			return nil, fmt.Errorf("notifyQpNum: %w", err)
		}
		b.NotifyQPNum = n
	}
	return b, nil
}

// parseQPNum parses a decimal QP number of at most 24 bits.
func parseQPNum(text string, lowest uint64) (uint32, error) {
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, verbs.Invalidf("%q is not a number", text)
		}
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < lowest || n >= 1<<24 {
		return 0, verbs.Invalidf("%q is not a QP number: want %d to %d", text, lowest, 1<<24-1)
	}
	return uint32(n), nil
}

// imm converts a user's immediate to the wire, and back. torchcomms passes it to the NIC in host order (see wireImm).
func (u *setup) imm(v uint32) uint32 {
	if u.cfg.CxxPeer {
		return wireImm(v)
	}
	return v
}

// CxxCard returns the card that a C++ peer needs to connect. It returns verbs.ErrInvalid unless
// Config.CxxPeer is set, and verbs.ErrClosed after Close.
func (q *VirtualQP) CxxCard() (*CxxCard, error) {
	if q.failover.state == stateClosed {
		return nil, q.setup.opError("make business card", verbs.ErrClosed)
	}
	if !q.setup.cfg.CxxPeer {
		return nil, q.setup.opError("make business card", verbs.Invalidf("Config.CxxPeer is not set"))
	}
	b := &CxxCard{}
	for _, l := range q.setup.lanes {
		b.QPNums = append(b.QPNums, l.num)
	}
	if !q.setup.direct {
		b.NotifyQPNum = q.setup.all[len(q.setup.lanes)].num
	}
	return b, nil
}

// ConnectCxxPeer connects to a C++ peer. It requires Config.CxxPeer. paths holds the addresses of the
// peer's devices (GID or LID, MTU, READ depths) in the peer's order, 1 to MaxRails of them. As in
// torchcomms, QP i of n is on device i*len(paths)/n, and the notification QP is on the first. Packet
// sequence numbers start at 0 on both sides. Errors are as in Connect.
func (q *VirtualQP) ConnectCxxPeer(b *CxxCard, paths []verbs.Endpoint) error {
	switch {
	case !q.setup.cfg.CxxPeer:
		return q.setup.opError("connect", verbs.Invalidf("Config.CxxPeer is not set"))
	case b == nil:
		return q.setup.opError("connect", verbs.Invalidf("no business card"))
	case len(paths) < 1 || len(paths) > MaxRails:
		return q.setup.opError("connect", verbs.Invalidf("%d paths: want one for each device of the peer, 1 to %d", len(paths), MaxRails))
	}
	remote := &Card{
		Version: CardVersion, Incarnation: 1, Scheme: q.setup.cfg.Scheme, Rails: len(paths), DataLanes: len(b.QPNums),
		MessageLane: -1, NotifyLane: -1, MaxMsgSize: maxFragment, Window: cxxWindow,
		Limits: CardLimits{SendDepth: maxDepth, RecvDepth: maxDepth},
	}
	add := func(rail int, qpn uint32) {
		p := &paths[rail]
		remote.Lanes = append(remote.Lanes, CardLane{
			Rail: rail, QPN: qpn, LID: p.LID, GID: p.GID, MTU: p.MTU, MaxRdAtomic: p.MaxRdAtomic, MaxDestRdAtomic: p.MaxDestRdAtomic,
		})
	}
	for i, qpn := range b.QPNums {
		add(i*len(paths)/len(b.QPNums), qpn)
	}
	if len(b.QPNums) > 1 {
		add(0, b.NotifyQPNum)
		remote.MessageLane = len(b.QPNums)
		if q.setup.cfg.Scheme == Spray {
			remote.NotifyLane = len(b.QPNums)
		}
	}
	if err := remote.validate(); err != nil {
		return q.setup.opError("connect", err)
	}
	return q.connect(remote, q.connectFromZero)
}

// connectFromZero connects a lane with packet sequence numbers starting at 0 on both sides.
func (q *VirtualQP) connectFromZero(l *lane, to verbs.Endpoint) error {
	local, err := l.qp.Endpoint()
	if err != nil {
		return err
	}
	r := &q.setup.rails.rails[l.rail]
	index, err := r.cfg.Path.SGIDIndex(r.cfg.Context, r.cfg.Port, local.GID)
	if err != nil {
		return err
	}
	local.PSN, to.PSN = 0, 0
	attr := verbs.ConnectAttr(local, to, r.cfg.Port, index)
	r.cfg.Path.Apply(&attr)
	return verbs.ConnectWith(l.qp, attr)
}
