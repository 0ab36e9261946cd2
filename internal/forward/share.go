package forward

import "sync"

// shares divides places among peers. A peer gets another place while it has fewer than are free: one alone gets half of them, and the next one then a
// quarter. So peers that take all they can get leave places for others.
type shares struct {
	mu    sync.Mutex
	total int
	taken int
	by    map[string]int // places of a peer, more than 0
}

// take takes a place for a peer. It reports whether there is one.
func (s *shares) take(peer string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[peer] >= s.total-s.taken {
		return false
	}
	s.taken++
	s.by[peer]++
	return true
}

// give gives a place of a peer back.
func (s *shares) give(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.by[peer]--; s.by[peer] == 0 {
		delete(s.by, peer)
	}
}
