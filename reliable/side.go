package reliable

import "ibverbx/verbs"

// watchSides looks for side QPs in the error state: a READ or an atomic of the peer was wrong,
// which no completion tells the one that was asked. To ask a device for the state of a QP is a
// system call, so it is done once in a while, and after an event.
//
// A side QP that a request of its own has ended has a completion that says why, and that may
// come behind the state. So only a QP that was down the last time, too, fails for it: in between
// the completions were taken.
func (d *device) watchSides() {
	d.sidesAt = d.now + lookAgain
	for _, q := range d.qps {
		if q == nil || q.conn == nil || q.state != verbs.StateRTS || q.side.State() != verbs.StateErr {
			continue
		}
		if q.sideDown {
			q.fail()
		}
		q.sideDown = true
	}
}
