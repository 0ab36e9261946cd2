package perf

import (
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// virtualEnd is an end whose QPs are the lanes of one VirtualQP.
type virtualEnd struct {
	pair  *pair
	rails *ibverbx.Rails
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP

	control ibverbx.Control // with Config.Kill
}

// openVirtual makes a VirtualQP at each end and connects the two.
func (pr *pair) openVirtual(rails *[2][]ibverbx.RailConfig, c *Config, p *plan) error {
	var ends [2]*virtualEnd
	var cards [2]*ibverbx.Card
	var controls [2]ibverbx.Control // nil unless lanes are to come back: it costs time
	if c.Kill.On {
		controls[0], controls[1] = ibverbx.ControlPair(nil, nil)
	}
	for i := range ends {
		e := &virtualEnd{pair: pr, control: controls[i]}
		ends[i], pr.ends[i] = e, e
		if err := e.open(rails[i], c, p); err != nil {
			return err
		}
		var err error
		if cards[i], err = e.qp.Card(); err != nil {
			return err
		}
	}
	for i, e := range ends {
		peer := cards[1-i]
		if c.MTU != 0 {
			asked, err := verbs.MTUOf(c.MTU)
			if err != nil {
				return err
			}
			for k := range peer.Lanes {
				peer.Lanes[k].MTU = min(peer.Lanes[k].MTU, asked) // a lane takes the smaller of both ends
			}
		}
		if err := e.qp.Connect(peer); err != nil {
			return err
		}
	}
	return nil
}

func (e *virtualEnd) open(rails []ibverbx.RailConfig, c *Config, p *plan) (err error) {
	if e.rails, err = ibverbx.NewRails(rails...); err != nil {
		return err
	}
	e.pair.onClose(e.rails.Close)
	if e.cq, err = e.rails.NewCQ(ibverbx.CQConfig{Depth: p.completions(c)}); err != nil {
		return err
	}
	e.pair.onClose(e.cq.Close)
	cfg := p.virtualConfig(c)
	cfg.Control = e.control
	if e.qp, err = e.cq.NewQP(cfg); err != nil {
		return err
	}
	e.pair.onClose(e.qp.Close)
	return nil
}

// virtualConfig describes the VirtualQP of a row. Its queues hold the whole window.
func (p *plan) virtualConfig(c *Config) ibverbx.Config {
	return ibverbx.Config{
		Lanes:        c.QPs,
		Scheme:       c.Scheme,
		Policy:       c.Policy,
		SendDepth:    p.depth(),
		RecvDepth:    max(1, p.recvs),
		LaneDepth:    p.laneDepth,
		NotifyDepth:  p.notifyDepth,
		FragmentSize: uint32(c.Fragment),
	}
}

// Poll implements end.
func (e *virtualEnd) Poll(dst []ibverbx.WC) (n int, err error) { return e.cq.Poll(dst) }

func (e *virtualEnd) posters() []poster { return []poster{e.qp} }

func (e *virtualEnd) lanes() []ibverbx.LaneStats { return e.qp.Stats().Lanes }

func (e *virtualEnd) register(mem *verbs.Memory) (*ibverbx.Region, *ibverbx.RemoteRegion, error) {
	region, err := e.rails.Register(mem, verbs.AccessAll)
	if err != nil {
		return nil, nil, err
	}
	e.pair.onClose(region.Close)
	return region, region.Remote(), nil
}

// failure says which lane ended the VirtualQP.
func (e *virtualEnd) failure(err error) error {
	if cause := e.qp.Err(); cause != nil {
		return &laneError{cause: cause, seen: err}
	}
	return err
}

// laneError is an error of a VirtualQP that a lane has ended. What was seen is often that
// a request before the failed one was flushed, so the text is that of the cause alone.
type laneError struct{ cause, seen error }

func (e *laneError) Error() string   { return e.cause.Error() }
func (e *laneError) Unwrap() []error { return []error{e.cause, e.seen} }

// deviceNames lists the devices of an end, rail by rail.
func deviceNames(rails []ibverbx.RailConfig) string {
	var names []string
	for _, r := range rails {
		names = append(names, r.Context.Device().Name())
	}
	return strings.Join(names, ",")
}
