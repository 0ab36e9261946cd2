package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// step passes an event to the core and executes the actions, and repeats this for the events that
// these actions caused.
func (c *connection) step(ev *core.Event) {
	c.run(ev)
	for len(c.queue) > 0 && c.core != nil {
		next := c.queue[0]
		c.queue = c.queue[:copy(c.queue, c.queue[1:])]
		c.run(&next)
	}
	c.markDirty()
	if c.failing {
		c.failing = false
		for _, q := range c.flows {
			if q != nil && (q.broken || (q.connected && c.core.Failed(int(q.flow)) && q.state == verbs.StateRTS)) {
				q.fail()
			}
		}
	}
}

// endPosts marks the end of a chain of posts.
func (c *connection) endPosts() {
	if c.core.Asks() {
		c.step(&core.Event{Kind: core.EvFlush})
	}
}

// step passes an event of the QP's flow to the core.
func (q *qp) step(ev *core.Event) {
	ev.Flow = q.flow
	q.conn.step(ev)
}

// run passes one event to the core and executes the actions.
func (c *connection) run(ev *core.Event) {
	if c.core == nil {
		return
	}
	ev.Age = c.engine.age
	actions := c.core.Step(c.engine.now, ev)
	for i := range actions {
		c.execute(ev, &actions[i])
	}
}

func (c *connection) execute(ev *core.Event, a *core.Action) {
	switch a.Kind {
	case core.ActControl:
		c.sendRecord(a)
	case core.ActReset:
		if p := &c.paths[a.Path]; p.data != nil {
			p.dropReferences()
		} else {
			p.close()
		}
	case core.ActRebuild:
		c.rebuild(a)
	case core.ActConnect:
		if p := &c.paths[a.Path]; p.data != nil {
			_ = p.setRoute(a.Epoch) // if this fails, the path keeps its route
			return
		}
		if p := &c.paths[a.Path]; p.qp != nil && p.epoch == a.Epoch && p.connect(pathAddr{a.QPN, a.PSN}) != nil {
			c.queue = append(c.queue, p.failedEvent())
		}
	case core.ActDemand:
		if c.pacer != nil {
			c.pacer.Want(c.engine.now, c.index(), a)
		}
	case core.ActSend, core.ActPlace, core.ActDeliver, core.ActComplete, core.ActAnswer, core.ActWant, core.ActFault, core.ActWrongKey:
		if q := c.flows[a.Flow]; q != nil { // nil after it has left
			q.execute(ev, a)
		}
	}
}

// execute executes an action on a message of the QP.
func (q *qp) execute(ev *core.Event, a *core.Action) {
	switch a.Kind {
	case core.ActSend:
		q.transmit(a)
	case core.ActPlace:
		q.place(ev, a.Token)
	case core.ActDeliver:
		q.deliver(a)
	case core.ActComplete:
		if a.Status != 0 {
			q.conn.failing = true
		}
		q.completeSend(a.Token, verbs.Status(a.Status))
	case core.ActAnswer:
		q.executeFetch(a)
	case core.ActWant:
		q.onWant(a.Len)
	case core.ActWrongKey:
		q.refused.countKey(&ev.Header, q.conn.payload, q.cfg.Path.Seal)
	default:
		q.fault(verbs.Status(a.Status))
	}
}

// rebuild creates the next QP of a path. If this fails, the core retries later.
func (c *connection) rebuild(a *core.Action) {
	p := &c.paths[a.Path]
	p.close()
	ev := core.Event{Kind: core.EvPathFailed, Path: a.Path, Epoch: a.Epoch}
	if p.open(a.Epoch) == nil {
		ev.Kind, ev.QPN, ev.PSN = core.EvRebuilt, p.addr.qpn, p.addr.psn
	}
	c.queue = append(c.queue, ev)
}

// sendRecord sends a record: together with others on a control QP, in a separate packet on a
// path. If the path's queue is full, the record is dropped, which the protocol tolerates.
func (c *connection) sendRecord(a *core.Action) {
	if a.Route < core.RoutePath {
		if b := c.outbox[a.Route]; len(b) > 0 && len(b)+a.Record.Len() > c.engine.resources.controlLen {
			c.stageControl(int(a.Route))
		}
		b := c.outbox[a.Route]
		if len(b) == 0 {
			b = wire.StartControl(b, c.peer.conn)
		}
		c.outbox[a.Route], _ = wire.AddRecord(b, &a.Record) // controlLen is at most wire.MaxControlLen
		return
	}
	p := &c.paths[a.Route-core.RoutePath]
	if p.qp == nil || p.controls == maxControls {
		return
	}
	p.controls++
	a.Record.Shorten(headerSlot - wire.ControlLen)
	wr, slot := p.stage(controlPacket)
	b, _ := wire.AddRecord(wire.StartControl(c.headers.slot(slot)[:0], c.peer.conn), &a.Record)
	wr.Opcode, wr.Imm = verbs.OpSendWithImm, wire.Imm{Kind: wire.KindControl}.Encode()
	wr.SGE[0], wr.NumSGE = c.headers.sge(slot, len(b)), 1
}

// records processes a control packet that arrived by route.
func (c *connection) records(b []byte, route core.Route) {
	var r wire.Reader
	if r.Open(b) != nil || r.Conn != c.id {
		return
	}
	c.confirm() // only its peer knows c.id
	for c.core != nil {
		ev := core.Event{Kind: core.EvRecord, Route: route}
		if !r.Next(&ev.Record) {
			return
		}
		c.step(&ev)
	}
}
