package sim

import (
	"slices"
	"time"
)

// controlPair is the control channel of a connection: datagrams in both directions, each
// with faults of its own.
type controlPair struct {
	w    *world
	ways [2]controlWay
}

// controlWay is one direction, from the end of the same index to the other.
type controlWay struct {
	queue []datagram // by time of arrival
	// until when the direction has a fault, by kind.
	faults [numFaults]int64
	mute   bool // nobody is there to send
}

// datagram is a message under way.
type datagram struct {
	at int64
	b  []byte
}

// controlDelay is how long a datagram takes.
const controlDelay = 20 * time.Microsecond

// channel is what one end has of a control channel. Neither call blocks.
type channel struct {
	pair *controlPair
	side int
}

// Send puts a datagram under way, and returns nil although it may be lost.
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

// add enters a datagram behind all that arrive no later.
func (y *controlWay) add(d datagram) {
	i := len(y.queue)
	for i > 0 && y.queue[i-1].at > d.at {
		i--
	}
	y.queue = slices.Insert(y.queue, i, d)
}

// Recv takes the next datagram that has arrived; n is 0 if there is none.
func (c channel) Recv(b []byte) (n int, err error) {
	way := &c.pair.ways[1-c.side]
	if len(way.queue) == 0 || way.queue[0].at > c.pair.w.now {
		return 0, nil
	}
	n = copy(b, way.queue[0].b)
	way.queue = slices.Delete(way.queue, 0, 1)
	return n, nil
}

// heir is the control channel of a process that came in the place of one that crashed: it
// also gets what the peer of that one sends, and answers where a datagram came from, as one
// does that is reached under the same address.
type heir struct {
	own, old channel
	answers  bool // what was received last came from the old peer
}

func (h *heir) Send(b []byte) error {
	if h.answers {
		h.answers = false
		return h.old.Send(b)
	}
	return h.own.Send(b)
}

func (h *heir) Recv(b []byte) (n int, err error) {
	h.answers = false
	if n, err = h.own.Recv(b); n > 0 || err != nil {
		return n, err
	}
	n, err = h.old.Recv(b)
	h.answers = n > 0
	return n, err
}

// next is when a datagram arrives that nobody has seen.
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

// strikeControl gives what an end sends over its control channel a fault.
func (w *world) strikeControl(e *end, f *Fault, over int64) {
	if w.plan.Failover {
		way := &w.channelOf(e).pair.ways[e.index%2]
		way.faults[f.Kind] = max(way.faults[f.Kind], over)
	}
}
