package reliable

import "ibverbx/reliable/core"

// Counted is implemented by wrapped QPs.
type Counted interface {
	// Stats returns what the QP's connection has done, all zero before it is connected.
	Stats() core.Stats
	// Paths returns the paths of the QP as they are now.
	Paths() []PathInfo
}

// PathInfo is one path of a wrapped QP, as its end sees it.
type PathInfo struct {
	// QPN is the number of the path's UC QP, 0 if the path is down and has none.
	QPN uint32
	// Epoch counts the QPs that the path has had before.
	Epoch uint16
	// State is PathUp before the QP is connected, too.
	State core.PathState
}

var _ Counted = (*qp)(nil)

// Stats implements Counted.
func (q *qp) Stats() core.Stats {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.conn == nil {
		return core.Stats{}
	}
	return q.conn.Stats()
}

// Paths implements Counted.
func (q *qp) Paths() []PathInfo {
	q.ctx.mu.Lock()
	defer q.ctx.mu.Unlock()
	if q.link == nil {
		return nil
	}
	infos := make([]PathInfo, len(q.link.paths))
	for i := range infos {
		p := &q.link.paths[i]
		infos[i].Epoch = p.epoch
		if p.qp != nil {
			infos[i].QPN = p.qp.Num()
		}
		if c := q.link.conn; c != nil {
			infos[i].State = c.PathState(i)
		}
	}
	return infos
}
