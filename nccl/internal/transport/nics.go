package transport

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// maxRails is the maximum number of rails.
const maxRails = ibverbx.MaxRails

// nics are open NICs, one per rail.
type nics struct {
	rails []ibverbx.RailConfig
	// base is on rails.
	base *ibverbx.Rails
	// soft are software NICs, one per rail; nil if the NICs are real.
	soft []*softnic.NIC
	// names describe the rails to the user.
	names []string
	// addrs are the addresses that peers dial.
	addrs []netip.Addr
	// speed is the sum of the ports' rates in Mbit/s, 0 if unknown.
	speed int
	// pciPath is the directory of the first NIC's PCI device, empty if unknown.
	pciPath string
	// close closes the NICs.
	close closer.Stack
}

// openNICs opens real NICs if Addrs is empty and a port is active, otherwise Parts sets of software NICs. After an error, close what it
// returns.
func openNICs(o *Options) ([]*nics, error) {
	hosts := o.Addrs
	if len(hosts) == 0 {
		all, err := net.Interfaces()
		if err != nil {
			return nil, fmt.Errorf("network interfaces: %w", err)
		}
		if hosts = hostAddrs(all, o.Interfaces); len(hosts) == 0 {
			return nil, verbs.Invalidf("no network interface has an address (NCCL_SOCKET_IFNAME=%s)", o.Interfaces)
		}
	}
	if len(o.Addrs) == 0 {
		real := &nics{addrs: hosts[:min(len(hosts), maxAddrs)]}
		if real.openReal(); len(real.rails) > 0 {
			return []*nics{real}, real.complete(o)
		}
	}
	var sets []*nics
	for range min(max(o.Parts, 1), MaxWorkers) {
		n := &nics{addrs: hosts[:min(len(hosts), maxAddrs)]}
		sets = append(sets, n)
		if err := n.openSoft(hosts[:min(len(hosts), maxRails)], o); err != nil {
			return sets, err
		}
		if err := n.complete(o); err != nil {
			return sets, err
		}
	}
	return sets, nil
}

// complete applies the settings and sets base.
func (n *nics) complete(o *Options) (err error) {
	if err = o.Settings.Apply(n.rails); err != nil {
		return err
	}
	if n.base, err = ibverbx.NewRails(n.rails...); err == nil {
		n.close.Add(n.base.Close)
	}
	return err
}

// openReal opens the real NICs whose port is active. Without libibverbs there are none.
func (n *nics) openReal() {
	opened, err := peer.OpenDevices("")()
	if err != nil {
		return
	}
	for _, r := range opened.Rails {
		port, err := r.Context.QueryPort(int(max(r.Port, 1)))
		if err != nil || port.State != verbs.PortActive {
			continue
		}
		n.rails = append(n.rails, r)
		n.names = append(n.names, fmt.Sprintf("%s:%d", r.Context.Device().Name(), max(r.Port, 1)))
		n.speed += int(port.SpeedMbps)
	}
	if len(n.rails) == 0 {
		_ = opened.Close() // no rail uses them
		return
	}
	n.close.Add(opened.Close)
	n.pciPath = pciPath("/sys/class/infiniband/" + n.rails[0].Context.Device().Name() + "/device")
}

// sourcePorts is the number of source ports that the software NICs of an address have together, on networks that distribute flows by them.
const sourcePorts = 16

// openSoft opens a software NIC on each address.
func (n *nics) openSoft(addrs []netip.Addr, o *Options) error {
	for i, a := range addrs {
		cfg := softnic.UDPConfig{Impairment: softnic.Impairment{Loss: o.Loss}}
		if !a.IsLoopback() {
			cfg.Sockets = sourcePorts / max(o.Parts, 1)
		}
		link, err := softnic.NewUDPLink(&cfg)
		if err != nil {
			return err
		}
		nic, err := softnic.New(link, softnic.Config{Name: fmt.Sprintf("soft%d", i), Addr: a})
		if err != nil {
			return fmt.Errorf("software NIC on %v: %w", a, err)
		}
		n.close.Add(nic.Close)
		ctx, err := nic.Open()
		if err != nil {
			return fmt.Errorf("software NIC on %v: %w", a, err)
		}
		n.soft = append(n.soft, nic)
		n.rails = append(n.rails, ibverbx.RailConfig{Context: ctx})
		n.names = append(n.names, fmt.Sprintf("%s on %v", nic.Name(), a))
	}
	return nil
}

// hostAddrs returns one address per interface that selection allows: the first IPv4 address, otherwise the first IPv6 one. Without a
// selection it omits loopback and container interfaces, unless there are no others.
func hostAddrs(all []net.Interface, selection string) []netip.Addr {
	var addrs, loopback []netip.Addr
	for i := range all {
		in := &all[i]
		if in.Flags&net.FlagUp == 0 || selection != "" && !selected(in.Name, selection) {
			continue
		}
		a, ok := firstAddr(in)
		switch {
		case !ok:
		case selection != "" && !strings.HasPrefix(selection, "^"):
			addrs = append(addrs, a)
		case in.Flags&net.FlagLoopback != 0:
			loopback = append(loopback, a)
		case selection != "" || !container(in.Name):
			addrs = append(addrs, a)
		}
	}
	if len(addrs) == 0 {
		return loopback
	}
	return addrs
}

// container reports whether an interface connects containers or virtual machines of this host.
func container(name string) bool {
	for _, prefix := range []string{"docker", "veth", "virbr", "br-", "cni", "flannel", "cali"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// selected implements the rules of NCCL_SOCKET_IFNAME: a list of prefixes, of names after "=", or of excluded prefixes after "^".
func selected(name, selection string) bool {
	list, exclude := strings.CutPrefix(selection, "^")
	list, exact := strings.CutPrefix(list, "=")
	for want := range strings.SplitSeq(list, ",") {
		if want, _, _ = strings.Cut(want, ":"); want != "" && (name == want || !exact && strings.HasPrefix(name, want)) {
			return !exclude
		}
	}
	return exclude
}

// firstAddr returns the address of an interface that a rail uses.
func firstAddr(in *net.Interface) (found netip.Addr, ok bool) {
	list, err := in.Addrs()
	if err != nil {
		return found, false
	}
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if p.Addr().Unmap().Is4() {
			return p.Addr().Unmap(), true
		}
		if !ok {
			found, ok = p.Addr(), true
		}
	}
	return found, ok
}

// pciPath returns the directory of a PCI device, empty if path does not lead to one.
func pciPath(path string) string {
	target, err := filepath.EvalSymlinks(path)
	if err != nil || !strings.Contains(target, "/pci") {
		return ""
	}
	return target
}
