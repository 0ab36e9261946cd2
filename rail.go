package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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
	rails    []rail
	watching sync.Mutex
	events   [8]verbs.Event
}

// rail is one NIC port and a protection domain on it.
type rail struct {
	cfg  RailConfig
	name string
	attr verbs.DeviceAttr
	mtu  int
	mbps uint32 // 0 if it is not known
	pd   verbs.PD
	// falls counts how often the port or the device was lost.
	falls atomic.Uint64
	// deaths counts how often a QP was lost without a completion that would tell.
	deaths atomic.Uint64
	fatal  bool // the device has said so
	// refusals are the numbers of the QPs that were the last to refuse what a peer asked
	// for; refused counts all of them.
	refusals [16]uint32
	refused  int
}

// NewRails allocates a protection domain on every NIC.
func NewRails(cfgs ...RailConfig) (*Rails, error) {
	if len(cfgs) == 0 || len(cfgs) > MaxRails {
		return nil, fmt.Errorf("make rails: %w", verbs.Invalidf("%d rails: want 1 to %d", len(cfgs), MaxRails))
	}
	r := &Rails{rails: make([]rail, len(cfgs))}
	for i, cfg := range cfgs {
		if err := r.rails[i].open(cfg); err != nil {
			r.rails = r.rails[:i]
			return nil, errors.Join(fmt.Errorf("make rails: rail %d: %w", i, err), r.Close())
		}
	}
	return r, nil
}

func (r *rail) open(cfg RailConfig) error {
	if cfg.Context == nil {
		return verbs.Invalidf("RailConfig.Context is nil")
	}
	if cfg.Port == 0 {
		cfg.Port = 1
	}
	attr, err := cfg.Context.QueryDevice()
	if err != nil {
		return err
	}
	port, err := cfg.Context.QueryPort(int(cfg.Port))
	if err != nil {
		return err
	}
	pd, err := cfg.Context.AllocPD()
	if err != nil {
		return err
	}
	r.cfg, r.name, r.attr, r.pd = cfg, cfg.Context.Device().Name(), attr, pd
	r.mtu, r.mbps = port.ActiveMTU.Bytes(), port.SpeedMbps
	return nil
}

// watch takes the asynchronous events of the NICs and counts those that take a rail or a QP
// down.
func (r *Rails) watch() {
	r.watching.Lock()
	defer r.watching.Unlock()
	for i := range r.rails {
		one := &r.rails[i]
		n, err := one.cfg.Context.Events(r.events[:])
		for _, e := range r.events[:n] {
			switch {
			case e.Type == verbs.EventPortErr && (e.Port == 0 || e.Port == one.cfg.Port):
				one.falls.Add(1)
			case e.Type == verbs.EventDeviceFatal:
				one.falls.Add(1)
				one.fatal = true
			case e.Type == verbs.EventQPFatal:
				one.deaths.Add(1)
			case (e.Type == verbs.EventQPAccessErr || e.Type == verbs.EventQPReqErr) && e.QP != nil:
				one.refusals[one.refused%len(one.refusals)] = e.QP.Num()
				one.refused++
			}
		}
		if errors.Is(err, verbs.ErrDeviceFatal) && !one.fatal {
			one.fatal = true
			one.falls.Add(1)
		}
		if err == nil && n == 0 {
			one.fatal = false
		}
	}
}

// hasRefused reports whether a QP has ended, not long ago, because it refused what its peer
// asked for.
func (r *Rails) hasRefused(rail int, qpn uint32) bool {
	r.watch()
	r.watching.Lock()
	defer r.watching.Unlock()
	one := &r.rails[rail]
	return slices.Contains(one.refusals[:min(one.refused, len(one.refusals))], qpn)
}

// policy is what AutoPolicy means on these rails.
func (r *Rails) policy() Policy {
	for i := range r.rails {
		if r.rails[i].mbps != r.rails[0].mbps {
			return TwoChoices
		}
	}
	return RoundRobin
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
