package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"ibverbx/internal/perf/measure"
	"ibverbx/softnic"
)

// remote returns the provider of NICs that reach another process. local is the local address of the connection.
// Software NICs are the default, because they work on every host.
func (f *perfFlags) remote(local net.Addr) (opener, error) {
	switch f.nics.name {
	case providerRDMACore:
		return rdmaNICs{spec: f.nics.devices}, nil
	case providerSoftNIC, providerAuto:
		on, err := nicAddrs(local, f.addrs)
		return udpNICs{addrs: on, capture: &f.capture}, err
	}
	_, err := f.nics.choose(io.Discard)
	return nil, err
}

// opener opens the NICs of one end: up to Config.Rails of them.
type opener interface {
	openEnd(c *measure.Config) (*nics, error)
}

// nicAddrs returns the addresses of software NICs, in rail order.
func nicAddrs(local net.Addr, addrs []string) (on []netip.Addr, err error) {
	for _, list := range addrs {
		for part := range strings.SplitSeq(list, ",") {
			a, err := netip.ParseAddr(part)
			if err != nil {
				return nil, refuse("--addr "+part, "this is not an IP address", "use an address of this host, such as 10.0.0.1")
			}
			on = append(on, a)
		}
	}
	if len(on) > 0 {
		return on, nil
	}
	ap, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return nil, fmt.Errorf("the address %s of this side: %w", local, err)
	}
	return []netip.Addr{ap.Addr().Unmap()}, nil
}

// udpNICs opens software NICs that use RoCE v2 over UDP. Rails use the addresses round-robin. Rails share a link, so
// one goroutine can poll for all of them. A rail gets a separate link if packets are captured or impaired, because
// both are per-link settings, or if the shared link already uses its address.
type udpNICs struct {
	addrs   []netip.Addr
	capture *captureFlags
}

func (u udpNICs) openEnd(c *measure.Config) (_ *nics, err error) {
	n := &nics{}
	var link *softnic.UDPLink
	var on map[netip.Addr]bool // addresses in use on the link
	for i := range c.Rails {
		addr := u.addrs[i%len(u.addrs)].Unmap()
		if link == nil || on[addr] || u.capture.on() || len(c.Impair) > 0 {
			if link, err = u.link(i, c.Impair); err != nil {
				return nil, errors.Join(err, n.close())
			}
			on = make(map[netip.Addr]bool)
		}
		on[addr] = true
		if err = n.openUDP(link, softnic.Config{Name: softName(i), Addr: addr}); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

// softName names a rail's software NIC.
func softName(rail int) string { return fmt.Sprintf("soft%d", rail) }

// link creates a link for a rail and for later rails that can share it.
func (u udpNICs) link(rail int, impair []measure.Impair) (*softnic.UDPLink, error) {
	cfg := u.capture.udpConfig(rail, softName(rail), u.addrs[rail%len(u.addrs)])
	cfg.Seed, cfg.Impairment = uint64(rail+1), impairmentOf(rail, impair)
	return softnic.NewUDPLink(cfg)
}

func (n *nics) openUDP(link *softnic.UDPLink, cfg softnic.Config) error {
	nic, err := softnic.New(link, cfg)
	if err != nil {
		return err
	}
	n.closers.Add(nic.Close)
	return n.openRail(nic, 0, 0)
}

// openEnd opens the first Config.Rails usable devices, or all if there are fewer.
func (r rdmaNICs) openEnd(c *measure.Config) (*nics, error) {
	if err := unimpaired(c.Impair); err != nil {
		return nil, err
	}
	active, err := r.found()
	if err != nil {
		return nil, err
	}
	return openRails(active[:min(c.Rails, len(active))])
}
