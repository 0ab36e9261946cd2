// Package broadcast wakes goroutines that wait for a change of state: [Signal] wakes all of them, [Wake] one.
package broadcast

// Signal is raised when a state changes. The lock that guards the state guards the Signal too. The zero value is ready.
//
// A waiting goroutine acquires the lock, checks the state and calls Next. It releases the lock, waits for the channel, and checks again.
type Signal struct{ next chan struct{} }

// Next returns a channel that the next Raise closes.
func (s *Signal) Next() <-chan struct{} {
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

// Raise wakes all waiting goroutines.
func (s *Signal) Raise() {
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// Wake adds a token to c unless it is full, which wakes one goroutine waiting for c. It never blocks.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Closed reports whether a channel without values is closed.
func Closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
