// Package broadcast wakes all goroutines that wait for a change of some state.
package broadcast

// Signal is raised when a state changes. The lock that guards the state guards the Signal too. The zero value is ready.
//
// A goroutine that waits takes the lock, looks at the state and takes Next. It releases the lock before it waits for the channel,
// and then looks again.
type Signal struct{ next chan struct{} }

// Next returns a channel that the next Raise closes.
func (s *Signal) Next() <-chan struct{} {
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// Raise wakes all who wait.
func (s *Signal) Raise() {
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}
