package measure

import (
	"ibverbx"
	"ibverbx/verbs"
)

// poster is the subset of QP methods used by a flow: a VirtualQP, or a wrapped UC or UD QP.
type poster interface {
	PostSend(wrs []ibverbx.SendWR) (n int, err error)
	PostRecv(wrs []ibverbx.RecvWR) (n int, err error)
}

// side is one side of a run. Its QPs are the lanes of a VirtualQP, or plain UC or UD QPs. If it is in another process,
// only its remote memory is known here.
type side struct {
	memory
	// qp is the VirtualQP, and cq its completion queue; nil with plain QPs.
	qp *ibverbx.VirtualQP
	cq *ibverbx.VirtualCQ
	// plain are the plain QPs, nil with a VirtualQP.
	plain *plainQPs
	// out is the flow that this side initiates, or nil.
	out *flow
	// in is the flow that the other side initiates, or nil.
	in *flow
	// quiet is set if no completions are expected here, so the side is polled rarely.
	quiet bool
	// rails are the side's rails, by index; empty if it is in another process.
	rails []ibverbx.RailConfig
	// before holds the counters at the start of the measurement.
	before counters
}

// openPair creates and connects both sides in this process and allocates their memory.
func (r *SizeRun) openPair(rails *[2][]ibverbx.RailConfig) error {
	controls := r.controls()
	for i, h := range r.sides {
		h.rails = rails[i]
		mem, err := r.cfg.Memory[i].take(r.plan.sideBytes(i), &r.closers)
		if err != nil {
			return err
		}
		if r.cfg.virtual() {
			err = r.openVirtual(h, mem, controls[i])
		} else {
			err = r.openPlain(h, mem)
		}
		if err == nil {
			err = h.attach(mem.Bytes(), mem, r.plan.size)
		}
		if err != nil {
			return err
		}
	}
	if r.cfg.virtual() {
		return r.connectVirtual()
	}
	return r.connectPlain()
}

// controls returns the control channels that let lanes recover. They are nil unless the test is live, because they cost
// time.
func (r *SizeRun) controls() (c [2]ibverbx.Control) {
	if r.cfg.Live.On {
		c[0], c[1] = ibverbx.ControlPair()
	}
	return c
}

// openVirtual registers a side's memory and creates its VirtualQP.
func (r *SizeRun) openVirtual(h *side, mem *verbs.Memory, control ibverbx.Control) error {
	rails, err := ibverbx.NewRails(h.rails...)
	if err != nil {
		return err
	}
	r.closers.Add(rails.Close)
	if h.region, err = rails.Register(mem, verbs.AccessAll); err != nil {
		return err
	}
	h.remote = h.region.Remote()
	r.closers.Add(h.region.Close)
	if h.cq, err = rails.NewCQ(ibverbx.CQConfig{Depth: r.plan.completions(r.cfg)}); err != nil {
		return err
	}
	r.closers.Add(h.cq.Close)
	cfg := r.plan.virtualConfig(r.cfg)
	cfg.Control, cfg.Deadline = control, r.cfg.Live.Patience
	if h.qp, err = h.cq.NewQP(cfg); err != nil {
		return err
	}
	r.closers.Add(h.qp.Close)
	return nil
}

// connectVirtual connects the VirtualQPs of both sides.
func (r *SizeRun) connectVirtual() error {
	var cards [2]*ibverbx.Card
	for i, h := range r.sides {
		card, err := h.qp.Card()
		if err != nil {
			return err
		}
		for k := range card.Lanes {
			card.Lanes[k].MTU = r.cfg.smaller(card.Lanes[k].MTU)
		}
		cards[i] = card
	}
	for i, h := range r.sides {
		if err := h.qp.Connect(cards[1-i]); err != nil {
			return err
		}
	}
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

// announce calls Observer.Opened for the sides of this process.
func (r *SizeRun) announce(opened func(int, *ibverbx.VirtualQP, []ibverbx.RailConfig) func()) {
	for side, h := range r.sides {
		if h.here() {
			closing := opened(side, h.qp, h.rails)
			r.closers.Add(func() error { closing(); return nil })
		}
	}
}

// poll returns completions of sends and receives, like VirtualCQ.Poll.
func (h *side) poll(dst []ibverbx.WC) (n int, err error) {
	if h.plain != nil {
		return h.plain.poll(dst)
	}
	return h.cq.Poll(dst)
}

// posters returns the QPs that messages are posted to.
func (h *side) posters() (list []poster) {
	if h.plain == nil {
		return []poster{h.qp}
	}
	for _, qp := range h.plain.qps {
		list = append(list, qp)
	}
	return list
}

// stats returns the counters of the QPs. Each plain QP counts as a lane.
func (h *side) stats() ibverbx.Stats {
	if h.plain == nil {
		return h.qp.Stats()
	}
	s := ibverbx.Stats{Rails: make([]ibverbx.RailStats, 1)}
	rail := &s.Rails[0].Counts
	for i, qp := range h.plain.qps {
		s.Lanes = append(s.Lanes, ibverbx.LaneStats{Lane: i, QPN: qp.Num(), Role: "data", Counts: qp.Counts})
		rail.Fragments, rail.Bytes = rail.Fragments+qp.Fragments, rail.Bytes+qp.Bytes
		rail.Doorbells, rail.CQEs, rail.Refusals = rail.Doorbells+qp.Doorbells, rail.CQEs+qp.CQEs, rail.Refusals+qp.Refusals
	}
	return s
}

// failure names the lane that failed the VirtualQP, if any.
func (h *side) failure(err error) error {
	if h.qp != nil {
		if cause := h.qp.Err(); cause != nil {
			return &laneError{cause: cause, seen: err}
		}
	}
	return err
}

// laneError is returned after a lane has failed the VirtualQP. The error seen is often only the
// flush of an earlier request, so the text is the cause's.
type laneError struct{ cause, seen error }

func (e *laneError) Error() string   { return e.cause.Error() }
func (e *laneError) Unwrap() []error { return []error{e.cause, e.seen} }
