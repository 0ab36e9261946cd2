package reliable

import "ibverbx/reliable/core"

// Counted is implemented by wrapped QPs.
type Counted interface {
	// Stats returns the counters of the QP's connection, all zero before it is connected.
	Stats() core.Stats
	// Paths returns the present state of the paths.
	Paths() []PathInfo
}

// PathInfo is one path of a wrapped QP, as this end sees it.
type PathInfo struct {
	QPN   uint32         // the number of the path's UC QP, 0 while the path is down and has none
	Epoch uint16         // the number of QPs that the path has had before this one
	State core.PathState // also PathUp before the QP is connected
}

var _ Counted = (*qp)(nil)

func (q *qp) Stats() core.Stats {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if !q.connected {
		return core.Stats{}
	}
	return q.conn.core.Stats()
}

func (q *qp) Paths() []PathInfo {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.conn == nil {
		return nil
	}
	infos := make([]PathInfo, len(q.conn.paths))
	for i := range infos {
		p := &q.conn.paths[i]
		infos[i].Epoch = p.epoch
		if p.qp != nil {
			infos[i].QPN = p.qp.Num()
		}
		if c := q.conn.core; c != nil {
			infos[i].State = c.PathState(i)
		}
	}
	return infos
}
