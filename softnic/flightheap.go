package softnic

// flightHeap is a binary heap of packets by the time at which they arrive and, at one
// time, by their order.
type flightHeap []*flight

func (f *flight) before(g *flight) bool {
	return f.at < g.at || (f.at == g.at && f.order < g.order)
}

func (h *flightHeap) push(f *flight) {
	*h = append(*h, f)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s[i].before(s[parent]) {
			return
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

// pop takes out the first packet; the heap must not be empty.
func (h *flightHeap) pop() *flight {
	s := *h
	first, last := s[0], len(s)-1
	s[0], s[last] = s[last], nil
	s = s[:last]
	*h = s
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(s) {
			return first
		}
		if child+1 < len(s) && s[child+1].before(s[child]) {
			child++
		}
		if !s[child].before(s[i]) {
			return first
		}
		s[i], s[child] = s[child], s[i]
		i = child
	}
}
