package core

import (
	"cmp"
	"fmt"

	"ibverbx/internal/ring"
)

// flow is one stream of messages over the paths of a connection, and one back: a QP of the user.
// Paths, round trip times, congestion control and control routes belong to the connection. Chunk numbers, the
// window, receives and completions belong to the flow. So does loss detection: an
// acknowledgement covers the chunks of one flow only.
type flow struct {
	c           *Conn
	number      uint16
	failed      bool  // set once the flow has failed; its sends are flushed
	nextStatus  uint8 // the status of the next message, if failed
	giveUp      int64 // the no-progress timeout, in nanoseconds
	recvTimeout int64 // the timeout for a receive of the peer, in nanoseconds; 0 is none
	send        sender
	recv        receiver
	fetches     fetches
	answers     answers

	suspended bool  // set while its lost chunks wait for probes; see suspend
	inReady   bool  // set while it is in c.ready
	inLossy   bool  // set while it is in c.lossy
	inOwing   bool  // set while it is in c.owing
	touched   bool  // set while it is in c.touched
	due       int64 // when its next timer is due, or never
	heapIndex int   // its index in c.heap
}

// FlowConfig configures a flow.
type FlowConfig struct {
	// SendDepth is the maximum number of outstanding messages. Zero means the connection's.
	SendDepth    int
	GiveUp       int64 // as in Config; zero means the connection's
	RecvPatience int64 // as in Config; zero means the connection's
}

// schedule lists the flows with pending work and their timers.
type schedule struct {
	flows     []*flow           // all flows, by number; nil is not open
	opened    int               // counts the flows that were opened
	alive     int               // counts the flows that are open and have not failed
	ready     ring.Ring[uint16] // flows with data to send, round-robin
	lossy     []uint16          // flows with lost chunks
	owing     []uint16          // flows that owe an acknowledgement or must request receives
	touched   []uint16          // flows changed by the current step
	heap      []uint16          // open flows, as a binary heap by due
	minGiveUp int64             // the minimum giveUp of all flows so far
}

func (c *Conn) initFlows() error {
	n := c.cfg.Flows
	c.flows = make([]*flow, n)
	c.minGiveUp = never
	c.ready = ring.New[uint16](n)
	c.lossy, c.owing, c.touched = make([]uint16, 0, n), make([]uint16, 0, n), make([]uint16, 0, n)
	c.heap = make([]uint16, 0, n)
	if n > 1 {
		return nil
	}
	return c.Open(0, FlowConfig{})
}

// Open opens a flow. If Config.Flows is 1, the flow is open from the start. Flow numbers are never
// reused: packets of a closed flow still in the network would be attributed to its successor. Errors
// wrap ErrConfig.
func (c *Conn) Open(number int, cfg FlowConfig) error {
	cfg.SendDepth = cmp.Or(cfg.SendDepth, c.cfg.SendDepth)
	cfg.GiveUp = cmp.Or(cfg.GiveUp, c.cfg.GiveUp)
	cfg.RecvPatience = cmp.Or(cfg.RecvPatience, c.cfg.RecvPatience)
	switch {
	case number < 0 || number >= len(c.flows):
		return fmt.Errorf("%w: flow %d, want 0 to %d", ErrConfig, number, len(c.flows)-1)
	case c.flows[number] != nil:
		return fmt.Errorf("%w: flow %d was opened before", ErrConfig, number)
	case cfg.SendDepth < 1 || cfg.SendDepth > maxSendDepth || cfg.GiveUp < 1 || cfg.GiveUp > maxDuration ||
		cfg.RecvPatience < 0 || cfg.RecvPatience > maxDuration:
		return fmt.Errorf("%w: flow %d with %+v", ErrConfig, number, cfg)
	}
	f := &flow{c: c, number: uint16(number), giveUp: cfg.GiveUp, recvTimeout: cfg.RecvPatience, due: never, heapIndex: len(c.heap)}
	f.send.init(c, cfg.SendDepth)
	f.initFetches()
	f.recv = receiver{early: make([]bool, c.cfg.Window), slots: make([]slot, c.cfg.Window), ackAt: never}
	c.flows[number] = f
	c.minGiveUp = min(c.minGiveUp, cfg.GiveUp)
	c.opened++
	c.alive++
	c.heap = append(c.heap, f.number)
	return nil
}

// Retime changes GiveUp and RecvPatience of an open flow. Zero means the connection's.
func (c *Conn) Retime(number int, giveUp, recvPatience int64) {
	f := c.flows[number]
	f.giveUp = min(max(cmp.Or(giveUp, c.cfg.GiveUp), 1), maxDuration)
	f.recvTimeout = min(max(cmp.Or(recvPatience, c.cfg.RecvPatience), 0), maxDuration)
	c.minGiveUp = min(c.minGiveUp, f.giveUp)
	f.setDue(f.deadline())
}

// flow returns the open flow with the given number, or nil.
func (c *Conn) flow(number uint16) *flow {
	if int(number) >= len(c.flows) {
		return nil
	}
	return c.flows[number]
}

// onUser processes an event of the flow's user.
func (f *flow) onUser(ev *Event) {
	switch ev.Kind {
	case EvPost:
		f.post(&ev.Message)
	case EvReceives:
		f.onReceives(ev.Count)
	default:
		f.fail(ev.Status)
	}
	f.touch()
}

// markTouched records that the step changes the flow: messages may complete and timers move.
func (f *flow) markTouched() {
	if !f.touched {
		f.touched = true
		f.c.touched = append(f.c.touched, f.number)
	}
}

// touch marks the flow as touched, and queues it if it has data to send.
func (f *flow) touch() {
	f.markTouched()
	if !f.inReady && !f.failed && f.pending() {
		f.inReady = true
		f.c.ready.Push(f.number)
	}
}

// setDue sets the flow's timer and restores the heap order. The heap is written by hand, because
// internal/heap would call back for every move, and the explorer of the tests copies a Conn.
func (f *flow) setDue(due int64) {
	if f.due == due {
		return
	}
	f.due = due
	c, h, i := f.c, f.c.heap, f.heapIndex
	for i > 0 && c.flows[h[(i-1)/2]].due > due {
		h[i] = h[(i-1)/2]
		c.flows[h[i]].heapIndex = i
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
		c.flows[h[i]].heapIndex = i
		i = k
	}
	h[i] = f.number
	f.heapIndex = i
}

// nextFlowTimer is the earliest timer of all flows.
func (c *Conn) nextFlowTimer() int64 {
	if len(c.heap) == 0 {
		return never
	}
	return c.flows[c.heap[0]].due
}
