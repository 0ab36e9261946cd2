package perf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Bounds of what a partner can ask for.
const (
	specVersion  = 1
	maxNote      = 1 << 20
	maxRows      = 64
	remoteBytes  = 2 << 30 // memory at one end
	maxSpecTime  = 24 * time.Hour
	maxTextBytes = 512
)

// spec is what the client asks the server to take part in.
type spec struct {
	Version       int           `json:"version"`
	Op            Op            `json:"op"`
	Imm           bool          `json:"imm"`
	Mode          Mode          `json:"mode"`
	Sizes         []int         `json:"sizes"`
	Iterations    int           `json:"iterations"`
	Duration      time.Duration `json:"duration_ns"`
	TxDepth       int           `json:"tx_depth"`
	CQMod         int           `json:"cq_mod"`
	Bidirectional bool          `json:"bidirectional"`
	Check         bool          `json:"check"`
	Rails         int           `json:"rails"`
	Lanes         int           `json:"lanes"`
	Fragment      int           `json:"fragment"`
	// Transport is left out for TransportRC, the only one that there was once.
	Transport Transport `json:"transport,omitempty"`
}

// specOf describes a completed Config, whose rows are known.
func specOf(c *Config, sizes []int) spec {
	s := spec{
		Version: specVersion, Op: c.Op, Imm: c.Imm, Mode: c.Mode, Sizes: sizes, Iterations: c.Iterations, Duration: c.Duration,
		TxDepth: c.TxDepth, CQMod: c.CQMod, Bidirectional: c.Bidirectional, Check: c.Check, Rails: c.Rails, Lanes: c.QPs, Fragment: c.Fragment,
	}
	if c.Transport != TransportRC {
		s.Transport = c.Transport
	}
	return s
}

// config returns the Config that a partner's spec means, or an error if it cannot be.
func (s *spec) config() (Config, error) {
	c := Config{
		Op: s.Op, Imm: s.Imm, Mode: s.Mode, Connection: verbs.RC, Transport: cmp.Or(s.Transport, TransportRC), Sizes: s.Sizes, Iterations: s.Iterations, Duration: s.Duration,
		TxDepth: s.TxDepth, CQMod: s.CQMod, Bidirectional: s.Bidirectional, Check: s.Check, Rails: s.Rails, QPs: s.Lanes, Fragment: s.Fragment,
	}
	switch {
	case s.Version != specVersion:
		return c, fmt.Errorf("the client's test is of version %d, this side speaks %d: use the same release on both", s.Version, specVersion)
	case len(s.Sizes) < 1 || len(s.Sizes) > maxRows:
		return c, fmt.Errorf("%d message sizes: want 1 to %d", len(s.Sizes), maxRows)
	case s.Op == "" || s.Mode == "" || s.Rails == 0 || s.Lanes == 0 || (s.Iterations == 0) == (s.Duration == 0):
		return c, errors.New("a test that leaves out what it must say")
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

// remoteFits refuses rows that would take too much of another machine.
func remoteFits(c *Config, size int) error {
	if limit := c.limit(maxFragment, 0); uint64(size) > min(limit, remoteBytes) {
		return refuse(flagValue("size", size), "a message has at most "+FormatSize(int(min(limit, remoteBytes)))+" here", "use a smaller size")
	}
	p := newPlan(c, size, maxRequests)
	if n := max(p.endBytes(0), p.endBytes(1)); n > remoteBytes {
		return refuse(flagValue("size", size), fmt.Sprintf("the buffers would take %d MiB at one end, at most %d are allowed", n>>20, remoteBytes>>20), "use a smaller size or a smaller --tx-depth")
	}
	if p.depth() > maxRequests || p.recvs > maxRequests {
		return refuse(flagValue("tx-depth", p.depth()), fmt.Sprintf("a VirtualQP holds at most %d requests", maxRequests), "use a smaller depth")
	}
	return nil
}

// lends refuses a test whose buffers would take more of a server than its owner wants, and
// returns what they leave: at least a byte.
func (c *Config) lends(test *Config, sizes []int) (left int, err error) {
	most := cmp.Or(c.Lend, defaultLend)
	left = most
	for _, size := range sizes {
		p := newPlan(test, size, maxRequests)
		n := p.endBytes(1)
		if n > most {
			return 0, refuse(flagValue("size", size), fmt.Sprintf("the buffers would take %d MiB of the server, which lends %d", n>>20, most>>20),
				"use a smaller size or a smaller --tx-depth, or start the server with a larger --lend")
		}
		left = min(left, most-n)
	}
	return max(left, 1), nil
}

// hostInfo is what an end tells of its NICs.
type hostInfo struct {
	Devices []string `json:"devices"` // by rail
	Reads   int      `json:"reads"`
	Text    string   `json:"text"` // why it refuses, empty if it does not
}

func (h *hostInfo) check() error {
	if len(h.Devices) > ibverbx.MaxRails || (len(h.Devices) == 0 && h.Text == "") || len(h.Text) > maxTextBytes {
		return errors.New("the partner describes itself in no sensible way")
	}
	for _, d := range h.Devices {
		if len(d) > 64 || strconv.Quote(d) != `"`+d+`"` {
			return errors.New("the partner has a NIC with no sensible name")
		}
	}
	return nil
}

// describeHost asks NICs what they are. The last values are for the head of a report.
func describeHost(rails []ibverbx.RailConfig) (h hostInfo, attr verbs.DeviceAttr, port verbs.PortAttr, err error) {
	h.Reads = 1 << 8
	for i := range rails {
		if attr, err = rails[i].Context.QueryDevice(); err != nil {
			return h, attr, port, err
		}
		if port, err = rails[i].Context.QueryPort(portOf(&rails[i])); err != nil {
			return h, attr, port, err
		}
		h.Devices = append(h.Devices, rails[i].Context.Device().Name())
		h.Reads = min(h.Reads, attr.MaxQPInitRdAtomic, attr.MaxQPRdAtomic)
	}
	return h, attr, port, nil
}

// decodeNote reads what a partner has sent. It must be written just as this package writes
// it.
func decodeNote(b []byte, v any) error {
	if len(b) > maxNote {
		return fmt.Errorf("%d bytes from the partner, at most %d are allowed", len(b), maxNote)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("from the partner: %w", err)
	}
	again, err := json.Marshal(v)
	if err != nil || !bytes.Equal(b, again) {
		return errors.New("from the partner: a note that is not written as it should be")
	}
	return nil
}

// allSchemes returns all schemes, the given one first.
func allSchemes(first ibverbx.Scheme) []ibverbx.Scheme {
	rest := slices.DeleteFunc([]ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}, func(s ibverbx.Scheme) bool { return s == first })
	return append([]ibverbx.Scheme{first}, rest...)
}
