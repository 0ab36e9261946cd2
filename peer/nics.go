package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

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
		var n NICs
		var held closer.Stack
		n.Close = held.Close
		for i, addr := range addrs {
			ctx, err := openSoft(&held, fmt.Sprintf("soft%d", i), addr)
			if err != nil {
				return NICs{}, errors.Join(fmt.Errorf("rail %d on %v: %w", i, addr, err), held.Close())
			}
			n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx})
		}
		return n, nil
	}
}

func openSoft(c *closer.Stack, name string, addr netip.Addr) (verbs.Context, error) {
	link, err := softnic.NewUDPLink(nil)
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

// OpenDevices returns a Config.Open that opens real NICs through libibverbs, one rail per device in spec ("mlx5_0:1,mlx5_1"; see
// rdmacore.Select), at most ibverbx.MaxRails. An empty spec selects all. It fails if libibverbs cannot be loaded or no device matches.
func OpenDevices(spec string) func() (NICs, error) {
	return func() (NICs, error) {
		lib, err := rdmacore.Load(rdmacore.Config{})
		if err != nil {
			return NICs{}, err
		}
		all, err := lib.Devices()
		if err != nil {
			return NICs{}, err
		}
		chosen, err := rdmacore.Select(spec, all)
		if err != nil {
			return NICs{}, err
		}
		var n NICs
		var held closer.Stack
		n.Close = held.Close
		for _, one := range chosen[:min(len(chosen), ibverbx.MaxRails)] {
			ctx, err := one.Device.Open()
			if err != nil {
				return NICs{}, errors.Join(err, held.Close())
			}
			held.Add(ctx.Close)
			n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx, Port: uint8(one.Port)})
		}
		return n, nil
	}
}

// openOn opens a software NIC on the connection's local address.
func openOn(local net.Addr) (NICs, error) {
	ap, err := netip.ParseAddrPort(local.String())
	if err != nil {
		return NICs{}, fmt.Errorf("local address %v: %w", local, err)
	}
	return OpenSoftNICs(ap.Addr().Unmap())()
}
