package softnic

import (
	"slices"

	"ibverbx/verbs"
)

// pair is two connected QPs, RC or UC, on a link with immediate delivery. While the pair is idle,
// requests on either QP need no packets: see run.
type pair struct {
	gate
	qps [2]*qp
	// traffic counts each QP's requests that are not yet in the NICs' Stats.
	traffic [2]packetCount
	// done counts requests since the gate opened.
	done uint64
	// waits is set while the pair is in coreLock.waiting.
	waits bool
	// copies holds the operands and device copies of requests. burst allocates it on demand; host
	// WRITEs do not need it.
	copies *copies
	_      [40]byte // keeps pairs of different goroutines on separate cache lines
}

// packetCount counts request and response packets.
type packetCount struct{ requests, answers uint64 }

// other returns the peer of q.
func (p *pair) other(q *qp) *qp {
	if p.qps[0] == q {
		return p.qps[1]
	}
	return p.qps[0]
}

// fold moves the counters into the NICs' Stats. The caller holds the core's mutex.
func (p *pair) fold() {
	for i, t := range p.traffic {
		p.done += t.requests
		from, to := &p.qps[i].nic.stats, &p.qps[1-i].nic.stats
		from.PacketsSent += t.requests
		to.PacketsReceived += t.requests
		to.PacketsSent += t.answers
		from.PacketsReceived += t.answers
	}
	p.traffic = [2]packetCount{}
}

// idle reports whether the pair can execute requests without packets: all work is complete, no timer is
// armed, and no fault or observer is attached.
func (p *pair) idle() bool {
	a, b := p.qps[0], p.qps[1]
	return a.idle(b) && b.idle(a)
}

func (q *qp) idle(peer *qp) bool {
	return q.state == verbs.StateRTS && q.sqHead == q.sqTail && q.una == q.snd && q.snd == q.maxPSN && peer.epsn == q.snd &&
		q.lists == 0 && q.timerIdx < 0 && !q.rnrWait && q.msgKind == 0 && !q.failingNAK && !q.ackDue && q.nakSyndrome == 0 &&
		q.responses.Len() == 0 && q.injected == nil && q.nic.observe == nil && q.nic.portUp
}

// paired returns the pair of q and its peer, nil if the peer is not connected to q. The caller holds
// the core's mutex, and the gate of q's pair is shut.
func (q *qp) paired() *pair {
	if !q.core.traits.immediate || q.typ == verbs.UD || q.state != verbs.StateRTS {
		return nil
	}
	to := q.core.find(q.path)
	if to == nil {
		return nil
	}
	peer := to.qps.get(q.attr.DestQPN)
	switch {
	case peer == nil || peer == q || peer.typ != q.typ || peer.state != verbs.StateRTS || peer.attr.DestQPN != q.num,
		peer.path.sgid != q.path.dgid || peer.path.dgid != q.path.sgid:
		return nil
	}
	p := q.pair.Load()
	if p == nil || p != peer.pair.Load() {
		q.unpair()
		peer.unpair()
		p = &pair{qps: [2]*qp{q, peer}}
		q.pair.Store(p)
		peer.pair.Store(p)
	}
	return p
}

// unpair dissolves the pair of q. The caller holds the core's mutex, and the gate of the pair is shut.
func (q *qp) unpair() {
	if p := q.pair.Load(); p != nil {
		p.qps[0].pair.Store(nil)
		p.qps[1].pair.Store(nil)
		if p.waits {
			l := &q.core.mu
			l.waiting = slices.DeleteFunc(l.waiting, func(w *pair) bool { return w == p })
		}
	}
}

// guard acquires the lock that guards q: it enters the gate of q's pair and returns the pair, or locks
// the core's mutex and returns nil.
func (q *qp) guard() *pair {
	if p := q.pair.Load(); p != nil && p.enter() {
		return p
	}
	q.core.mu.hold()
	if p := q.pair.Load(); p != nil && p.enter() { // it opened while this call waited
		q.core.mu.Unlock()
		return p
	}
	return nil
}

// openGates opens gates once enough plain calls were counted, enters the gate of q's pair, releases the
// core's mutex and returns the pair. Otherwise it returns nil with the mutex held. All waiting pairs
// open together, because a call on another pair would shut a single open gate.
func (q *qp) openGates() *pair {
	l := &q.core.mu
	if l.openAfter == neverOpen {
		return nil
	}
	p := q.paired()
	if p == nil {
		return nil
	}
	if !p.waits {
		p.waits = true
		l.waiting = append(l.waiting, p)
	}
	if l.plainCalls++; l.plainCalls <= l.openAfter || !p.idle() {
		return nil
	}
	for _, w := range l.waiting {
		if w.waits = false; w.idle() {
			w.openIn(l)
		}
	}
	clear(l.waiting)
	l.waiting = l.waiting[:0]
	p.Lock()
	l.Unlock()
	return p
}

// openIn opens the gate of an idle pair, after the gates of its CQs and SRQs.
func (p *pair) openIn(l *coreLock) {
	for _, q := range p.qps {
		q.sendCQ.open.Store(true)
		q.recvCQ.open.Store(true)
		if q.srq != nil {
			q.srq.open.Store(true)
		}
	}
	l.open = append(l.open, p)
	p.open.Store(true)
}
