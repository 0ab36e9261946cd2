package doctor

import (
	"fmt"
	"slices"
)

// judgePorts reports the state of every port, its GIDs, and the MTU of its interface.
func (e *exam) judgePorts() {
	for i := range e.Devices {
		d := &e.Devices[i]
		if d.NodeType == "RNIC" {
			e.report("devices", Problem, d.Name+" is an iWARP device",
				"iWARP connects through librdmacm only, has no immediate data in WRITEs and no atomics. ibverbx does not use it.",
				"Use a RoCE or InfiniBand device. Some NICs can do both: devlink dev param show lists the switch.")
			continue
		}
		for j := range d.Ports {
			p := &d.Ports[j]
			where := fmt.Sprintf("%s port %d", d.Name, p.Number)
			if p.State != "ACTIVE" {
				e.portDown(where, p)
				continue
			}
			e.ok("ports", "%s is active%s", where, describe(p))
			if p.LinkLayer == "Ethernet" {
				e.judgeMTU(where, p)
				d.live = e.judgeGIDs(where, p) || d.live
				continue
			}
			d.live = true
		}
	}
}

// describe tells about a port what people look for first.
func describe(p *Port) string {
	s := ": " + p.LinkLayer
	if p.Rate != "" {
		s += ", " + p.Rate
	}
	if p.NetDev != "" {
		s += ", netdev " + p.NetDev
	}
	return s
}

// portDown reports a port that is not active.
func (e *exam) portDown(where string, p *Port) {
	found := fmt.Sprintf("%s is %s (physical state %s)", where, p.State, p.Physical)
	const means = "Nothing can be sent through it: a queue pair on it ends in an error after its retries."
	if p.LinkLayer != "Ethernet" {
		if p.State == "INIT" || p.State == "ARMED" {
			e.report("ports", Problem, found, "The cable works, but no subnet manager has configured the port. InfiniBand needs one in every fabric.",
				"Start the subnet manager of the fabric: in the switch, or opensm on one of the hosts.")
			return
		}
		e.report("ports", Problem, found, means, "Look at the cable and at the port of the switch. ibstat and ibdiagnet say more.")
		return
	}
	netdev := p.NetDev
	const up = 1 // IFF_UP
	switch {
	case netdev == "":
		e.report("ports", Problem, found, means, "No network interface belongs to the port; rdma link shows how the kernel sees it.")
	case e.number("/sys/class/net/"+netdev+"/flags")&up == 0:
		e.report("ports", Problem, fmt.Sprintf("%s: its netdev %s is switched off", found, netdev), means,
			e.onHost("ip link set "+netdev+" up"))
	default:
		e.report("ports", Problem, fmt.Sprintf("%s: its netdev %s is switched on but has no link", found, netdev), means,
			"Look at the cable, the transceiver and the port of the switch: ethtool "+netdev+" says what the NIC sees.")
	}
}

// judgeGIDs reports whether an Ethernet port has an address that peers can reach, and
// says whether it has any address at all.
func (e *exam) judgeGIDs(where string, p *Port) bool {
	v2 := slices.DeleteFunc(slices.Clone(p.GIDs), func(g GID) bool { return g.Type != "RoCE v2" })
	global := slices.DeleteFunc(slices.Clone(v2), func(g GID) bool { return g.address.IsLinkLocalUnicast() })
	address := e.onHost(fmt.Sprintf("give the netdev %s an address: ip addr add 192.0.2.1/24 dev %s (with an address of your network)", orWord(p.NetDev), orWord(p.NetDev)))
	switch {
	case len(p.GIDs) == 0:
		e.report("gids", Problem, where+" has no GID", "RoCE takes its addresses from the netdev, and the netdev has none.", address)
		return false
	case len(v2) == 0:
		e.report("gids", Warning, where+" has GIDs of RoCE v1 only",
			"RoCE v1 is not routed by IP: it reaches peers in the same Ethernet segment that speak v1 as well.",
			"Check that the NIC and its driver can do RoCE v2.", address)
	case len(global) == 0:
		e.report("gids", Warning, where+" has link-local GIDs only",
			"It reaches peers in the same Ethernet segment, and no router passes its packets on.", address)
	default:
		best := global[0]
		if i := slices.IndexFunc(global, func(g GID) bool { return g.address.Is4In6() }); i >= 0 {
			best = global[i]
		}
		e.ok("gids", "%s has a routable GID: row %d, %s, %s", where, best.Index, best.GID, best.Type)
	}
	return true
}

// judgeMTU reports an interface that keeps RDMA packets small.
func (e *exam) judgeMTU(where string, p *Port) {
	if p.MTUNetDev == 0 {
		return
	}
	if p.MTU == 4096 {
		e.ok("mtu", "%s: the MTU of %s is %d, so the RDMA MTU is %d", where, p.NetDev, p.MTUNetDev, p.MTU)
		return
	}
	e.report("mtu", Note, fmt.Sprintf("%s: the MTU of %s is %d, so the RDMA MTU is %d of 4096", where, p.NetDev, p.MTUNetDev, p.MTU),
		"Large messages take more packets than they must. It works, and the NIC's rate may suffer.",
		e.onHost(fmt.Sprintf("ip link set %s mtu 9000, if every switch on the way and the peer have it too; 4192 is enough.", p.NetDev)))
}

// orWord returns the name, or a word for it if it is not known.
func orWord(netdev string) string {
	if netdev == "" {
		return "eth0"
	}
	return netdev
}
