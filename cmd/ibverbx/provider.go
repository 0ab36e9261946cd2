package main

import (
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// provider opens NICs; --provider selects one.
type provider interface {
	// all opens every NIC once, for describing it.
	all() (*nics, error)
	// open opens the given number of rails for each of two ends. Rail i of one end reaches rail i of the other. Rails
	// are as independent as separate NICs. On error, all NICs are closed.
	open(rails int, impair []peer.Impair) (*nics, error)
}

// nics holds the open NICs of both ends. The caller closes them.
type nics struct {
	// ends holds the rails of the initiator and the target.
	ends [2][]ibverbx.RailConfig
	// closers close the NICs.
	closers closer.Stack
}

// contexts returns all NICs in rail order.
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

// softNICs opens software NICs. Rail i is a separate memory link between soft2i and soft2i+1.
type softNICs struct{}

func (p softNICs) all() (*nics, error) { return p.open(1, nil) }

// railLink creates a memory link. A link with impairments is slower than a plain one, and probes as a UDP link does.
func railLink(rail int, impair []peer.Impair) (softnic.Link, error) {
	imp := peer.ImpairmentOf(rail, impair)
	if imp == (softnic.Impairment{}) {
		return softnic.NewMemoryLink(nil), nil
	}
	return softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(rail + 1), Impairment: imp, ProbeAfter: 2 * time.Millisecond})
}

func (softNICs) open(rails int, impair []peer.Impair) (*nics, error) {
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

// softNIC returns the software NIC of a context, nil for a hardware NIC. wrapped is set if package reliable has wrapped the
// context.
func softNIC(ctx verbs.Context) (nic *softnic.NIC, wrapped bool) {
	device := ctx.Device()
	w, wrapped := device.(interface{ Unwrap() verbs.Device })
	if wrapped {
		device = w.Unwrap()
	}
	nic, _ = device.(*softnic.NIC)
	return nic, wrapped
}

// openRail opens a device as the next rail of an end.
func (n *nics) openRail(device verbs.Device, end, port int) error {
	ctx, err := device.Open()
	if err != nil {
		return err
	}
	n.closers.Add(ctx.Close)
	n.ends[end] = append(n.ends[end], ibverbx.RailConfig{Context: ctx, Port: uint8(port)})
	return nil
}
