package stream

import "ibverbx/internal/service"

// pollAgain is the number of waits that poll once only after a wait has polled in vain.
const pollAgain = 32

// patience decides whether a goroutine that waits polls for a while before it sleeps. If the two sides share processors, polling takes from the other
// side what it needs to answer. So a goroutine goes on with it as long as it finds what it waits for, and tries again some time after it did not.
type patience struct {
	// pause is how many times it will not poll.
	pause uint8
}

// drive drives the shard until done reports true: once or, with patience, service.Rounds times. One goroutine at a time does the latter.
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
