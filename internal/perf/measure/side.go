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

// sideQPs are the QPs of a side. They share a completion queue.
type sideQPs interface {
	// Poll returns completions of sends and receives, like VirtualCQ.Poll.
	Poll(dst []ibverbx.WC) (n int, err error)
	posters() []poster
	// register registers memory with the devices. It is called once. local is for SGEs; remote is
	// for the other side.
	register(mem *verbs.Memory) (local *ibverbx.Region, remote *ibverbx.RemoteRegion, err error)
	// lanes returns the counters of the QPs.
	lanes() []ibverbx.LaneStats
	// failure adds the known cause to an error.
	failure(err error) error
	// arm enables NIC interrupts before this process sleeps.
	arm()
}

// side is one side of a run. If it is in another process, only its remote memory is known here.
type side struct {
	sideQPs // nil if the side is in another process
	memory
	// out is the flow that this side initiates, or nil.
	out *flow
	// in is the flow that the other side initiates, or nil.
	in *flow
	// quiet is set if no completions are expected here, so the side is polled rarely.
	quiet bool
	// rails are the side's rails, by index; empty if it is in another process.
	rails []ibverbx.RailConfig
	// marked holds the NIC counters at the start of the measurement.
	marked SideHealth
	// before holds the lane counters at the last count; nil until then.
	before []ibverbx.LaneStats
}

// openPair creates and connects both sides in this process and allocates their memory.
func (r *SizeRun) openPair(rails *[2][]ibverbx.RailConfig) (err error) {
	if r.cfg.virtual() {
		err = r.openVirtual(rails)
	} else {
		err = r.openPlain(rails)
	}
	for side, h := range r.sides {
		h.rails = rails[side]
		if err == nil {
			err = r.allocate(h, &r.cfg.Memory[side], r.plan.sideBytes(side))
		}
	}
	return err
}

// announce calls Observer.Opened for the sides of this process.
func (r *SizeRun) announce(opened func(int, *ibverbx.VirtualQP, []ibverbx.RailConfig) func()) {
	for side, h := range r.sides {
		if h.sideQPs == nil {
			continue
		}
		var qp *ibverbx.VirtualQP
		if v, ok := h.sideQPs.(*virtualQPs); ok {
			qp = v.qp
		}
		closing := opened(side, qp, h.rails)
		r.closers.Add(func() error { closing(); return nil })
	}
}

// allocate allocates and registers a side's memory.
func (r *SizeRun) allocate(h *side, from *Memory, size int) error {
	mem, err := from.take(size, &r.closers)
	if err != nil {
		return err
	}
	if h.region, h.remote, err = h.register(mem); err != nil {
		return err
	}
	return h.attach(mem.Bytes(), mem, r.plan.size)
}
