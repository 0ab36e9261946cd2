package softnic

import (
	"fmt"

	"ibverbx/verbs"
)

// ah is an address handle: a numbered path.
type ah struct {
	pd     *pd
	num    uint32
	path   *path
	closed bool
}

var _ verbs.SealedAH = (*ah)(nil)

func (d *pd) createAH(attr verbs.AHAttr) (verbs.AH, error) {
	g, err := d.ctx.nic.sealing(attr.Seal)
	if err == nil && g.any() {
		err = verbs.Invalidf("address vector: AnySeal is for QPs, an AH has one Seal")
	}
	if err != nil {
		return nil, err
	}
	p, err := d.ctx.nic.newPath(attr, true, g, nil)
	if err != nil {
		g.leave()
		return nil, err
	}
	a := &ah{pd: d, path: p}
	if a.num = d.ctx.nic.ahs.add(a); a.num == 0 {
		g.leave()
		return nil, verbs.ErrLimit
	}
	d.ahs.add(a)
	return a, nil
}

// newPath validates an address vector and returns its path, for datagrams or for a connection. The path
// is sealed unless g is nil. A sealed path uses association a if a matches the address.
func (n *NIC) newPath(attr verbs.AHAttr, datagrams bool, g *sealing, a *association) (*path, error) {
	setDefault(&attr.Port, 1)
	setDefault(&attr.HopLimit, 64)
	switch {
	case attr.Port != 1:
		return nil, fmt.Errorf("address vector: %w", errPort(int(attr.Port)))
	case attr.DGID.IsZero():
		return nil, verbs.Invalidf("address vector: no destination GID")
	case attr.SGIDIndex < 0 || attr.SGIDIndex >= len(n.gids):
		return nil, verbs.Invalidf("address vector: source GID index %d, the table has %d rows", attr.SGIDIndex, len(n.gids))
	case attr.FlowLabel >= 1<<20:
		return nil, verbs.Invalidf("address vector: flow label %#x has more than 20 bits", attr.FlowLabel)
	}
	if gid, port := splitGID(attr.DGID); port != 0 && n.core.udpNIC != nil {
		attr.DGID, attr.DLID = gid, port
	}
	if n.core.udpNIC != nil && attr.DGID.Addr().IsMulticast() {
		if err := n.aim(&attr, datagrams, g); err != nil {
			return nil, err
		}
	}
	p := &path{sgid: n.gids[attr.SGIDIndex].GID, dgid: attr.DGID, attr: attr, datagrams: datagrams, sealing: g}
	if n.core.udpNIC == nil {
		n.core.find(p)
		if l := n.core.traits.shm; l != nil && p.dgid == l.ring.from.sgid {
			p.neighbor = &l.peer
		}
		return p, nil
	}
	if err := n.port(g).setRoute(p, a); err != nil {
		return nil, err
	}
	return p, nil
}

func (a *ah) Handle() verbs.AHHandle { return verbs.AHHandle(a.num) }

// SealNumber implements verbs.SealedAH.
func (a *ah) SealNumber() uint32 {
	if g := a.path.sealing; g != nil {
		return g.greeting.Number()
	}
	return 0
}

func (a *ah) Close() error {
	c := a.pd.ctx.core
	c.mu.Lock()
	defer c.mu.Unlock()
	a.destroy()
	return nil
}

func (a *ah) destroy() {
	if a.closed {
		return
	}
	a.closed = true
	a.pd.ctx.nic.ahs.remove(a.num)
	a.pd.ahs.remove(a)
	a.path.sealing.leave()
}
