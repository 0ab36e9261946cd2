package perf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ibverbx"
	"ibverbx/internal/strictjson"
	"ibverbx/verbs"
)

// Bounds of what a partner can ask for.
const (
	specVersion  = 4
	maxNote      = 1 << 20 // bytes of a note
	maxRows      = 64
	remoteBytes  = 2 << 30 // memory of one half
	maxSpecTime  = 24 * time.Hour
	maxTextBytes = 512
)

// spec is the test that a client asks for, as it travels.
type spec struct {
	Version int `json:"version"`
	Config
}

// specOf describes a completed Config, whose rows are known. TransportRC is left out.
func specOf(c *Config, sizes []int) spec {
	s := spec{Version: specVersion, Config: *c}
	s.Sizes, s.Memory = sizes, [2]Memory{}
	if s.Transport == TransportRC {
		s.Transport = ""
	}
	return s
}

// config returns the Config that a client's spec means, or an error if it is refused.
func (s *spec) config() (Config, error) {
	c := s.Config
	c.Memory = [2]Memory{}
	c.Connection, c.Transport = verbs.RC, cmp.Or(s.Transport, TransportRC)
	switch {
	case s.Version != specVersion:
		return c, fmt.Errorf("the client's test has version %d, this side speaks %d: use the same release on both sides", s.Version, specVersion)
	case len(s.Sizes) < 1 || len(s.Sizes) > maxRows:
		return c, fmt.Errorf("%d message sizes: want 1 to %d", len(s.Sizes), maxRows)
	case s.Op == "" || s.Mode == "" || s.Rails == 0 || s.QPs == 0 || (s.Iterations == 0) == (s.Duration == 0):
		return c, errors.New("the test leaves out the operation, the mode, the rails, the lanes or its length")
	case s.Duration > maxSpecTime:
		return c, fmt.Errorf("a row of %v: want at most %v", s.Duration, maxSpecTime)
	}
	if err := c.validate(); err != nil {
		return c, err
	}
	for _, size := range s.Sizes {
		if err := remoteFits(&c, size); err != nil {
			return c, err
		}
	}
	return c, nil
}

// remoteFits refuses a row that would take too much of another machine.
func remoteFits(c *Config, size int) error {
	limit := int(min(c.limit(maxFragment, 0), remoteBytes))
	if size > limit {
		return refuse("size", size, "a message has at most "+FormatSize(limit)+" here", "use a smaller size")
	}
	p := newPlan(c, size, maxRequests)
	bytes := max(p.endBytes(0), p.endBytes(1))
	return firstBroken([]rule{
		{
			bytes > remoteBytes, "size", size, fmt.Sprintf("the buffers would take %d MiB at one end, at most %d are allowed", bytes>>20, remoteBytes>>20),
			"use a smaller size or a smaller --tx-depth",
		},
		{
			max(p.depth(), p.recvs) > maxRequests, "tx-depth", p.depth(),
			fmt.Sprintf("a VirtualQP holds at most %d requests", maxRequests), "use a smaller depth",
		},
	})
}

// lends refuses a test whose buffers would take more of a server than it lends. It returns how
// many bytes they leave, at least one.
func (c *Config) lends(test *Config, sizes []int) (left int, err error) {
	most, need := cmp.Or(c.Lend, defaultLend), 0
	for _, size := range sizes {
		p := newPlan(test, size, maxRequests)
		if need = max(need, p.endBytes(1)); need > most {
			return 0, refuse("size", size, fmt.Sprintf("the buffers would take %d MiB of the server, which lends %d", need>>20, most>>20),
				"use a smaller size or a smaller --tx-depth, or start the server with a larger --lend")
		}
	}
	return max(most-need, 1), nil
}

// hostInfo is what one side says of its NICs.
type hostInfo struct {
	// Devices are the names of the NICs, by rail.
	Devices []string `json:"devices"`
	// Reads is how many READs or atomics a QP may have outstanding.
	Reads int `json:"reads"`
	// Memory is the name of the device that has this side's buffers, empty for the host.
	Memory string `json:"memory,omitempty"`
	// Text is the reason why this side refuses the test, empty if it takes it.
	Text string `json:"text"`
}

func (h *hostInfo) check() error {
	if len(h.Devices) > ibverbx.MaxRails || (len(h.Devices) == 0 && h.Text == "") || len(h.Text) > maxTextBytes {
		return errors.New("the partner's description of its NICs makes no sense")
	}
	for _, d := range slices.Concat(h.Devices, []string{h.Memory}) {
		if len(d) > 64 || strconv.Quote(d) != `"`+d+`"` {
			return errors.New("the name of a NIC or of the memory of the partner makes no sense")
		}
	}
	return nil
}

// decodeNote reads what a partner has sent, strictly.
func decodeNote(b []byte, v any) error {
	if err := strictjson.Decode(b, maxNote, v); err != nil {
		return fmt.Errorf("from the partner: %w", err)
	}
	return nil
}
