package peer

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/rdmacore"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// OpenSoftNICs returns a Config.Open that opens software NICs. They use RoCEv2 over UDP and need neither hardware nor privileges. Each
// address must belong to this host and becomes one rail with a separate link.
func OpenSoftNICs(addrs ...netip.Addr) func() (NICs, error) {
	return func() (NICs, error) {
		f := Fabric{Addrs: addrs}
		return f.openSoftNICs()
	}
}

// OpenDevices returns a Config.Open that opens real NICs through libibverbs, one rail per device in spec ("mlx5_0:1,mlx5_1"; see
// rdmacore.Select), at most ibverbx.MaxRails. An empty spec selects all. It fails if libibverbs cannot be loaded or no device matches.
func OpenDevices(spec string) func() (NICs, error) {
	return func() (NICs, error) {
		f := Fabric{Devices: spec}
		return f.openDevices(false)
	}
}

// openSoftNICs opens a software NIC per rail, each with a separate link.
func (f *Fabric) openSoftNICs() (NICs, error) {
	addrs := f.Addrs
	if len(addrs) == 0 && f.Local.IsValid() {
		addrs = []netip.Addr{f.Local}
	}
	var n NICs
	var held closer.Stack
	n.Close = held.Close
	count := cmp.Or(f.RailCount, len(addrs))
	if len(addrs) == 0 {
		count = 0
	}
	for i := range count {
		addr := addrs[i%len(addrs)].Unmap()
		ctx, err := f.openSoft(&held, i, addr)
		if err != nil {
			return NICs{}, errors.Join(fmt.Errorf("rail %d on %v: %w", i, addr, err), held.Close())
		}
		n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx})
	}
	return n, nil
}

func (f *Fabric) openSoft(c *closer.Stack, rail int, addr netip.Addr) (verbs.Context, error) {
	name := fmt.Sprintf("soft%d", rail)
	cfg := &softnic.UDPConfig{Seed: uint64(rail + 1), Impairment: ImpairmentOf(rail, f.Impair)}
	f.Capture.attach(cfg, rail, name, addr)
	link, err := softnic.NewUDPLink(cfg)
	if err != nil {
		return nil, err
	}
	nic, err := softnic.New(link, softnic.Config{Name: name, Addr: addr})
	if err != nil {
		return nil, err
	}
	c.Add(nic.Close)
	return nic.Open()
}

// openDevices opens real NICs. With more than RailCount, it leaves out inactive ports first. active makes it fail without an active
// port.
func (f *Fabric) openDevices(active bool) (n NICs, err error) {
	lib, err := rdmacore.Load(rdmacore.Config{})
	if err != nil {
		return NICs{}, err
	}
	all, err := lib.Devices()
	if err != nil {
		return NICs{}, err
	}
	chosen, err := rdmacore.Select(f.Devices, all)
	if err != nil {
		return NICs{}, err
	}
	var held closer.Stack
	n.Close = held.Close
	var up []bool
	for _, one := range chosen {
		ctx, err := one.Device.Open()
		if err != nil {
			return NICs{}, errors.Join(err, held.Close())
		}
		held.Add(ctx.Close)
		n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx, Port: uint8(one.Port)})
		p, err := ctx.QueryPort(max(one.Port, 1))
		up = append(up, err == nil && p.State == verbs.PortActive)
	}
	if active && !slices.Contains(up, true) {
		return NICs{}, errors.Join(fmt.Errorf("%w: no port is active", rdmacore.ErrNoDevice), held.Close())
	}
	for i := 0; len(n.Rails) > cmp.Or(f.RailCount, ibverbx.MaxRails); { // leave out the last inactive port, or the last one
		if i = len(n.Rails) - 1; slices.Contains(up, false) {
			for up[i] {
				i--
			}
		}
		n.Rails, up = slices.Delete(n.Rails, i, i+1), slices.Delete(up, i, i+1)
	}
	return n, nil
}

// localAddr returns the address of this host on a connection.
func localAddr(local net.Addr) (netip.Addr, error) {
	ap, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("local address %v: %w", local, err)
	}
	return ap.Addr().Unmap(), nil
}

// close closes the NICs.
func (n *NICs) close() error {
	if n.Close == nil {
		return nil
	}
	return n.Close()
}
