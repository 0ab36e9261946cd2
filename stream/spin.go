package stream

import "ibverbx/internal/service"

// pollAgain is the number of waits without long polling after a fruitless one.
const pollAgain = 32

// patience decides whether a waiting goroutine polls before it sleeps. If both sides share processors, polling takes time that the other
// side needs to respond. A goroutine thus keeps polling while it succeeds, and pauses for a while after it fails.
type patience struct {
	// pause is the number of waits left without polling.
	pause uint8
}

// drive drives the shard until done returns true: once or, with patience, up to service.Rounds times. Only one goroutine does the latter.
func (p *peer) drive(patient *patience, done func() bool) {
	if patient != nil && patient.pause > 0 {
		patient.pause--
		patient = nil
	}
	if patient == nil || !p.polled.CompareAndSwap(false, true) {
		service.Drive(p.service, 1, done)
		return
	}
	if !service.Drive(p.service, service.Rounds, done) {
		patient.pause = pollAgain
	}
	p.polled.Store(false)
}
