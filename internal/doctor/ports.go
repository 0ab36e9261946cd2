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
				"iWARP only connects through librdmacm and has neither immediate data in WRITEs nor atomics. ibverbx does not support it.",
				"Use a RoCE or InfiniBand device. Some NICs support both: devlink dev param show lists the setting.")
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

// describe returns the most important facts about a port.
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
	const means = "Nothing can be sent through it. Queue pairs on it fail after their retries."
	if p.LinkLayer != "Ethernet" {
		if p.State == "INIT" || p.State == "ARMED" {
			e.report("ports", Problem, found, "The cable works, but no subnet manager has configured the port. InfiniBand needs one in every fabric.",
				"Start the subnet manager of the fabric, in the switch or with opensm on one of the hosts.")
			return
		}
		e.report("ports", Problem, found, means, "Check the cable and the switch port. ibstat and ibdiagnet show more.")
		return
	}
	netdev := p.NetDev
	const up = 1 // IFF_UP
	switch {
	case netdev == "":
		e.report("ports", Problem, found, means, "No network interface belongs to the port. rdma link shows the kernel's view.")
	case e.number("/sys/class/net/"+netdev+"/flags")&up == 0:
		e.report("ports", Problem, fmt.Sprintf("%s: its netdev %s is switched off", found, netdev), means,
			e.onHost("ip link set "+netdev+" up"))
	default:
		e.report("ports", Problem, fmt.Sprintf("%s: its netdev %s is switched on but has no link", found, netdev), means,
			"Check the cable, the transceiver and the switch port. ethtool "+netdev+" shows the link state of the NIC.")
	}
}

// judgeGIDs reports whether an Ethernet port has an address that peers can reach. It returns
// whether the port has any address at all.
func (e *exam) judgeGIDs(where string, p *Port) bool {
	v2 := slices.DeleteFunc(slices.Clone(p.GIDs), func(g GID) bool { return g.Type != "RoCE v2" })
	global := slices.DeleteFunc(slices.Clone(v2), func(g GID) bool { return g.address.IsLinkLocalUnicast() })
	address := e.onHost(fmt.Sprintf("give the netdev %s an address: ip addr add 192.0.2.1/24 dev %s (with an address of your network)", orWord(p.NetDev), orWord(p.NetDev)))
	switch {
	case len(p.GIDs) == 0:
		e.report("gids", Problem, where+" has no GID", "RoCE takes its addresses from the netdev, but the netdev has none.", address)
		return false
	case len(v2) == 0:
		e.report("gids", Warning, where+" has GIDs of RoCE v1 only",
			"RoCE v1 is not routed by IP. It only reaches peers in the same Ethernet segment that also use v1.",
			"Check that the NIC and its driver support RoCE v2.", address)
	case len(global) == 0:
		e.report("gids", Warning, where+" has link-local GIDs only",
			"It only reaches peers in the same Ethernet segment. Routers do not forward its packets.", address)
	default:
		best := global[0]
		if i := slices.IndexFunc(global, func(g GID) bool { return g.address.Is4In6() }); i >= 0 {
			best = global[i]
		}
		e.ok("gids", "%s has a routable GID: row %d, %s, %s", where, best.Index, best.GID, best.Type)
	}
	return true
}

// judgeMTU reports an interface whose MTU keeps RDMA packets small.
func (e *exam) judgeMTU(where string, p *Port) {
	if p.MTUNetDev == 0 {
		return
	}
	if p.MTU == 4096 {
		e.ok("mtu", "%s: the MTU of %s is %d, so the RDMA MTU is %d", where, p.NetDev, p.MTUNetDev, p.MTU)
		return
	}
	e.report("mtu", Note, fmt.Sprintf("%s: the MTU of %s is %d, so the RDMA MTU is %d of 4096", where, p.NetDev, p.MTUNetDev, p.MTU),
		"Large messages need more packets than necessary. That works but may be slower than the NIC's rate.",
		e.onHost(fmt.Sprintf("ip link set %s mtu 9000, if every switch on the path and the peer support it; 4192 is enough.", p.NetDev)))
}

// orWord returns the name, or a placeholder if it is unknown.
func orWord(netdev string) string {
	if netdev == "" {
		return "eth0"
	}
	return netdev
}
