package reliable

import (
	"encoding/binary"

	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// card is what a QP tells its peer in Endpoint.Extra, beside the endpoint of its side QP, or,
// if it was connected by Modify, in a message on the side QP.
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
//	|    bytes of credit that a QP has      |       with flag 4: senders wait for credit
//	+---------------------------------------+
type card struct {
	window, credit int
	chunk          uint32
	conn           uint32
	flow           uint16 // of the QP in the connection
	control        [2]uint32
	paths          []pathAddr
	want           bool
	speculative    uint32 // 0 if senders do not wait for credit
	perPath        bool
}

type pathAddr struct{ qpn, psn uint32 }

const (
	cardLen     = 24
	cardWant    = 1
	cardCredits = 4
	creditsLen  = 4
	cardPerPath = 2
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

// decodeCard reads what a peer says. It must fit the own configuration.
func decodeCard(b []byte, cfg *Config) (*card, error) {
	be := binary.BigEndian
	switch {
	case len(b) == 0:
		return nil, verbs.Invalidf("the peer's endpoint has no Extra: its QP is not of a wrapped context, or of one that fell back to RC")
	case len(b) < cardLen || b[0] != wire.Version || b[1]&^(cardWant|cardPerPath|cardCredits) != 0:
		return nil, verbs.Invalidf("the peer's Extra of %d bytes is not of version %d of this protocol", len(b), wire.Version)
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
		return nil, verbs.Invalidf("the peer's QP is number %d of those that share a connection, of which there are %d here: give both the same Config.Flows",
			c.flow, cfg.Flows)
	case c.credit == 0:
		return nil, verbs.Invalidf("the peer says that it has no receives")
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

// takeCredits reads what the peer says about credit, from a card of the right length.
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
