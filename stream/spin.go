package stream

import "ibverbx/internal/service"

// skipWaits is the number of waits without long polling after a fruitless one.
const skipWaits = 32

// spinPolicy decides whether a waiting goroutine polls before it sleeps. If both sides share processors, polling takes time that the other
// side needs to respond. A goroutine thus keeps polling while it succeeds, and pauses for a while after it fails.
type spinPolicy struct {
	// skips is the number of waits left without polling.
	skips uint8
}

// drive drives the shard until done returns true: once or, if spin allows it, up to service.Rounds times. Only one goroutine does the latter.
func (p *peer) drive(spin *spinPolicy, done func() bool) {
	if spin != nil && spin.skips > 0 {
		spin.skips--
		spin = nil
	}
	if spin == nil || !p.polled.CompareAndSwap(false, true) {
		service.Drive(p.service, 1, done)
		return
	}
	if !service.Drive(p.service, service.Rounds, done) {
		spin.skips = skipWaits
	}
	p.polled.Store(false)
}
