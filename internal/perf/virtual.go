package perf

import (
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// virtualEnd is an end whose QPs are the lanes of one VirtualQP.
type virtualEnd struct {
	row   *row
	rails *ibverbx.Rails // nil if the partner's Connect made the VirtualQP
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP
	nics  int // rails of this end
	// control lets lanes come back. It is nil unless a rail is to be lost, because it costs time.
	control ibverbx.Control
}

// openVirtual makes a VirtualQP for each half and connects the two.
func (r *row) openVirtual(rails *[2][]ibverbx.RailConfig) (err error) {
	var ends [2]*virtualEnd
	var cards [2]*ibverbx.Card
	var controls [2]ibverbx.Control
	if r.cfg.Kill.On {
		controls[0], controls[1] = ibverbx.ControlPair()
	}
	for i := range ends {
		e := &virtualEnd{row: r, nics: len(rails[i]), control: controls[i]}
		ends[i], r.halves[i].end = e, e
		if err := e.open(rails[i]); err != nil {
			return err
		}
		if cards[i], err = e.qp.Card(); err != nil {
			return err
		}
	}
	for i, e := range ends {
		peer := cards[1-i]
		for k := range peer.Lanes {
			if peer.Lanes[k].MTU, err = r.cfg.smaller(peer.Lanes[k].MTU); err != nil {
				return err
			}
		}
		if err := e.qp.Connect(peer); err != nil {
			return err
		}
	}
	return nil
}

func (e *virtualEnd) open(rails []ibverbx.RailConfig) (err error) {
	if e.rails, err = ibverbx.NewRails(rails...); err != nil {
		return err
	}
	e.row.closers.Add(e.rails.Close)
	if e.cq, err = e.rails.NewCQ(ibverbx.CQConfig{Depth: e.row.plan.completions(e.row.cfg)}); err != nil {
		return err
	}
	e.row.closers.Add(e.cq.Close)
	cfg := e.row.plan.virtualConfig(e.row.cfg)
	cfg.Control = e.control
	if e.qp, err = e.cq.NewQP(cfg); err != nil {
		return err
	}
	e.row.closers.Add(e.qp.Close)
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

func (e *virtualEnd) arm() {
	for rail := range e.nics {
		if cq, err := e.cq.CQ(rail); err == nil {
			_ = cq.Arm(false) // the next poll reports an error
		}
	}
}

func (e *virtualEnd) register(mem *verbs.Memory) (*ibverbx.Region, *ibverbx.RemoteRegion, error) {
	region, err := e.rails.Register(mem, verbs.AccessAll)
	if err != nil {
		return nil, nil, err
	}
	e.row.closers.Add(region.Close)
	return region, region.Remote(), nil
}

// failure names the lane that ended the VirtualQP, if one has.
func (e *virtualEnd) failure(err error) error {
	if cause := e.qp.Err(); cause != nil {
		return &laneError{cause: cause, seen: err}
	}
	return err
}

// laneError is an error of a VirtualQP that a lane has ended. What was seen is often only the
// flush of an earlier request, so the text is that of the cause.
type laneError struct{ cause, seen error }

func (e *laneError) Error() string   { return e.cause.Error() }
func (e *laneError) Unwrap() []error { return []error{e.cause, e.seen} }

// deviceNames lists the devices of a half, rail by rail.
func deviceNames(rails []ibverbx.RailConfig) string {
	var names []string
	for _, r := range rails {
		names = append(names, r.Context.Device().Name())
	}
	return strings.Join(names, ",")
}
