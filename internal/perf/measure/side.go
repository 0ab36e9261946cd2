package measure

import (
	"ibverbx"
	"ibverbx/verbs"
)

// poster is a QP as a flow needs it: a VirtualQP, or a UC or UD QP with the same methods.
type poster interface {
	PostSend(wrs []ibverbx.SendWR) (n int, err error)
	PostRecv(wrs []ibverbx.RecvWR) (n int, err error)
}

// sideQPs are the QPs of a side. They share a completion queue.
type sideQPs interface {
	// Poll takes completions of sends and receives, as VirtualCQ.Poll does.
	Poll(dst []ibverbx.WC) (n int, err error)
	posters() []poster
	// register makes memory known to the devices. It is called once. local is what an
	// SGE names; remote is for the other side.
	register(mem *verbs.Memory) (local *ibverbx.Region, remote *ibverbx.RemoteRegion, err error)
	// lanes returns what the QPs have done so far.
	lanes() []ibverbx.LaneStats
	// failure adds to an error what is known about its cause.
	failure(err error) error
	// arm asks the NICs for an interrupt, before this process sleeps.
	arm()
}

// side is one side of a run. If it is in another process, only its remote memory is known here.
type side struct {
	sideQPs // nil if the side is in another process
	memory
	// out is the flow that this side initiates, nil if there is none.
	out *flow
	// in is the flow that the other side initiates, nil if there is none.
	in *flow
	// quiet means that no completion is expected here, so that the side is polled rarely.
	quiet bool
	// rails are those of the side, by index; empty if it is in another process.
	rails []ibverbx.RailConfig
	// marked is what the NICs had counted when the measurement began.
	marked SideHealth
	// before is what the lanes had done when they were last counted; nil until then.
	before []ibverbx.LaneStats
}

// openPair makes and connects both sides in this process and gives them memory.
func (r *SizeRun) openPair(rails *[2][]ibverbx.RailConfig) (err error) {
	if r.cfg.virtual() {
		err = r.openVirtual(rails)
	} else {
		err = r.openPlain(rails)
	}
	for side, h := range r.sides {
		h.rails = rails[side]
		if err == nil {
			err = r.allocate(h, &r.cfg.Memory[side], r.plan.endBytes(side), deviceNames(rails[side]))
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

// allocate allocates and registers the memory of a side. nics are the names of its NICs.
func (r *SizeRun) allocate(h *side, from *Memory, size int, nics string) error {
	mem, err := from.take(size, &r.closers)
	if err != nil {
		return err
	}
	if h.region, h.remote, err = h.register(mem); err != nil {
		return err
	}
	h.nics = nics
	return h.attach(mem.Bytes(), mem, r.plan.size)
}
