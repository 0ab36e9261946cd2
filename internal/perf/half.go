package perf

import (
	"ibverbx"
	"ibverbx/verbs"
)

// poster is a QP as a flow needs it: a VirtualQP, or a UC or UD QP with the same methods.
type poster interface {
	PostSend(wrs []ibverbx.SendWR) (n int, err error)
	PostRecv(wrs []ibverbx.RecvWR) (n int, err error)
}

// end is the QPs of a half. They share a completion queue.
type end interface {
	// Poll takes completions of sends and receives, as VirtualCQ.Poll does.
	Poll(dst []ibverbx.WC) (n int, err error)
	posters() []poster
	// register makes memory known to the devices. It is called once. local is what an
	// SGE names; remote is for the other half.
	register(mem *verbs.Memory) (local *ibverbx.Region, remote *ibverbx.RemoteRegion, err error)
	// lanes returns what the QPs have done so far.
	lanes() []ibverbx.LaneStats
	// failure adds to an error what is known about its cause.
	failure(err error) error
	// arm asks the NICs for an interrupt, before this process sleeps.
	arm()
}

// half is one side of a row. If it is in another process, only its remote memory is known here.
type half struct {
	end // nil if the half is in another process
	memory
	// out is the flow that this half initiates, nil if there is none.
	out *flow
	// in is the flow that the other half initiates, nil if there is none.
	in *flow
	// quiet means that no completion is expected here, so that the half is polled rarely.
	quiet bool
	// rails are those of the half, by index; empty if it is in another process.
	rails []ibverbx.RailConfig
	// marked is what the NICs had counted when the measurement began.
	marked vitals
	// before is what the lanes had done when they were last counted; nil until then.
	before []ibverbx.LaneStats
}

// openPair makes and connects both halves in this process and gives them memory.
func (r *row) openPair(rails *[2][]ibverbx.RailConfig) (err error) {
	if r.cfg.virtual() {
		err = r.openVirtual(rails)
	} else {
		err = r.openPlain(rails)
	}
	for side, h := range r.halves {
		h.rails = rails[side]
		if err == nil {
			err = r.allocate(h, &r.cfg.Memory[side], r.plan.endBytes(side), deviceNames(rails[side]))
		}
	}
	return err
}

// announce calls Observer.Opened for the halves of this process.
func (r *row) announce(opened func(int, *ibverbx.VirtualQP, []ibverbx.RailConfig) func()) {
	for side, h := range r.halves {
		if h.end == nil {
			continue
		}
		var qp *ibverbx.VirtualQP
		if v, ok := h.end.(*virtualEnd); ok {
			qp = v.qp
		}
		closing := opened(side, qp, h.rails)
		r.closers.Add(func() error { closing(); return nil })
	}
}

// allocate allocates and registers the memory of a half. nics are the names of its NICs.
func (r *row) allocate(h *half, from *Memory, size int, nics string) error {
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
