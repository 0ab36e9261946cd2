package stream

const (
	// polls is how often a goroutine polls before it sleeps. Waking up takes longer than an answer from a peer that has a processor of its own.
	polls = 64
	// pollAgain is how many times a goroutine sleeps at once after it has polled and found nothing.
	pollAgain = 32
)

// patience decides whether a goroutine that waits polls for a while before it sleeps. If the two sides share processors, polling takes from the other
// side what it needs to answer. So a goroutine goes on with it as long as it finds what it waits for, and tries again some time after it did not.
type patience struct {
	// pause is how many times it will not poll.
	pause uint8
}

// help drives the shard once or, with patience, until there is a token. One goroutine at a time does the latter. The caller looks for
// what it waits for before it sleeps, so a token of before is dropped.
func (p *peer) help(patient *patience, wake chan struct{}) {
	if patient != nil && patient.pause > 0 {
		patient.pause--
		patient = nil
	}
	if patient == nil || !p.polled.CompareAndSwap(false, true) {
		p.service.Help()
		return
	}
	select {
	case <-wake:
	default:
	}
	k := 0
	for ; k < polls && len(wake) == 0; k++ {
		p.service.Help()
	}
	if k == polls {
		patient.pause = pollAgain
	}
	p.polled.Store(false)
}
