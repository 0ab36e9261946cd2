package rig

import (
	"errors"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// OpenNICs opens a NIC on each link, for the Config.Open of a Node. wrap, if not nil, wraps each
// context. shut closes the NICs; it is valid even after an error.
func OpenNICs(links []softnic.Link, cfg softnic.Config, wrap func(verbs.Context) (verbs.Context, error)) (nics []*softnic.NIC, rails []ibverbx.RailConfig, shut func() error, err error) {
	shut = func() (err error) {
		for _, nic := range nics {
			err = errors.Join(err, nic.Close())
		}
		return err
	}
	for _, link := range links {
		nic, err := softnic.New(link, cfg)
		if err != nil {
			return nics, rails, shut, err
		}
		nics = append(nics, nic)
		ctx, err := nic.Open()
		if err == nil && wrap != nil {
			ctx, err = wrap(ctx)
		}
		if err != nil {
			return nics, rails, shut, err
		}
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	return nics, rails, shut, nil
}
