package sim

import (
	"slices"
	"time"
)

// controlPair is the control channel of a connection. It carries datagrams in both directions.
type controlPair struct {
	w    *world
	ways [2]controlWay // by side of the sender
}

// controlWay is one direction of a control channel.
type controlWay struct {
	queue  []datagram       // by time of arrival
	faults [numFaults]int64 // end of the fault of each kind
	mute   bool             // all datagrams are lost, because the process has crashed
	wake   func()           // called when a datagram arrives; may be nil
}

// datagram is a message in flight.
type datagram struct {
	at int64 // time of arrival
	b  []byte
}

// controlDelay is the latency of a datagram without faults.
const controlDelay = 20 * time.Microsecond

// channel is one side of a control channel. Its methods do not block.
type channel struct {
	pair *controlPair
	side int
}

// Send sends a datagram. It returns nil even if the datagram is lost.
func (c channel) Send(b []byte) error {
	w, way := c.pair.w, &c.pair.ways[c.side]
	has := func(k FaultKind) bool { return w.now < way.faults[k] }
	if way.mute || has(FaultControlCut) || (has(FaultControlLoss) && w.rng.IntN(2) == 0) {
		return nil
	}
	copies := 1
	if has(FaultControlRepeat) {
		copies += w.rng.IntN(3)
	}
	for range copies {
		at := w.now + int64(controlDelay)
		if has(FaultControlDelay) {
			at += w.rng.Int64N(int64(20 * time.Millisecond))
		}
		if has(FaultControlReorder) {
			at += w.rng.Int64N(int64(200 * time.Microsecond))
		} else if n := len(way.queue); n > 0 {
			at = max(at, way.queue[n-1].at)
		}
		way.add(datagram{at: at, b: slices.Clone(b)})
	}
	return nil
}

// add inserts a datagram after all that arrive no later.
func (y *controlWay) add(d datagram) {
	i := len(y.queue)
	for i > 0 && y.queue[i-1].at > d.at {
		i--
	}
	y.queue = slices.Insert(y.queue, i, d)
}

// Recv returns the next arrived datagram. n is 0 without one.
func (c channel) Recv(b []byte) (n int, err error) {
	way := &c.pair.ways[1-c.side]
	if len(way.queue) == 0 || way.queue[0].at > c.pair.w.now {
		return 0, nil
	}
	n = copy(b, way.queue[0].b)
	way.queue = slices.Delete(way.queue, 0, 1)
	return n, nil
}

// Notify sets the function to call when a datagram arrives.
func (c channel) Notify(wake func()) { c.pair.ways[1-c.side].wake = wake }

// arrive wakes the ends with an arrived datagram.
func (p *controlPair) arrive() {
	for i := range p.ways {
		if y := &p.ways[i]; y.wake != nil && len(y.queue) > 0 && y.queue[0].at <= p.w.now {
			y.wake()
		}
	}
}

// replacementChannel is the control channel of a process that replaces a crashed one under the same address. It also receives the old
// peer's datagrams, and responds to the sender of the last datagram.
type replacementChannel struct {
	own     channel
	old     channel
	answers bool // the old peer sent the last datagram
}

func (h *replacementChannel) Send(b []byte) error {
	if h.answers {
		h.answers = false
		return h.old.Send(b)
	}
	return h.own.Send(b)
}

func (h *replacementChannel) Recv(b []byte) (n int, err error) {
	h.answers = false
	if n, err = h.own.Recv(b); n > 0 || err != nil {
		return n, err
	}
	n, err = h.old.Recv(b)
	h.answers = n > 0
	return n, err
}

// Notify sets the function to call when a datagram of either peer arrives.
func (h *replacementChannel) Notify(wake func()) {
	h.own.Notify(wake)
	h.old.Notify(wake)
}

// next is the time of the next arrival.
func (p *controlPair) next() int64 {
	at := int64(never)
	for i := range p.ways {
		if q := p.ways[i].queue; len(q) > 0 && q[0].at > p.w.now {
			at = min(at, q[0].at)
		}
	}
	return at
}

// channelOf returns the control channel of an end.
func (w *world) channelOf(e *end) channel {
	for len(w.control) <= e.index/2 {
		w.control = append(w.control, &controlPair{w: w})
	}
	return channel{pair: w.control[e.index/2], side: e.index % 2}
}

// injectControl applies a fault to the datagrams that an end sends.
func (w *world) injectControl(e *end, f *Fault, over int64) {
	if w.plan.Failover {
		way := &w.channelOf(e).pair.ways[e.index%2]
		way.faults[f.Kind] = max(way.faults[f.Kind], over)
	}
}
