package core

import "fmt"

// flow is one stream of messages over the paths of a connection, and one back: what a QP of
// the user is. Paths, round trip times, congestion and control routes are the connection's; the
// numbers of chunks, what is in the window, receives and completions are the flow's, and so is
// the knowledge of what is lost: an acknowledgement tells of one flow, and says nothing about
// chunks of another.
type flow struct {
	number   uint16
	failed   bool
	giveUp   int64
	patience int64
	sender
	receiver

	held    bool  // what it has lost waits for its probes; see hold
	queued  bool  // in the ring of those that have something to send
	losing  bool  // in the list of those that have lost something
	owing   bool  // in the list of those that owe an acknowledgement
	touched bool  // in the list of those that this step is about
	due     int64 // when its next timer is due
	place   int   // in the heap of timers
}

// FlowConfig describes a flow.
type FlowConfig struct {
	// SendDepth is how many messages may be posted and not completed. Zero means that of
	// the connection.
	SendDepth int
	// GiveUp and RecvPatience are as in Config. Zero means those of the connection.
	GiveUp, RecvPatience int64
}

// schedule says which flows are to be looked at, and when.
type schedule struct {
	flows   []*flow // by number; nil is not open
	opened  int
	alive   int      // flows that are open and have not failed
	ready   ring     // have something to send, in turn
	losers  []uint16 // have lost chunks
	owing   []uint16
	touched []uint16
	heap    []uint16 // open flows, by due
	hurry   int64    // the least GiveUp that a flow has had
}

func (c *Conn) initFlows() error {
	n := c.cfg.Flows
	c.flows = make([]*flow, n)
	c.hurry = never
	c.ready.init(n)
	c.losers, c.owing, c.touched = make([]uint16, 0, n), make([]uint16, 0, n), make([]uint16, 0, n)
	c.heap = make([]uint16, 0, n)
	if n > 1 {
		return nil
	}
	return c.Open(0, FlowConfig{})
}

// Open opens a flow. With Config.Flows of one it is open from the start. A number is used
// once: what is under way of a flow that has ended would be taken for that of the next.
func (c *Conn) Open(number int, cfg FlowConfig) error {
	setDefault(&cfg.SendDepth, c.cfg.SendDepth)
	setDefault(&cfg.GiveUp, c.cfg.GiveUp)
	setDefault(&cfg.RecvPatience, c.cfg.RecvPatience)
	switch {
	case number < 0 || number >= len(c.flows):
		return fmt.Errorf("%w: flow %d, want 0 to %d", ErrConfig, number, len(c.flows)-1)
	case c.flows[number] != nil:
		return fmt.Errorf("%w: flow %d was opened before", ErrConfig, number)
	case cfg.SendDepth < 1 || cfg.SendDepth > maxSendDepth || cfg.GiveUp < 1 || cfg.GiveUp > maxDuration ||
		cfg.RecvPatience < 0 || cfg.RecvPatience > maxDuration:
		return fmt.Errorf("%w: flow %d with %+v", ErrConfig, number, cfg)
	}
	f := &flow{number: uint16(number), giveUp: cfg.GiveUp, patience: cfg.RecvPatience, due: never}
	f.initSender(c, cfg.SendDepth)
	f.initReceiver(c.cfg.Window)
	c.flows[number] = f
	c.hurry = min(c.hurry, cfg.GiveUp)
	c.opened++
	c.alive++
	f.place = len(c.heap)
	c.heap = append(c.heap, f.number)
	return nil
}

// Retime changes GiveUp and RecvPatience of an open flow, of which zero means those of the connection.
func (c *Conn) Retime(number int, giveUp, recvPatience int64) {
	setDefault(&giveUp, c.cfg.GiveUp)
	setDefault(&recvPatience, c.cfg.RecvPatience)
	f := c.flows[number]
	f.giveUp, f.patience = min(max(giveUp, 1), maxDuration), min(max(recvPatience, 0), maxDuration)
	c.hurry = min(c.hurry, f.giveUp)
	c.retime(f, c.deadline(f))
}

// over reports whether every flow there can be has failed: then the connection has ended.
func (c *Conn) over() bool { return c.alive == 0 && c.opened == len(c.flows) }

// Over reports whether the connection has ended: every flow that there can be has failed.
func (c *Conn) Over() bool { return c.over() }

// flow returns the open flow of a number, or nil.
func (c *Conn) flow(number uint16) *flow {
	if int(number) >= len(c.flows) {
		return nil
	}
	return c.flows[number]
}

// mark notes that the step changes a flow: its messages may have ended, its timers moved.
func (c *Conn) mark(f *flow) {
	if !f.touched {
		f.touched = true
		c.touched = append(c.touched, f.number)
	}
}

// touch notes, too, that the flow may have something to send.
func (c *Conn) touch(f *flow) {
	c.mark(f)
	if !f.queued && !f.failed && f.cut < f.posted {
		f.queued = true
		c.ready.push(f.number)
	}
}

// ring is a queue of flow numbers of fixed size.
type ring struct {
	slots       []uint16
	head, count int
}

func (r *ring) init(n int) { r.slots = make([]uint16, n) }

func (r *ring) push(v uint16) {
	i := r.head + r.count
	if i >= len(r.slots) {
		i -= len(r.slots)
	}
	r.slots[i] = v
	r.count++
}

func (r *ring) pop() {
	if r.head++; r.head == len(r.slots) {
		r.head = 0
	}
	r.count--
}

// retime moves a flow in the heap to where its time belongs.
func (c *Conn) retime(f *flow, due int64) {
	if f.due == due {
		return
	}
	f.due = due
	h, i := c.heap, f.place
	for i > 0 && c.flows[h[(i-1)/2]].due > due {
		h[i] = h[(i-1)/2]
		c.flows[h[i]].place = i
		i = (i - 1) / 2
	}
	for {
		k := 2*i + 1
		if k >= len(h) {
			break
		}
		if k+1 < len(h) && c.flows[h[k+1]].due < c.flows[h[k]].due {
			k++
		}
		if c.flows[h[k]].due >= due {
			break
		}
		h[i] = h[k]
		c.flows[h[i]].place = i
		i = k
	}
	h[i] = f.number
	f.place = i
}

// nextFlowTimer is when the first timer of a flow is due.
func (c *Conn) nextFlowTimer() int64 {
	if len(c.heap) == 0 {
		return never
	}
	return c.flows[c.heap[0]].due
}
