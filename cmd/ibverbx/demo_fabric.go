package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"ibverbx/internal/monitor"
	"ibverbx/softnic"
)

// The demo network: two rails with the rate and delay of a real wire, so that a viewer can follow their traffic.
const (
	demoRails     = 2
	demoRate      = 128 << 20 // bytes per second and rail; a small machine sustains more
	demoDelay     = 50 * time.Microsecond
	demoLoss      = 0.01
	demoMoreDelay = 5 * time.Millisecond
	demoSlow      = 10 // divisor of demoRate on a slow rail
)

// Rail faults, named by the resulting state.
const (
	faultPull  = "pulled"
	faultLoss  = "lossy"
	faultDelay = "delayed"
	faultSlow  = "slow"
)

// demoActions returns the buttons of each rail.
func demoActions() []monitor.Action {
	return []monitor.Action{
		{Name: faultPull, On: "Pull the cable", Off: "Plug the cable in", Key: "p"},
		{Name: faultLoss, On: "Lose 1 % of packets", Off: "Lose none", Key: "l"},
		{Name: faultDelay, On: "Delay by 5 ms", Off: "No delay", Key: "d"},
		{Name: faultSlow, On: "Slow to a tenth", Off: "Full speed", Key: "s"},
	}
}

// fabric holds the demo's NICs and links. act and faults are safe for concurrent use.
type fabric struct {
	nics
	rails []fabricRail

	mu sync.Mutex // guards the faults of all rails
}

// fabricRail is one link with a NIC at each end.
type fabricRail struct {
	link   *softnic.FaultLink
	nics   [2]*softnic.NIC
	faults []string // active faults, oldest first
}

// newFabric opens the NICs of both ends.
func newFabric() (*fabric, error) {
	f := &fabric{rails: make([]fabricRail, demoRails)}
	for i := range f.rails {
		r := &f.rails[i]
		var err error
		if r.link, err = softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(i + 1), Impairment: impairment(nil)}); err != nil {
			return nil, errors.Join(err, f.close())
		}
		for end := range r.nics {
			if r.nics[end], err = f.openSoft(r.link, end, fmt.Sprintf("soft%d", 2*i+end)); err != nil {
				return nil, errors.Join(err, f.close())
			}
		}
	}
	return f, nil
}

// impairment returns the link impairment for a set of active faults.
func impairment(faults []string) softnic.Impairment {
	imp := softnic.Impairment{Rate: demoRate, Delay: demoDelay}
	for _, name := range faults {
		switch name {
		case faultLoss:
			imp.Loss = demoLoss
		case faultDelay:
			imp.Delay += demoMoreDelay
		case faultSlow:
			imp.Rate = demoRate / demoSlow
		}
	}
	return imp
}

// faults returns a rail's active faults.
func (f *fabric) faults(rail int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.rails[rail].faults)
}

// act switches a rail fault on or off and returns a description of the change, which is empty if the state was already
// set.
func (f *fabric) act(rail int, fault string, on bool) (text string, err error) {
	if rail < 0 || rail >= len(f.rails) {
		return "", fmt.Errorf("there is no rail %d", rail)
	}
	text, ok := faultText(fault, on)
	if !ok {
		return "", fmt.Errorf("there is no action %q", fault)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.rails[rail]
	if slices.Contains(r.faults, fault) == on {
		return "", nil
	}
	if on {
		r.faults = append(r.faults, fault)
	} else {
		r.faults = slices.DeleteFunc(r.faults, func(name string) bool { return name == fault })
	}
	if fault == faultPull {
		for _, nic := range r.nics {
			nic.SetPort(!on)
		}
		return fmt.Sprintf(text, rail), nil
	}
	imp := impairment(r.faults)
	return fmt.Sprintf(text, rail), errors.Join(r.link.Impair(r.nics[0], r.nics[1], imp), r.link.Impair(r.nics[1], r.nics[0], imp))
}

// faultText returns the description of a change, as a format string with a verb for the rail number.
func faultText(fault string, on bool) (text string, ok bool) {
	texts, ok := map[string][2]string{
		faultPull:  {"the cable of rail %d is plugged in", "the cable of rail %d is pulled"},
		faultLoss:  {"rail %d loses no packets", "rail %d loses 1 %% of its packets"},
		faultDelay: {"rail %d has its usual delay", "rail %d has 5 ms more delay"},
		faultSlow:  {"rail %d has its full speed", "rail %d is slowed to a tenth"},
	}[fault]
	if on {
		return texts[1], ok
	}
	return texts[0], ok
}
