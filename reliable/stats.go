package reliable

import "ibverbx/reliable/core"

// StatsReader is implemented by wrapped QPs and wrapped contexts, except when Config.FallBackToRC took
// effect. It is safe for concurrent use.
type StatsReader interface {
	// Stats returns the counters of the QP's connection, all zero before it is connected. For a context
	// it returns the sums over all its current and former connections, so they never decrease.
	Stats() core.Stats
	// Paths returns the current state of the QP's paths, or of all connections of the context.
	Paths() []PathInfo
}

// PathLister is implemented by wrapped contexts, except when Config.FallBackToRC took effect. It is safe
// for concurrent use.
type PathLister interface {
	// PathsOf returns the paths of an open QP by its number, like StatsReader, or nil if the QP does not
	// exist. Use it if only the number is known, for example for a lane of a VirtualQP.
	PathsOf(qpn uint32) []PathInfo
}

// PathInfo describes one path of a wrapped QP, as seen by the local side.
type PathInfo struct {
	QPN   uint32         // the path's UC QP number, 0 while the path is down without a QP
	Epoch uint16         // the number of earlier QPs of the path
	State core.PathState // PathUp even before the QP is connected
	// FlowLabel determines the UDP source port of packets sent on the path: 0xc000 | (FlowLabel ^
	// FlowLabel>>14) & 0x3fff. While the path is down, it is the last one used. It is 0 before the path
	// is connected.
	FlowLabel uint32
	// PathStats covers the direction from this side to the peer. It shows which path loses or delays
	// packets.
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
	sum := ctx.closedStats
	ctx.each(func(e *engine) {
		sum.Add(&e.closedStats)
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

// infos returns the state of the paths, nil without a connection. The engine is locked.
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
