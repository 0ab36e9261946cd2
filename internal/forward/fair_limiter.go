package forward

import "sync"

// fairLimiter divides slots among peers. A peer gets another slot while it has fewer than are free: a
// single peer gets half of them, and the next one then a quarter. Greedy peers therefore leave
// slots for others.
type fairLimiter struct {
	mu    sync.Mutex
	total int
	taken int
	by    map[string]int // slots of a peer, more than 0
}

// take takes a slot for a peer and reports whether it got one.
func (s *fairLimiter) take(peer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[peer] >= s.total-s.taken {
		return false
	}
	s.taken++
	s.by[peer]++
	return true
}

// give returns a slot of a peer.
func (s *fairLimiter) give(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.by[peer]--; s.by[peer] == 0 {
		delete(s.by, peer)
	}
}
