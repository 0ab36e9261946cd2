package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// A loss in the middle of a stream is reported by the packets behind it. One at its end, or of
// the report, is noticed by the silence only, and the timeout of a QP is long: 67 ms by
// default. So on a link that may lose packets the oldest unacknowledged one is sent again
// earlier, with growing pauses, and asks for an answer. The answer says what the peer has. A
// probe is no retry: the counters and the time that a peer has are as before. A peer that is
// merely slow must not be made slower by probes: each that was in vain doubles the time to the
// next first one, of all QPs of the NIC.

// maxPatience makes the time to the first probe 128 ms at the most, if it is 2 ms at first.
const maxPatience = 6

// probe sends the oldest unacknowledged packet again, and nothing else.
func (q *qp) probe(now int64) {
	q.nic.stats.Probes++
	snd, next, off, reads := q.snd, q.sqNext, q.sqOff, q.reads
	q.probing = true
	q.seek(q.una)
	w := &q.sq[int(q.sqNext)&(len(q.sq)-1)]
	if w.isRequest() {
		q.sendRequest(w)
	} else {
		q.sendData(w, nil)
	}
	q.probing = false
	if q.state == verbs.StateErr {
		return // the memory is not registered any more
	}
	q.snd, q.sqNext, q.sqOff, q.reads = snd, next, off, reads
	q.probed = true
	q.probePause *= 2
	q.setTimer(now)
}

// afterProbe looks at the first answer after a probe of PSN una. If it acknowledges the probe
// and nothing more, the peer has nothing of what was sent behind it. If it acknowledges more,
// the peer had it all the time.
func (q *qp) afterProbe(una roce.PSN) {
	q.probed = false
	n := q.nic
	switch {
	case q.una != una.Add(1):
		n.patience = min(n.patience+1, maxPatience)
	case q.una != q.snd:
		n.patience -= min(n.patience, 1)
		q.goBackOnce()
	}
}
