package remote

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ibverbx"
	"ibverbx/internal/perf/measure"
	"ibverbx/verbs"
)

// Limits of a client's test.
const (
	specVersion = 6
	maxSizes    = 64
	maxAhead    = 1 << 10 // queued clients before one
	maxBytes    = 2 << 30 // memory of one side
	maxDuration = 24 * time.Hour
	defaultLend = 256 << 20
)

// spec is the encoding of a client's test request.
type spec struct {
	Version int `json:"version"`
	measure.Config
}

// specOf encodes a completed Config with these sizes. TransportRC is omitted.
func specOf(c *measure.Config, sizes []int) spec {
	s := spec{Version: specVersion, Config: *c}
	s.Sizes, s.Memory = sizes, [2]measure.Memory{}
	if s.Transport == measure.TransportRC {
		s.Transport = ""
	}
	return s
}

// config returns the Config of a client's spec with the memory of this side, or the reason to
// refuse it.
func (s *spec) config(memory [2]measure.Memory) (measure.Config, error) {
	c := s.Config
	c.Memory = memory
	c.Connection, c.Transport = verbs.RC, cmp.Or(s.Transport, measure.TransportRC)
	switch {
	case s.Version != specVersion:
		return c, fmt.Errorf("the client's test has version %d, this side speaks %d: use the same release on both sides", s.Version, specVersion)
	case len(s.Sizes) < 1 || len(s.Sizes) > maxSizes:
		return c, fmt.Errorf("%d message sizes: want 1 to %d", len(s.Sizes), maxSizes)
	case s.Op == "" || s.Mode == "" || s.Rails == 0 || s.QPs == 0 || (s.Iterations == 0) == (s.Duration == 0):
		return c, errors.New("the test leaves out the operation, the mode, the rails, the lanes or its length")
	case s.Duration > maxDuration:
		return c, fmt.Errorf("a row of %v: want at most %v", s.Duration, maxDuration)
	}
	if err := c.Validate(); err != nil {
		return c, err
	}
	_, err := fittingSizes(&c)
	return c, err
}

// fittingSizes returns the sizes of a test, without sizes of a sweep that do not fit.
func fittingSizes(c *measure.Config) (list []int, err error) {
	sizes, err := c.Rows(min(c.Limit(measure.MaxFragment, 0), maxBytes))
	for _, size := range sizes {
		if bad := fits(c, size); bad == nil {
			list = append(list, size)
		} else if len(c.Sizes) > 0 {
			return nil, bad
		}
	}
	return list, err
}

// fits rejects a size that would use too much memory or too many requests of another machine.
func fits(c *measure.Config, size int) error {
	client, requests := c.Footprint(0, size)
	server, _ := c.Footprint(1, size)
	if bytes := max(client, server); bytes > maxBytes {
		return measure.Refuse("size", size, fmt.Sprintf("the buffers would take %d MiB at one end, at most %d are allowed", bytes>>20, maxBytes>>20),
			"use a smaller size or a smaller --tx-depth")
	}
	if requests > measure.MaxRequests {
		return measure.Refuse("tx-depth", requests, fmt.Sprintf("a VirtualQP holds at most %d requests", measure.MaxRequests), "use a smaller depth")
	}
	return nil
}

// fitsServer rejects a test whose buffers exceed the server's memory limit. It returns the bytes left, at least one.
func fitsServer(own, test *measure.Config, sizes []int) (left int, err error) {
	most, need := cmp.Or(own.Lend, defaultLend), 0
	for _, size := range sizes {
		bytes, _ := test.Footprint(1, size)
		if need = max(need, bytes); need > most {
			return 0, measure.Refuse("size", size, fmt.Sprintf("the buffers would take %d MiB of the server, which lends %d", need>>20, most>>20),
				"use a smaller size or a smaller --tx-depth, or start the server with a larger --lend")
		}
	}
	return max(most-need, 1), nil
}

// checkHost rejects an invalid description of the remote host.
func checkHost(h *measure.Host) error {
	bare := len(h.Devices) == 0 && h.Text == "" // only a waiting message is
	if len(h.Devices) > ibverbx.MaxRails || bare != (h.Ahead != 0) || h.Ahead < 0 || h.Ahead > maxAhead || len(h.Text) > measure.MaxText {
		return errors.New("the remote side's description of its NICs is invalid")
	}
	for _, d := range slices.Concat(h.Devices, []string{h.Memory}) {
		if len(d) > 64 || strconv.Quote(d) != `"`+d+`"` {
			return errors.New("the name of a NIC or memory of the remote side is invalid")
		}
	}
	return nil
}
