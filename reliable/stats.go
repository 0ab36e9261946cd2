package reliable

import "ibverbx/reliable/core"

// StatsReader is implemented by wrapped QPs and by wrapped contexts. Any goroutine may call its methods.
type StatsReader interface {
	// Stats returns the counters of the QP's connection, all zero before it is connected. Those of a context
	// are the sums over all connections that it has or had, so they never go back.
	Stats() core.Stats
	// Paths returns the present state of the paths: those of the QP, or of every connection of the context.
	Paths() []PathInfo
}

// PathLister is implemented by wrapped contexts. Any goroutine may call its method.
type PathLister interface {
	// PathsOf returns the paths of the open QP of a number, as StatsReader does, or nil if there is none.
	// It is for those who have a QP only by its number, for example a lane of a VirtualQP.
	PathsOf(qpn uint32) []PathInfo
}

// PathInfo is one path of a wrapped QP, as this end sees it.
type PathInfo struct {
	QPN   uint32         // the number of the path's UC QP, 0 while the path is down and has none
	Epoch uint16         // the number of QPs that the path has had before this one
	State core.PathState // also PathUp before the QP is connected
	// FlowLabel decides the UDP source port of the packets that this end sends on the path, or last sent:
	// 0xc000 | (FlowLabel ^ FlowLabel>>14) & 0x3fff. It is 0 before the path is connected.
	FlowLabel uint32
	// PathStats is about the path from this end to the peer. It tells which path loses or delays.
	core.PathStats
}

var (
	_ StatsReader = (*qp)(nil)
	_ StatsReader = (*pathContext)(nil)
	_ PathLister  = (*pathContext)(nil)
)

func (q *qp) Stats() core.Stats {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	if !q.connected {
		return core.Stats{}
	}
	return q.conn.core.Stats()
}

func (q *qp) Paths() []PathInfo {
	q.engine.mu.Lock()
	defer q.engine.mu.Unlock()
	return q.conn.infos()
}

func (ctx *pathContext) Stats() core.Stats {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	sum := ctx.past
	ctx.each(func(e *engine) {
		sum.Add(&e.past)
		for _, c := range e.connected {
			stats := c.core.Stats()
			sum.Add(&stats)
		}
	})
	return sum
}

func (ctx *pathContext) Paths() (infos []PathInfo) {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	ctx.each(func(e *engine) {
		for _, c := range e.connected {
			infos = append(infos, c.infos()...)
		}
	})
	return infos
}

func (ctx *pathContext) PathsOf(qpn uint32) (infos []PathInfo) {
	ctx.mu.Lock()
	defer ctx.mu.Unlock()
	ctx.each(func(e *engine) {
		for _, q := range e.qps {
			if q != nil && q.num == qpn {
				infos = q.conn.infos()
			}
		}
	})
	return infos
}

// infos returns the present state of the paths, nil if there is no connection. The engine is locked.
func (c *connection) infos() []PathInfo {
	if c == nil {
		return nil
	}
	infos := make([]PathInfo, len(c.paths))
	for i := range infos {
		p := &c.paths[i]
		infos[i].Epoch, infos[i].FlowLabel = p.epoch, p.label
		if p.qp != nil {
			infos[i].QPN = p.qp.Num()
		}
		if c.core != nil {
			infos[i].State, infos[i].PathStats = c.core.PathState(i), c.core.PathStats(i)
		}
	}
	return infos
}
