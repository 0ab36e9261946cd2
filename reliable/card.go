package reliable

import (
	"encoding/binary"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// card describes a QP to its peer. It is sent in Endpoint.Extra and in messages on the handshake QP.
//
//	 0         8         16                  31
//	+---------+---------+-------------------+
//	| version |  flags  |       paths       |  0    flags: 1 answer with yours, 128 has a Q_Key
//	+---------+---------+-------------------+           2 every path has its part of the credit
//	|      window       |   receive credit  |  4        4 senders wait for credit
//	+-------------------+-------------------+           8 the paths are of UD, not of UC
//	|            bytes of a chunk           |  8        the three bits below 128 are the kind
//	+---------------------------------------+
//	| flow, 12 |  number of the connection  | 12
//	+---------------------------------------+
//	|        QPN of control QP 0 and 1      | 16, 20
//	+---------------------------------------+
//	| first PSN accepted by handshake QP    | 24
//	+---------------------------------------+
//	|      QPN, PSN of path 0, 1, ...       | 28    whole, propose and accept
//	+---------------------------------------+
//	|  QPN, PSN that path 0 had at first    |       propose and accept
//	+---------------------------------------+
//	| number of the receiver's connection   |       accept and confirm
//	+---------------------------------------+
//	| Q_Key of the UD QPs of the engine     |       without it, verbs.DefaultQKey
//	+---------------------------------------+
type card struct {
	kind      cardKind
	window    int          // Config.Window
	credit    int          // the number of advertised receive buffers, 0 without paths
	chunk     uint32       // Config.ChunkBytes
	pathCount int          // Config.Paths
	conn      uint32       // the number of the sender's connection, 0 in a bare card
	flow      uint16       // the flow of the QP in the connection, Config.Flows-1 in a bare card
	control   [2]uint32    // the numbers of the control QPs
	qkey      uint32       // the Q_Key of the control QPs and of the UD QPs of paths
	psn       uint32       // the first PSN that the handshake QP accepts, 0 if unknown
	paths     []pathAddr   // the addresses of the paths
	firstAddr pathAddr     // the first address of path 0, which identifies the connection if its number is reused
	echo      uint32       // the number of the receiver's connection
	want      bool         // requests the receiver's card
	perPath   bool         // set if the credit is divided equally among the paths
	carrier   verbs.QPType // the type of the QPs of paths
	grants    bool         // set if the peer must wait for credit; see Config.NoCredits
}

// cardKind is the purpose of a card. With Config.Flows of one, all cards are whole; otherwise
// the other kinds are used: see flowHandshake.
type cardKind uint8

const (
	cardWhole   cardKind = iota // contains the connection of the QP
	cardBare                    // contains no connection; on the handshake QP it requests a proposal
	cardPropose                 // proposes a connection and a flow
	cardAccept                  // accepts a proposal, and contains the sender's connection
	cardConfirm                 // confirms that the two connections are connected to each other
	cardKinds
)

// hasPaths reports whether cards of the kind have the addresses of paths.
func (k cardKind) hasPaths() bool { return k == cardWhole || k == cardPropose || k == cardAccept }

// hasFirstAddr reports whether cards of the kind have the first address of path 0.
func (k cardKind) hasFirstAddr() bool { return k == cardPropose || k == cardAccept }

// hasQKey reports whether the card has a Q_Key.
func (c *card) hasQKey() bool { return c.qkey != verbs.DefaultQKey }

// hasEcho reports whether cards of the kind have the number of the receiver's connection.
func (k cardKind) hasEcho() bool { return k == cardAccept || k == cardConfirm }

// pathAddr is the address of a path's QP.
type pathAddr struct{ qpn, psn uint32 }

const (
	// cardLen is the length of a card without the optional fields, in bytes.
	cardLen = 28
	// addrLen, echoLen and qkeyLen are the lengths of these fields, in bytes.
	addrLen, echoLen, qkeyLen = 8, 4, 4

	// Flags of a card.
	cardWant    = 1
	cardPerPath = 2
	cardGrants  = 4
	cardUD      = 8
	cardQKey    = 128
	// kindShift is the position of the kind in the flags, below cardQKey.
	kindShift = 4
)

// maxCardLen is the maximum length of a card, in bytes.
func (cfg *Config) maxCardLen() int { return cardLen + addrLen*(cfg.Paths+1) + echoLen + qkeyLen }

func (c *card) encode() []byte {
	be := binary.BigEndian
	b := []byte{wire.Version, byte(c.kind) << kindShift}
	if c.want {
		b[1] |= cardWant
	}
	if c.grants {
		b[1] |= cardGrants
	}
	if c.perPath {
		b[1] |= cardPerPath
	}
	if c.carrier == verbs.UD {
		b[1] |= cardUD
	}
	if c.hasQKey() {
		b[1] |= cardQKey
	}
	b = be.AppendUint16(b, uint16(c.pathCount))
	b = be.AppendUint16(b, uint16(c.window))
	b = be.AppendUint16(b, uint16(c.credit))
	b = be.AppendUint32(b, c.chunk)
	b = be.AppendUint32(b, uint32(c.flow)<<connBits|c.conn)
	for _, q := range c.control {
		b = be.AppendUint32(b, q)
	}
	b = be.AppendUint32(b, c.psn)
	for _, p := range c.paths {
		b = be.AppendUint32(b, p.qpn)
		b = be.AppendUint32(b, p.psn)
	}
	if c.kind.hasFirstAddr() {
		b = be.AppendUint32(b, c.firstAddr.qpn)
		b = be.AppendUint32(b, c.firstAddr.psn)
	}
	if c.kind.hasEcho() {
		b = be.AppendUint32(b, c.echo)
	}
	if c.hasQKey() {
		b = be.AppendUint32(b, c.qkey)
	}
	return b
}

// decodeCard decodes a peer's card and checks that it matches the local configuration.
func decodeCard(b []byte, cfg *Config, own *carrier) (*card, error) {
	be := binary.BigEndian
	switch {
	case len(b) == 0:
		return nil, verbs.Invalidf("the peer's carrier is rc, that of this end is %s: the peer's endpoint has no Extra, because its context is not wrapped or fell back to RC: wrap both ends with the same Config", own.name())
	case len(b) < cardLen || b[0] != wire.Version || b[1]&^cardQKey>>kindShift >= byte(cardKinds):
		return nil, verbs.Invalidf("the peer's Extra of %d bytes is not a card of protocol version %d", len(b), wire.Version)
	}
	c := &card{
		carrier: verbs.UC, kind: cardKind(b[1] &^ cardQKey >> kindShift), qkey: verbs.DefaultQKey, pathCount: int(be.Uint16(b[2:])),
		window: int(be.Uint16(b[4:])), credit: int(be.Uint16(b[6:])), chunk: be.Uint32(b[8:]), conn: be.Uint32(b[12:]) & maxConn,
		flow:    uint16(be.Uint32(b[12:]) >> connBits),
		control: [2]uint32{be.Uint32(b[16:]), be.Uint32(b[20:])}, psn: be.Uint32(b[24:]), want: b[1]&cardWant != 0, perPath: b[1]&cardPerPath != 0, grants: b[1]&cardGrants != 0,
	}
	if b[1]&cardUD != 0 {
		c.carrier = verbs.UD
	}
	if b[1]&cardQKey != 0 && len(b) >= cardLen+qkeyLen {
		c.qkey = be.Uint32(b[len(b)-qkeyLen:])
		b = b[:len(b)-qkeyLen]
		if c.qkey>>31 != 0 || !c.hasQKey() {
			return nil, verbs.Invalidf("the peer's Q_Key is %#x: want 31 bits, and %#x left out", c.qkey, verbs.DefaultQKey)
		}
	}
	if err := c.check(len(b), cfg, own); err != nil {
		return nil, err
	}
	for _, q := range c.control {
		if q == 0 || q >= 1<<24 {
			return nil, verbs.Invalidf("the peer's control QPN %#x is not a 24-bit QP number above 0", q)
		}
	}
	rest := b[cardLen:]
	if c.kind.hasPaths() {
		for range c.pathCount {
			c.paths = append(c.paths, takeAddr(&rest))
		}
	}
	if c.kind.hasFirstAddr() {
		c.firstAddr = takeAddr(&rest)
	}
	if c.kind.hasEcho() {
		c.echo = be.Uint32(rest)
	}
	if err := c.checkAddrs(); err != nil {
		return nil, err
	}
	return c, nil
}

// takeAddr decodes and removes the address at the start of b.
func takeAddr(b *[]byte) pathAddr {
	be := binary.BigEndian
	a := pathAddr{be.Uint32(*b), be.Uint32((*b)[4:])}
	*b = (*b)[addrLen:]
	return a
}

// check validates the fields of fixed size of a card of n bytes.
func (c *card) check(n int, cfg *Config, own *carrier) error {
	want := cardLen
	if c.kind.hasPaths() {
		want += addrLen * c.pathCount
	}
	if c.kind.hasFirstAddr() {
		want += addrLen
	}
	if c.kind.hasEcho() {
		want += echoLen
	}
	switch {
	case c.carrier != own.typ:
		peer := carrier{typ: c.carrier}
		return verbs.Invalidf("the peer's paths are carried by %s, those of this end by %s: set the same Config.Carrier at both ends", peer.name(), own.name())
	case c.pathCount != cfg.Paths || c.window != cfg.Window:
		return verbs.Invalidf("the peer has %d paths and a window of %d, this end %d and %d: give both the same Config",
			c.pathCount, c.window, cfg.Paths, cfg.Window)
	case c.chunk < minCardChunk || c.chunk > core.MaxChunk:
		return verbs.Invalidf("the peer has chunks of %d bytes: want %d to %d", c.chunk, minCardChunk, core.MaxChunk)
	case n != want:
		return verbs.Invalidf("the peer's Extra has %d bytes, want %d for %d paths", n, want, c.pathCount)
	case (c.kind == cardWhole) != (cfg.Flows == 1) || int(c.flow) >= cfg.Flows || (c.kind == cardBare && int(c.flow) != cfg.Flows-1):
		return verbs.Invalidf("the peer's Config.Flows is not %d, that of this end: give both the same Config.Flows", cfg.Flows)
	case c.kind.hasPaths() && c.credit == 0:
		return verbs.Invalidf("the peer has no receive buffers")
	case !c.kind.hasPaths() && c.credit != 0, c.kind == cardBare && c.conn != 0, c.kind != cardWhole && c.want:
		return verbs.Invalidf("the peer's card of kind %d has fields of another kind", c.kind)
	}
	return nil
}

// checkAddrs validates the addresses and numbers of a card.
func (c *card) checkAddrs() error {
	for i, p := range c.paths {
		if !p.valid() {
			return verbs.Invalidf("path %d of the peer has QPN %#x and PSN %#x: want 24 bits each, and a QPN", i, p.qpn, p.psn)
		}
	}
	if c.kind.hasFirstAddr() && !c.firstAddr.valid() {
		return verbs.Invalidf("the peer's connection began with QPN %#x and PSN %#x: want 24 bits each, and a QPN", c.firstAddr.qpn, c.firstAddr.psn)
	}
	if c.psn >= 1<<24 {
		return verbs.Invalidf("the peer's handshake QP expects PSN %#x: want 24 bits", c.psn)
	}
	if c.echo > maxConn {
		return verbs.Invalidf("the peer names connection %#x of this end: want %d bits", c.echo, connBits)
	}
	return nil
}

// valid reports whether a is the address of a QP.
func (a pathAddr) valid() bool { return a.qpn > 0 && a.qpn < 1<<24 && a.psn < 1<<24 }

// Endpoint.Extra of a wrapped QP is its card, followed by the Extra of the handshake QP, which the inner
// provider of the peer needs to connect its handshake QP:
//
//	+------+---------------------------+------------+
//	| card | Extra of the handshake QP | its length |
//	+------+---------------------------+------------+
//	                                      2 bytes

// joinExtra joins the two parts.
func joinExtra(card, inner []byte) []byte {
	return binary.BigEndian.AppendUint16(append(card, inner...), uint16(len(inner)))
}

// splitExtra separates the two parts, which alias b.
func splitExtra(b []byte) (card, inner []byte, err error) {
	if len(b) == 0 {
		return nil, nil, nil
	}
	rest := len(b) - 2
	if rest < 0 || int(binary.BigEndian.Uint16(b[rest:])) > rest {
		return nil, nil, verbs.Invalidf("the peer's Extra of %d bytes is shorter than the inner provider's part in it", len(b))
	}
	at := rest - int(binary.BigEndian.Uint16(b[rest:]))
	return b[:at], b[at:rest], nil
}
