package main

import (
	"errors"
	"fmt"

	"ibverbx/peer"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// rdmaNICs opens hardware NICs. Rail i uses chosen device 2i on one end and 2i+1 on the other. With too few devices
// both ends share one, and packets loop back on it.
type rdmaNICs struct{ spec string }

// choice is a device and one of its ports.
type choice = rdmacore.Choice[*rdmacore.Device]

// chosen returns the devices selected by --devices.
func (r rdmaNICs) chosen() ([]choice, error) {
	lib, err := rdmacore.Load(rdmacore.Config{})
	if err != nil {
		return nil, err
	}
	devices, err := lib.Devices()
	if err != nil {
		return nil, err
	}
	return rdmacore.Select(r.spec, devices)
}

// usable returns the chosen devices with an active port.
func (r rdmaNICs) usable() (active []choice, err error) {
	chosen, err := r.chosen()
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
	return active, err
}

// found is usable with a next step added to errors. An empty list is rdmacore.ErrNoDevice.
func (r rdmaNICs) found() ([]choice, error) {
	active, err := r.usable()
	if err == nil && len(active) == 0 {
		err = fmt.Errorf("%w: no port of the chosen devices is active", rdmacore.ErrNoDevice)
	}
	return active, explained(err)
}

// explained adds the next step to an rdmacore error.
func explained(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--provider rdmacore: %w (run ibverbx doctor for details, or use --provider softnic)", err)
}

func (r rdmaNICs) all() (*nics, error) {
	chosen, err := r.chosen()
	if err != nil {
		return nil, explained(err)
	}
	return openRails(chosen)
}

// openRails opens each choice as a rail of the first end.
func openRails(chosen []choice) (*nics, error) {
	n := &nics{}
	for _, c := range chosen {
		if err := n.openRail(c.Device, 0, c.Port); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

func (r rdmaNICs) open(rails int, impair []peer.Impair) (*nics, error) {
	if len(impair) > 0 { // in a process without --provider or --devices, where settings do not refuse it
		return nil, refuse("--impair "+impair[0].String(), "packets of real NICs do not pass through this program", "use --provider softnic")
	}
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
