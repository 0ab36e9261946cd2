package main

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/internal/perf/measure"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// provider opens NICs; --provider names one.
type provider interface {
	// all opens every NIC once, to be described.
	all() (*nics, error)
	// open opens so many rails for each of two ends. Rail i of one end reaches rail i of the
	// other. Rails share nothing that separate NICs would not share. After an error nothing
	// is left open.
	open(rails int, impair []measure.Impair) (*nics, error)
}

// nics are open NICs of both ends. The caller closes them.
type nics struct {
	// ends are the rails of the initiator and of the target.
	ends [2][]ibverbx.RailConfig
	// closers close the NICs.
	closers closer.Stack
}

// contexts returns all NICs, rail by rail.
func (n *nics) contexts() (list []verbs.Context) {
	for i, rail := range n.ends[0] {
		list = append(list, rail.Context)
		if i < len(n.ends[1]) {
			list = append(list, n.ends[1][i].Context)
		}
	}
	return list
}

// close closes everything in reverse order and returns all errors.
func (n *nics) close() error { return n.closers.Close() }

// softNICs opens software NICs. Rail i has its own memory link between soft2i and soft2i+1.
type softNICs struct{}

func (p softNICs) all() (*nics, error) { return p.open(1, nil) }

// railLink is a link in memory. One that impairs packets is slower than a plain one.
func railLink(rail int, impair []measure.Impair) (softnic.Link, error) {
	imp := impairmentOf(rail, impair)
	if imp == (softnic.Impairment{}) {
		return softnic.NewMemoryLink(nil), nil
	}
	return softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(rail + 1), Impairment: imp})
}

// impairmentOf is what happens to the packets of a rail. What is said about that rail overrides what is said about all.
func impairmentOf(rail int, list []measure.Impair) (imp softnic.Impairment) {
	for _, all := range []bool{true, false} {
		for i := range list {
			if f := &list[i]; f.Does(rail) && (f.Rail < 0) == all {
				imp = softnic.Impairment{
					Loss: f.Loss, Duplicate: f.Duplicate, Reorder: f.Reorder, Corrupt: f.Corrupt, Delay: f.Delay, Jitter: f.Jitter, Rate: float64(f.Rate),
				}
			}
		}
	}
	return imp
}

func (softNICs) open(rails int, impair []measure.Impair) (*nics, error) {
	n := &nics{}
	for i := range rails {
		link, err := railLink(i, impair)
		if err != nil {
			return nil, errors.Join(err, n.close())
		}
		for end := range n.ends {
			if _, err := n.openSoft(link, end, fmt.Sprintf("soft%d", 2*i+end)); err != nil {
				return nil, errors.Join(err, n.close())
			}
		}
	}
	return n, nil
}

func (n *nics) openSoft(link softnic.Link, end int, name string) (*softnic.NIC, error) {
	nic, err := softnic.New(link, softnic.Config{Name: name})
	if err != nil {
		return nil, err
	}
	n.closers.Add(nic.Close)
	return nic, n.openRail(nic, end, 0)
}

// openRail opens a device and makes it the next rail of an end.
func (n *nics) openRail(device verbs.Device, end, port int) error {
	ctx, err := device.Open()
	if err != nil {
		return err
	}
	n.closers.Add(ctx.Close)
	n.ends[end] = append(n.ends[end], ibverbx.RailConfig{Context: ctx, Port: uint8(port)})
	return nil
}
