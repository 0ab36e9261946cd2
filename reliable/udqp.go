package reliable

import "ibverbx/verbs"

// udQP is a UD QP that serves all connections of an engine: a controlQP or a datagramQP.
type udQP struct {
	resources *engineResources
	index     int      // the position in resources.control or resources.data
	qp        verbs.QP // nil before create and after close
	refill    refill   // lists the receive buffers to be reposted
	failed    bool     // set while the QP is out of service
	// reviveAt is the time at which revive may be called next. Two calls are at least backgroundInterval apart.
	reviveAt int64
}

// create creates the QP with the queues of queues and the port and path of cfg.
func (u *udQP) create(h *engineResources, index int, queues verbs.QPConfig, cfg *verbs.QPConfig) (err error) {
	u.resources, u.index = h, index
	queues.Type, queues.SendCQ, queues.RecvCQ = verbs.UD, h.engine.inbox.cq, h.engine.inbox.cq
	queues.Port, queues.GID, queues.Path = cfg.Port, cfg.GID, sharedPath(cfg.Path)
	u.qp, err = h.pd.CreateQP(queues)
	if err != nil {
		u.qp = nil
	}
	return err
}

// close closes the QP, if it exists.
func (u *udQP) close() {
	if u.qp != nil {
		e := u.resources.engine
		e.routes.Delete(u.qp.Num())
		e.ctx.events.unregister(u.qp)
		_ = u.qp.Close() // no object depends on it
		u.qp = nil
	}
}

// fail takes the QP out of service until revive succeeds.
func (u *udQP) fail() {
	if !u.failed {
		u.failed = true
		u.resources.engine.background.wake()
	}
}

// topUp reposts free receive buffers once enough of n are free.
func (u *udQP) topUp(n int) {
	if !u.failed && len(u.refill) >= lowWater(n) {
		u.resources.engine.doorbells.refilled(u.refill.post(u.qp))
	}
}
