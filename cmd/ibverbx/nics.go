package main

import (
	"errors"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// nics are the devices of this process: two software NICs on one memory link.
type nics struct {
	contexts []verbs.Context
	closers  []func() error
}

// openNICs makes and opens soft0 and soft1. The caller closes them.
func openNICs() (*nics, error) {
	n := &nics{}
	link := softnic.NewMemoryLink(nil)
	for _, name := range []string{"soft0", "soft1"} {
		if err := n.open(link, name); err != nil {
			return nil, errors.Join(err, n.close())
		}
	}
	return n, nil
}

func (n *nics) open(link *softnic.MemoryLink, name string) error {
	nic, err := softnic.New(link, softnic.Config{Name: name})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, nic.Close)
	ctx, err := nic.Open()
	if err != nil {
		return err
	}
	n.closers = append(n.closers, ctx.Close)
	n.contexts = append(n.contexts, ctx)
	return nil
}

// close closes everything in reverse order and returns all errors.
func (n *nics) close() error {
	var errs []error
	for i := len(n.closers) - 1; i >= 0; i-- {
		errs = append(errs, n.closers[i]())
	}
	n.closers = nil
	return errors.Join(errs...)
}
