package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// MaxRails is how many rails a VirtualQP can use.
const MaxRails = 8

// RailConfig names one NIC port.
type RailConfig struct {
	// Context is the open NIC. It must outlive the Rails; nil is an error.
	Context verbs.Context
	// Port is the port of the NIC; zero means 1.
	Port uint8
	// GID is the source address; zero means that the provider chooses.
	GID verbs.GID
}

// Rails is a set of NIC ports that are used together. What is made of it (regions,
// completion queues, virtual QPs) is registered or present on every one of them. A rail
// is known by its index.
type Rails struct {
	rails []rail
}

// rail is one NIC port and a protection domain on it.
type rail struct {
	cfg  RailConfig
	name string
	attr verbs.DeviceAttr
	mtu  int
	pd   verbs.PD
}

// NewRails allocates a protection domain on every NIC.
func NewRails(cfgs ...RailConfig) (*Rails, error) {
	if len(cfgs) == 0 || len(cfgs) > MaxRails {
		return nil, fmt.Errorf("make rails: %w", verbs.Invalidf("%d rails: want 1 to %d", len(cfgs), MaxRails))
	}
	r := &Rails{}
	for i, cfg := range cfgs {
		one, err := openRail(cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make rails: rail %d: %w", i, err), r.Close())
		}
		r.rails = append(r.rails, one)
	}
	return r, nil
}

func openRail(cfg RailConfig) (rail, error) {
	if cfg.Context == nil {
		return rail{}, verbs.Invalidf("RailConfig.Context is nil")
	}
	if cfg.Port == 0 {
		cfg.Port = 1
	}
	attr, err := cfg.Context.QueryDevice()
	if err != nil {
		return rail{}, err
	}
	port, err := cfg.Context.QueryPort(int(cfg.Port))
	if err != nil {
		return rail{}, err
	}
	pd, err := cfg.Context.AllocPD()
	if err != nil {
		return rail{}, err
	}
	return rail{cfg: cfg, name: cfg.Context.Device().Name(), attr: attr, mtu: port.ActiveMTU.Bytes(), pd: pd}, nil
}

// Len is the number of rails.
func (r *Rails) Len() int { return len(r.rails) }

// Close frees the protection domains. What was made of the rails must be closed first.
func (r *Rails) Close() error {
	var errs []error
	for i := range r.rails {
		errs = append(errs, r.rails[i].pd.Close())
	}
	return errors.Join(errs...)
}
