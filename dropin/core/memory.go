//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"ibverbx/verbs"
)

func (l *library) allocPD(ctx uint32) (uint32, error) {
	x := l.contexts.get(ctx)
	if x == nil {
		return 0, gone
	}
	pd, err := x.AllocPD()
	if err != nil {
		return 0, err
	}
	return l.pds.add(&domain{pd, x}), nil
}

func (l *library) deallocPD(n uint32) error {
	d := l.pds.get(n)
	if d == nil {
		return gone
	}
	if err := d.Close(); err != nil {
		return err
	}
	l.pds.remove(n)
	return nil
}

// mapper is implemented by PDs of softnic.
type mapper interface {
	RegisterMemoryAt(m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
	ReregisterMemoryAt(old verbs.MR, m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
}

// register registers the program's memory, which the program keeps mapped until deregistration.
func (l *library) register(pd uint32, b []byte, iova uint64, access verbs.Access) (n, key uint32, err error) {
	d := l.pds.get(pd)
	if d == nil {
		return 0, 0, gone
	}
	m, err := verbs.AdoptMemory(b)
	if err != nil {
		return 0, 0, err
	}
	mr, err := d.PD.(mapper).RegisterMemoryAt(m, iova, access)
	if err != nil {
		return 0, 0, err
	}
	return l.mrs.add(&region{mr}), mr.LKey(), nil
}

// reregister changes a region, which keeps its number and key.
func (l *library) reregister(n, pd uint32, b []byte, iova uint64, access verbs.Access) error {
	r, d := l.mrs.get(n), l.pds.get(pd)
	if r == nil || d == nil {
		return gone
	}
	m, err := verbs.AdoptMemory(b)
	if err != nil {
		return err
	}
	mr, err := d.PD.(mapper).ReregisterMemoryAt(r.MR, m, iova, access)
	if err != nil {
		return err
	}
	r.MR = mr
	return nil
}

func (l *library) deregister(n uint32) error {
	m := l.mrs.get(n)
	if m == nil {
		return gone
	}
	if err := m.Close(); err != nil {
		return err
	}
	l.mrs.remove(n)
	return nil
}
