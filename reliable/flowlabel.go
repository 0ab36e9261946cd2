package reliable

// flowLabel returns the flow label of a path, or of control QP index-Config.Paths. RoCE v2 makes the UDP
// source port from it, by which switches choose among equal routes. The ports of a connection differ, and
// those of up to 2^k paths in a row differ in the last k bits, for NICs that have only 2^k ports. Each
// epoch has a different port, so a rebuilt path leaves the route on which it failed.
func (c *connection) flowLabel(index int, epoch uint16) uint32 {
	salt := c.attr.SQPSN + c.id<<8
	if c.ctx.carrier.datagrams() {
		salt = c.engine.resources.control[0].qp.Num() // connections share addresses
	}
	n := salt + uint32(index) + uint32(epoch)*uint32(len(c.paths)|1)
	const golden = 0x278f // 2^14 over the golden ratio, odd: it spreads numbers in a row over all ports
	return 1<<14 | n*golden&0x3fff
}
