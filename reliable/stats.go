package reliable

import "ibverbx/reliable/core"

// Counted is implemented by wrapped QPs.
type Counted interface {
	// Stats returns what the QP's connection has done, all zero before it is connected.
	Stats() core.Stats
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
