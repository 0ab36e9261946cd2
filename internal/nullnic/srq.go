package nullnic

import "ibverbx/verbs"

// SRQ is a receive queue that several QPs share.
type SRQ struct {
	nic      *NIC
	receives receives
	limit    int
}

var _ verbs.SRQ = (*SRQ)(nil)

// low raises the limit event of the QP's SRQ once, when a message has consumed a receive and fewer
// than the limit are left.
func (q *QP) low() {
	if q.cfg.SRQ == nil {
		return
	}
	if s := q.cfg.SRQ.(*SRQ); len(s.receives.waiting()) < s.limit {
		s.limit = 0
		s.nic.Raise(verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
}

// PostRecv implements verbs.SRQ.
func (s *SRQ) PostRecv(wrs []verbs.RecvWR) (int, error) { return s.receives.post(wrs) }

// SetLimit implements verbs.SRQ.
func (s *SRQ) SetLimit(limit int) error {
	s.limit = limit
	return nil
}

// MaxWR implements verbs.SRQ.
func (s *SRQ) MaxWR() int { return s.receives.max }

// Close implements verbs.SRQ.
func (s *SRQ) Close() error { return nil }
