package measure

import (
	"ibverbx"
	"ibverbx/verbs"
)

// virtualQPs is a side whose QPs are the lanes of one VirtualQP.
type virtualQPs struct {
	run   *SizeRun
	rails *ibverbx.Rails // nil if Peer.Connect created the VirtualQP
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP
	nics  int // rails of this side
	// control lets lanes recover. It is nil unless the test is live, because it costs time.
	control ibverbx.Control
}

// openVirtual creates a VirtualQP for each side and connects the two.
func (r *SizeRun) openVirtual(rails *[2][]ibverbx.RailConfig) (err error) {
	var sides [2]*virtualQPs
	var cards [2]*ibverbx.Card
	var controls [2]ibverbx.Control
	if r.cfg.Live.On {
		controls[0], controls[1] = ibverbx.ControlPair()
	}
	for i := range sides {
		e := &virtualQPs{run: r, nics: len(rails[i]), control: controls[i]}
		sides[i], r.sides[i].sideQPs = e, e
		if err := e.open(rails[i]); err != nil {
			return err
		}
		if cards[i], err = e.qp.Card(); err != nil {
			return err
		}
	}
	for i, e := range sides {
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

func (e *virtualQPs) open(rails []ibverbx.RailConfig) (err error) {
	if e.rails, err = ibverbx.NewRails(rails...); err != nil {
		return err
	}
	e.run.closers.Add(e.rails.Close)
	if e.cq, err = e.rails.NewCQ(ibverbx.CQConfig{Depth: e.run.plan.completions(e.run.cfg)}); err != nil {
		return err
	}
	e.run.closers.Add(e.cq.Close)
	cfg := e.run.plan.virtualConfig(e.run.cfg)
	cfg.Control, cfg.Deadline = e.control, e.run.cfg.Live.Patience
	if e.qp, err = e.cq.NewQP(cfg); err != nil {
		return err
	}
	e.run.closers.Add(e.qp.Close)
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

// Poll implements sideQPs.
func (e *virtualQPs) Poll(dst []ibverbx.WC) (n int, err error) { return e.cq.Poll(dst) }

func (e *virtualQPs) posters() []poster { return []poster{e.qp} }

func (e *virtualQPs) lanes() []ibverbx.LaneStats { return e.qp.Stats().Lanes }

func (e *virtualQPs) arm() {
	for rail := range e.nics {
		if cq, err := e.cq.CQ(rail); err == nil {
			_ = cq.Arm(false) // the next poll reports an error
		}
	}
}

func (e *virtualQPs) register(mem *verbs.Memory) (*ibverbx.Region, *ibverbx.RemoteRegion, error) {
	region, err := e.rails.Register(mem, verbs.AccessAll)
	if err != nil {
		return nil, nil, err
	}
	e.run.closers.Add(region.Close)
	return region, region.Remote(), nil
}

// failure names the lane that failed the VirtualQP, if any.
func (e *virtualQPs) failure(err error) error {
	if cause := e.qp.Err(); cause != nil {
		return &laneError{cause: cause, seen: err}
	}
	return err
}

// laneError is returned after a lane has failed the VirtualQP. The error seen is often only the
// flush of an earlier request, so the text is the cause's.
type laneError struct{ cause, seen error }

func (e *laneError) Error() string   { return e.cause.Error() }
func (e *laneError) Unwrap() []error { return []error{e.cause, e.seen} }
