package measure

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/clock"
	"ibverbx/internal/closer"
	"ibverbx/internal/heap"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// errStuck means that no event is pending although a flow is not done.
var errStuck = errors.New("nothing is due and not every flow is done")

// never is later than every time.
const never int64 = clock.Never

// lateness is the time that a world runs after all flows are done.
const lateness = time.Millisecond

// world is a network of hosts on virtual time. Everything in it happens in one goroutine. Build it,
// add hosts and flows, run it, read the flows, close it.
type world struct {
	link   *softnic.FaultLink // joins the hosts
	now    int64              // virtual time in nanoseconds
	seed   uint64
	hosts  []*host
	flows  []*flow
	events heap.Heap[func() error]
	count  uint64 // functions added so far
	limit  int64  // time in nanoseconds after which a run counts as hung
	open   closer.Stack
}

// worldConfig describes a world.
type worldConfig struct {
	// Seed decides which packets are lost and which path a flow takes. Zero is an ordinary seed.
	Seed uint64
	// Impairment applies to every direction between two hosts.
	Impairment softnic.Impairment
	// Window is the maximum number of an RC requester's unacknowledged packets. Zero means softnic's default.
	Window int
	// Queue is the maximum number of a NIC's packets in flight. Zero means 8192.
	Queue int
}

// newWorld returns a world without hosts.
func newWorld(cfg worldConfig) (*world, error) {
	w := &world{now: 1, seed: cfg.Seed, limit: int64(60 * time.Second)}
	var err error
	w.link, err = softnic.NewFaultLink(&softnic.FaultConfig{
		Seed: cfg.Seed, Impairment: cfg.Impairment, Window: cfg.Window, Queue: cmp.Or(cfg.Queue, 8192), InTurn: true, Now: w.clock,
	})
	return w, err
}

// inWorld builds a world, calls do and closes the world.
func inWorld(cfg worldConfig, do func(*world) error) error {
	w, err := newWorld(cfg)
	if err == nil {
		err = do(w)
	}
	return errors.Join(err, w.open.Close())
}

func (w *world) clock() int64 { return w.now }

// at calls do at a time after the start of the world. An error of do ends the run.
func (w *world) at(at time.Duration, do func() error) {
	w.count++
	w.events.Push(int64(at)+1, w.count, do)
}

// host is a machine with one NIC.
type host struct {
	world    *world
	nic      *softnic.NIC
	context  verbs.Context // the NIC's context, wrapped or not
	pd       verbs.PD
	stepper  reliable.Stepper // nil without package reliable
	deadline int64            // time of the next step
	seen     uint64           // packets received by the NIC until the last step
	touched  bool             // a request was posted since the last step
}

// addHost adds a host. With a nil cfg its QPs are the NIC's own. Otherwise its context is wrapped, on
// the clock of the world.
func (w *world) addHost(cfg *reliable.Config) (*host, error) {
	n := len(w.hosts)
	nc := softnic.Config{Name: fmt.Sprintf("h%d", n), Seed: w.seed<<16 + uint64(n) + 1}
	if cfg != nil && cfg.Carrier == verbs.UD {
		nc.QPTypes = []verbs.QPType{verbs.UD}
	}
	nic, err := softnic.New(w.link, nc)
	if err != nil {
		return nil, err
	}
	w.open.Add(nic.Close)
	h := &host{nic: nic, world: w, deadline: never, touched: true}
	w.hosts = append(w.hosts, h)
	if h.context, err = nic.Open(); err != nil {
		return nil, err
	}
	if cfg != nil {
		own := *cfg
		own.Now = w.clock
		if h.context, err = reliable.Wrap(h.context, own); err != nil {
			return nil, err
		}
		h.stepper = h.context.(reliable.Stepper)
	}
	w.open.Add(h.context.Close)
	if h.pd, err = h.context.AllocPD(); err != nil {
		return nil, err
	}
	w.open.Add(h.pd.Close)
	return h, nil
}

// step runs the transport of a host if something may be due.
func (h *host) step() {
	if h.stepper == nil {
		return
	}
	got := h.nic.Stats().PacketsReceived
	if got == h.seen && !h.touched && h.world.now < h.deadline {
		return
	}
	h.seen, h.touched = got, false
	at, pending := h.stepper.Step()
	if h.deadline = at; !pending {
		h.deadline = never
	}
}

// run runs until every bounded flow is done, and checks the bytes of all flows.
func (w *world) run() error {
	return w.runUntil(w.done)
}

// runFor runs for d, and checks the bytes of all flows.
func (w *world) runFor(d time.Duration) error {
	end := w.now + int64(d)
	w.at(time.Duration(end), func() error { return nil })
	return w.runUntil(func() bool { return w.now >= end })
}

// runUntil runs until over returns true, and checks the bytes of all flows.
func (w *world) runUntil(over func() bool) error {
	for _, f := range w.flows {
		f.startAt = w.now + int64(f.cfg.Start)
	}
	if err := w.until(over); err != nil {
		return err
	}
	for _, f := range w.flows {
		f.stopped = true
	}
	// Late packets get time to cause damage before the bytes are checked.
	end := w.now + int64(lateness)
	if err := w.until(func() bool { return w.now >= end }); err != nil && !errors.Is(err, errStuck) {
		return err
	}
	for _, f := range w.flows {
		if err := f.checkAll(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) done() bool {
	for _, f := range w.flows {
		if !f.done() {
			return false
		}
	}
	return true
}

// until runs until over returns true.
func (w *world) until(over func() bool) error {
	for {
		for w.events.Next() <= w.now {
			if err := w.events.Pop()(); err != nil {
				return err
			}
		}
		w.link.Step()
		for _, h := range w.hosts {
			h.step()
		}
		busy := false
		for _, f := range w.flows {
			did, err := f.turn()
			if err != nil {
				return err
			}
			busy = busy || did
		}
		if busy {
			continue
		}
		if over() {
			return nil
		}
		if err := w.advance(); err != nil {
			return err
		}
	}
}

// advance moves time to the next event.
func (w *world) advance() error {
	next := w.events.Next()
	if at, pending := w.link.Next(); pending {
		next = min(next, at)
	}
	for _, h := range w.hosts {
		next = min(next, h.deadline)
	}
	for _, f := range w.flows {
		next = min(next, f.due())
	}
	switch {
	case next == never:
		return fmt.Errorf("%w at %v: %s", errStuck, time.Duration(w.now), w.outstanding())
	case next > w.limit:
		return fmt.Errorf("not done after %v: %s", time.Duration(w.now), w.outstanding())
	}
	w.now = max(w.now, next)
	return nil
}

// outstanding lists the flows that are not done.
func (w *world) outstanding() string {
	text := ""
	for i, f := range w.flows {
		if !f.done() {
			text += fmt.Sprintf("flow %d has moved %d of %d bytes; ", i, f.bytes, f.cfg.Bytes)
		}
	}
	return text
}
