package ibverbx

// pick chooses the lane for the next fragment, nil if none has room.
func (q *VirtualQP) pick() *lane {
	if q.cfg.Policy == LeastBytes {
		return q.leastBytes()
	}
	lanes := q.lanes
	for range lanes {
		l := lanes[q.cursor]
		if q.cursor++; q.cursor == len(lanes) {
			q.cursor = 0
		}
		if l.room() {
			return l
		}
	}
	return nil
}

// leastBytes begins where round robin would, so that equal lanes are taken in turn.
func (q *VirtualQP) leastBytes() *lane {
	var best *lane
	at := q.cursor
	for i := range q.lanes {
		k := q.cursor + i
		if k >= len(q.lanes) {
			k -= len(q.lanes)
		}
		if l := q.lanes[k]; l.room() && (best == nil || l.bytes < best.bytes) {
			best, at = l, k
		}
	}
	if best != nil {
		if q.cursor = at + 1; q.cursor == len(q.lanes) {
			q.cursor = 0
		}
	}
	return best
}
