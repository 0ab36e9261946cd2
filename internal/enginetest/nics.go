package enginetest

import (
	"errors"
	"sync/atomic"
	"testing"

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

// OpenEnds opens NICs at both ends of links, and closes them after the test.
func OpenEnds(tb testing.TB, links []softnic.Link) (nics [2][]*softnic.NIC, ends [2][]ibverbx.RailConfig) {
	tb.Helper()
	for side := range ends {
		opened, rails, shut, err := OpenNICs(links, softnic.Config{}, nil)
		tb.Cleanup(func() { Must(tb, shut()) })
		Must(tb, err)
		nics[side], ends[side] = opened, rails
	}
	return nics, ends
}

// CountedAlloc returns alloc with a function that frees its memory. All memory must be freed by the end of the test.
func CountedAlloc(tb testing.TB, alloc func(size int) (*verbs.Memory, error)) func(size int) (*verbs.Memory, func() error, error) {
	tb.Helper()
	var allocated atomic.Int32
	tb.Cleanup(func() {
		if n := allocated.Load(); n != 0 {
			tb.Errorf("%d allocations were not freed", n)
		}
	})
	return func(size int) (*verbs.Memory, func() error, error) {
		mem, err := alloc(size)
		allocated.Add(1)
		return mem, func() error { allocated.Add(-1); return mem.Free() }, err
	}
}
