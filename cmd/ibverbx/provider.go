package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ibverbx/internal/perf"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// Names of providers. Auto takes rdmacore if a device is usable, and softnic otherwise.
const (
	providerAuto     = "auto"
	providerSoftNIC  = "softnic"
	providerRDMACore = "rdmacore"
)

// providerFlags choose NICs.
type providerFlags struct {
	name    string
	devices string
}

func (f *providerFlags) define(cmd *cobra.Command, s streams) {
	fl := cmd.Flags()
	fl.StringVar(&f.name, "provider", cmp.Or(s.provider, providerAuto), "`NICs` to use: softnic (in software), rdmacore (real ones, through libibverbs) or auto")
	fl.StringVar(&f.devices, "devices", "", "`list` of devices of rdmacore: mlx5_0:1,mlx5_2, all whose names begin so; =mlx5_1 exactly; ^rxe all but (default all)")
}

// choose returns the provider, and why if that was left to this program.
func (f *providerFlags) choose() (p provider, why string, err error) {
	switch f.name {
	case providerSoftNIC:
		return softNICs{}, "", nil
	case providerRDMACore:
		return rdmaNICs{spec: f.devices}, "", nil
	case providerAuto:
		real := rdmaNICs{spec: f.devices}
		if found, err := real.usable(); err != nil {
			if f.devices != "" {
				return nil, "", err
			}
			return softNICs{}, fmt.Sprintf("softnic, because rdmacore has no usable device: %v", err), nil
		} else if len(found) > 0 {
			return real, fmt.Sprintf("rdmacore, because %s is usable", found[0].Device.Name()), nil
		}
		return softNICs{}, "softnic, because no port of a device of rdmacore is active", nil
	}
	return nil, "", &perf.ConfigError{
		Where: "--provider " + f.name, Problem: "there is no such provider", Fix: "use softnic, rdmacore or auto",
	}
}

// rdmaNICs opens real NICs. Rail i of one end is the device at 2i of those chosen, and of
// the other the next one; with fewer devices both ends share one, and packets return on it.
type rdmaNICs struct{ spec string }

// usable returns the chosen devices that have an active port.
func (r rdmaNICs) usable() ([]rdmacore.Choice[*rdmacore.Device], error) {
	lib, err := rdmacore.Load(rdmacore.Config{})
	if err != nil {
		return nil, err
	}
	devices, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	chosen, err := rdmacore.Select(r.spec, devices)
	if err != nil {
		return nil, err
	}
	var active []rdmacore.Choice[*rdmacore.Device]
	for _, c := range chosen {
		ctx, err := c.Device.Open()
		if err != nil {
			return nil, err
		}
		port, err := ctx.QueryPort(max(c.Port, 1))
		if err == nil && port.State == verbs.PortActive {
			active = append(active, c)
		}
		if err := errors.Join(err, ctx.Close()); err != nil {
			return nil, err
		}
	}
	return active, nil
}

// found is usable, with an error if there is none.
func (r rdmaNICs) found() ([]rdmacore.Choice[*rdmacore.Device], error) {
	active, err := r.usable()
	if err == nil && len(active) == 0 {
		err = fmt.Errorf("%w: no port of the chosen devices is active", rdmacore.ErrNoDevice)
	}
	if err != nil {
		return nil, fmt.Errorf("--provider rdmacore: %w (ibverbx doctor says more; --provider softnic needs nothing)", err)
	}
	return active, nil
}

func (r rdmaNICs) all() (*nics, error) {
	lib, err := rdmacore.Load(rdmacore.Config{})
	if err != nil {
		return nil, fmt.Errorf("--provider rdmacore: %w (ibverbx doctor says more)", err)
	}
	devices, err := lib.Devices()
	if err != nil {
		return nil, fmt.Errorf("--provider rdmacore: %w (ibverbx doctor says more)", err)
	}
	chosen, err := rdmacore.Select(r.spec, devices)
	if err != nil {
		return nil, fmt.Errorf("--devices %s: %w", r.spec, err)
	}
	n := &nics{}
	for _, c := range chosen {
		if err := n.openRail(c.Device, 0, c.Port); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

func (r rdmaNICs) open(rails int) (*nics, error) {
	active, err := r.found()
	if err != nil {
		return nil, err
	}
	n := &nics{}
	for i := range rails {
		for end := range n.ends {
			c := active[i%len(active)]
			if len(active) >= 2*rails {
				c = active[2*i+end]
			} else if len(active) >= 2 && rails == 1 {
				c = active[end]
			}
			if err := n.openRail(c.Device, end, c.Port); err != nil {
				return nil, errors.Join(err, n.close())
			}
		}
	}
	return n, nil
}
