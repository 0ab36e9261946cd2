package softnic

// timerHeap is a binary heap of QPs by the time at which they want to be looked at.
// A QP is in it at most once, at index qp.timerIdx; -1 means that it is not.
type timerHeap []*qp

func (h timerHeap) next() int64 {
	if len(h) == 0 {
		return never
	}
	return h[0].timerAt
}

// set puts q into the heap at the given time, or moves it there.
func (h *timerHeap) set(q *qp, at int64) {
	q.timerAt = at
	if q.timerIdx < 0 {
		q.timerIdx = len(*h)
		*h = append(*h, q)
	}
	h.down(q.timerIdx)
	h.up(q.timerIdx)
}

// drop takes q out of the heap if it is there.
func (h *timerHeap) drop(q *qp) {
	i := q.timerIdx
	if i < 0 {
		return
	}
	last := len(*h) - 1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	q.timerIdx = -1
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h timerHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timerIdx, h[j].timerIdx = i, j
}

func (h timerHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].timerAt <= h[i].timerAt {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h timerHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].timerAt < h[child].timerAt {
			child++
		}
		if h[i].timerAt <= h[child].timerAt {
			return
		}
		h.swap(i, child)
		i = child
	}
}
