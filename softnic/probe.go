package softnic

import (
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// Packets behind a loss report it. A loss at the end of a stream, or of the report, shows only as
// silence, and the timeout of a QP is long: 67 ms by default. So on a link that may lose packets
// the requester probes earlier: it sends the oldest unacknowledged packet again, with growing
// pauses. The answer says what the peer has. A probe does not count as a retry and does not change
// the deadline. Probes must not slow down a peer that is merely slow: each needless one doubles
// the time to the next first probe of all QPs of the NIC.

// maxPatience limits that doubling: with 2 ms at first, the first probe comes after at most 128 ms.
const maxPatience = 6

// probe sends the oldest unacknowledged packet again, and nothing else.
func (q *qp) probe(now int64) {
	q.nic.stats.Probes++
	snd, next, off, reads := q.snd, q.sqNext, q.sqOff, q.reads
	q.probing = true
	q.seek(q.una)
	w := q.wqe(q.sqNext)
	if w.isRequest() {
		q.sendRequest(w)
	} else {
		q.sendData(w)
	}
	q.probing = false
	if q.state == verbs.StateErr {
		return // the memory is no longer registered
	}
	q.snd, q.sqNext, q.sqOff, q.reads = snd, next, off, reads
	q.probed = true
	q.probePause *= 2
	q.setTimer(now)
}

// afterProbe looks at the first answer after a probe of PSN una. If it acknowledges only the
// probe, the peer has nothing of what was sent behind it. If it acknowledges more, the peer had
// received everything and the probe was needless.
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
