package reliable

import (
	"encoding/binary"

	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// card describes a QP to its peer. It travels in Endpoint.Extra or, if Modify connects the QP, in a
// message on the side QP.
//
//	 0         8         16                  31
//	+---------+---------+-------------------+
//	| version |  flags  |       paths       |  0    flags: 1 answer with yours
//	+---------+---------+-------------------+           2 every path has its part of the credit
//	|      window       |   receive credit  |  4
//	+-------------------+-------------------+
//	|            bytes of a chunk           |  8
//	+---------------------------------------+
//	| flow, 12 |  number of the connection  | 12
//	+---------------------------------------+
//	|        QPN of control QP 0 and 1      | 16, 20
//	+---------------------------------------+
//	|      QPN, PSN of path 0, 1, ...       | 24
//	+---------------------------------------+
//	|    bytes of credit of an idle QP      |       with flag 4: senders wait for credit
//	+---------------------------------------+
type card struct {
	window      int        // Config.Window
	credit      int        // the number of receive buffers that the peer may use
	chunk       uint32     // Config.ChunkBytes
	conn        uint32     // the number of the connection at the card's end
	flow        uint16     // the flow of the QP in the connection
	control     [2]uint32  // the numbers of the control QPs
	paths       []pathAddr // the addresses of the paths
	want        bool       // asks for the card of the receiver
	speculative uint32     // Config.Speculative, 0 without Config.Credits
	perPath     bool       // reports that credit is divided equally among the paths
}

// pathAddr is the address of a path's QP.
type pathAddr struct{ qpn, psn uint32 }

const (
	// cardLen is the length of a card without paths and credit, in bytes.
	cardLen = 24
	// creditsLen is the length of the last field, in bytes.
	creditsLen = 4

	// Flags of a card.
	cardWant    = 1
	cardPerPath = 2
	cardCredits = 4
)

func (c *card) encode() []byte {
	be := binary.BigEndian
	b := []byte{wire.Version, 0}
	if c.want {
		b[1] = cardWant
	}
	if c.speculative > 0 {
		b[1] |= cardCredits
	}
	if c.perPath {
		b[1] |= cardPerPath
	}
	b = be.AppendUint16(b, uint16(len(c.paths)))
	b = be.AppendUint16(b, uint16(c.window))
	b = be.AppendUint16(b, uint16(c.credit))
	b = be.AppendUint32(b, c.chunk)
	b = be.AppendUint32(b, uint32(c.flow)<<connBits|c.conn)
	for _, q := range c.control {
		b = be.AppendUint32(b, q)
	}
	for _, p := range c.paths {
		b = be.AppendUint32(b, p.qpn)
		b = be.AppendUint32(b, p.psn)
	}
	if c.speculative > 0 {
		b = be.AppendUint32(b, c.speculative)
	}
	return b
}

// decodeCard decodes the card of a peer and checks that it fits the configuration of this end.
func decodeCard(b []byte, cfg *Config) (*card, error) {
	be := binary.BigEndian
	switch {
	case len(b) == 0:
		return nil, verbs.Invalidf("the peer's endpoint has no Extra: its context is not wrapped, or fell back to RC: wrap both ends with the same Config")
	case len(b) < cardLen || b[0] != wire.Version || b[1]&^(cardWant|cardPerPath|cardCredits) != 0:
		return nil, verbs.Invalidf("the peer's Extra of %d bytes is not a card of protocol version %d", len(b), wire.Version)
	}
	n := int(be.Uint16(b[2:]))
	c := &card{
		window: int(be.Uint16(b[4:])), credit: int(be.Uint16(b[6:])), chunk: be.Uint32(b[8:]), conn: be.Uint32(b[12:]) & maxConn,
		flow:    uint16(be.Uint32(b[12:]) >> connBits),
		control: [2]uint32{be.Uint32(b[16:]), be.Uint32(b[20:])}, want: b[1]&cardWant != 0, perPath: b[1]&cardPerPath != 0,
	}
	want := cardLen + 8*n
	if b[1]&cardCredits != 0 {
		want += creditsLen
	}
	switch {
	case n != cfg.Paths || c.window != cfg.Window || int64(c.chunk) != int64(cfg.ChunkBytes):
		return nil, verbs.Invalidf("the peer has %d paths, a window of %d and chunks of %d bytes, this end %d, %d and %d: give both the same Config",
			n, c.window, c.chunk, cfg.Paths, cfg.Window, cfg.ChunkBytes)
	case len(b) != want:
		return nil, verbs.Invalidf("the peer's Extra has %d bytes, want %d for %d paths", len(b), want, n)
	case int(c.flow) >= cfg.Flows:
		return nil, verbs.Invalidf("the peer's QP has flow %d of its connection, connections of this end have %d flows: give both the same Config.Flows",
			c.flow, cfg.Flows)
	case c.credit == 0:
		return nil, verbs.Invalidf("the peer has no receive buffers")
	}
	if err := c.takeCredits(b, cfg); err != nil {
		return nil, err
	}
	for _, q := range c.control {
		if q == 0 || q >= 1<<24 {
			return nil, verbs.Invalidf("the peer's control QPN %#x is not a 24-bit QP number above 0", q)
		}
	}
	for i := range n {
		p := pathAddr{be.Uint32(b[cardLen+8*i:]), be.Uint32(b[cardLen+8*i+4:])}
		if p.qpn == 0 || p.qpn >= 1<<24 || p.psn >= 1<<24 {
			return nil, verbs.Invalidf("path %d of the peer has QPN %#x and PSN %#x: want 24 bits each, and a QPN", i, p.qpn, p.psn)
		}
		c.paths = append(c.paths, p)
	}
	return c, nil
}

// takeCredits decodes the credit of a card that has the right length.
func (c *card) takeCredits(b []byte, cfg *Config) error {
	has := b[1]&cardCredits != 0
	switch {
	case has && !cfg.Credits:
		return verbs.Invalidf("the peer grants credit and waits for it, this end does neither: give both the same Config.Credits")
	case !has && cfg.Credits:
		return verbs.Invalidf("this end grants credit and waits for it, the peer does neither: give both the same Config.Credits")
	case !has:
		return nil
	}
	c.speculative = binary.BigEndian.Uint32(b[len(b)-creditsLen:])
	if int64(c.speculative) != int64(cfg.Speculative) {
		return verbs.Invalidf("the peer has %d bytes of credit in hand, this end %d: give both the same Config.Speculative", c.speculative, cfg.Speculative)
	}
	return nil
}

// Endpoint.Extra of a wrapped QP is its card, followed by the Extra of the side QP, which the inner
// provider of the peer gets when the side QP is connected:
//
//	+------+----------------------+------------+
//	| card | Extra of the side QP | its length |
//	+------+----------------------+------------+
//	                                  2 bytes

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
