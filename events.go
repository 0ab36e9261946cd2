package ibverbx

// EventKind says what happened to a VirtualQP.
type EventKind uint8

// Events.
const (
	// EventFailed says that the VirtualQP has ended in an error. What is outstanding is
	// flushed.
	EventFailed EventKind = iota + 1
)

// String names the event.
func (k EventKind) String() string {
	if k == EventFailed {
		return "failed"
	}
	return "unknown"
}

// Event is something that happened to a VirtualQP outside of its requests.
type Event struct {
	Kind EventKind
	QP   *VirtualQP
	// Lane and Rail say where.
	Lane, Rail int
	// Err says why.
	Err error
}

// maxEvents is how many events wait to be taken; later ones are counted and lost. The
// state that they tell of is also in Err and Stats.
const maxEvents = 256

// Events takes up to len(dst) events, oldest first. It never blocks. An event ends a Wait,
// once.
func (c *VirtualCQ) Events(dst []Event) int {
	n := copy(dst, c.events)
	c.events = append(c.events[:0], c.events[n:]...)
	return n
}

// notice adds an event and wakes whoever waits.
func (c *VirtualCQ) notice(e Event) {
	if len(c.events) == maxEvents {
		c.stats.EventsLost++
		return
	}
	c.events = append(c.events, e)
	c.news = true
	if c.waker != nil {
		c.waker.Wake()
	}
}
