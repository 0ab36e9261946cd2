package measure

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/clock"
	"ibverbx/internal/heap"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// ErrStuck says that nothing is due any more although not every flow is done.
var ErrStuck = errors.New("nothing is due and not every flow is done")

// World is a network of hosts on virtual time. Everything in it happens in one goroutine. Build
// it, add hosts and flows, Run it, read the flows, Close it.
type World struct {
	// Link joins the hosts. Scenarios impair it, and lay paths and bottlenecks.
	Link *softnic.FaultLink

	now    int64
	seed   uint64
	hosts  []*Host
	flows  []*Flow
	agenda heap.Heap[func() error]
	count  uint64 // entries that the agenda has had
	limit  int64  // time in nanoseconds after which a run counts as hung
}

// WorldConfig describes a World.
type WorldConfig struct {
	// Seed decides which packets are lost and which path a flow takes. Zero is an ordinary
	// seed.
	Seed uint64
	// Impairment applies to every direction between two hosts.
	Impairment softnic.Impairment
	// Window is the number of packets that an RC requester may have unacknowledged. Zero means
	// softnic's default.
	Window int
	// Queue is the number of packets of one NIC that may be in flight. Zero means 8192.
	Queue int
	// Limit is the virtual time after which a run counts as hung. Zero means 60 s.
	Limit time.Duration
}

// NewWorld returns a world without hosts.
func NewWorld(cfg WorldConfig) (*World, error) {
	w := &World{now: 1, seed: cfg.Seed, limit: int64(cmp.Or(cfg.Limit, 60*time.Second))}
	var err error
	w.Link, err = softnic.NewFaultLink(&softnic.FaultConfig{
		Seed: cfg.Seed, Impairment: cfg.Impairment, Window: cfg.Window, Queue: cmp.Or(cfg.Queue, 8192), InTurn: true, Now: w.Now,
	})
	return w, err
}

// Now is the virtual time in nanoseconds.
func (w *World) Now() int64 { return w.now }

// At calls do at a time that counts from the start of the world. An error ends the run.
func (w *World) At(at time.Duration, do func() error) {
	w.count++
	w.agenda.Push(int64(at)+1, w.count, do)
}

// Host is a machine with one NIC.
type Host struct {
	NIC *softnic.NIC
	// Context is what the host's QPs are made on: a wrapped one or the NIC's own.
	Context verbs.Context

	world    *World
	pd       verbs.PD
	stepper  reliable.Stepper // nil without package reliable
	deadline int64
	seen     uint64 // packets that had come when it last looked
	touched  bool   // something was posted since
}

// AddHost adds a host. With a nil cfg its QPs are the NIC's own; otherwise its context is
// wrapped, on the clock of the world.
func (w *World) AddHost(cfg *reliable.Config) (*Host, error) {
	n := len(w.hosts)
	nic, err := softnic.New(w.Link, softnic.Config{Name: fmt.Sprintf("h%d", n), Seed: w.seed<<16 + uint64(n) + 1})
	if err != nil {
		return nil, err
	}
	h := &Host{NIC: nic, world: w, deadline: never, touched: true}
	w.hosts = append(w.hosts, h)
	if h.Context, err = nic.Open(); err != nil {
		return nil, err
	}
	if cfg != nil {
		own := *cfg
		own.Now = w.Now
		if h.Context, err = reliable.Wrap(h.Context, own); err != nil {
			return nil, err
		}
		h.stepper = h.Context.(reliable.Stepper)
	}
	h.pd, err = h.Context.AllocPD()
	return h, err
}

// step lets the transport of a host do what is due, if anything may be.
func (h *Host) step() {
	if h.stepper == nil {
		return
	}
	got := h.NIC.Stats().PacketsReceived
	if got == h.seen && !h.touched && h.world.now < h.deadline {
		return
	}
	h.seen, h.touched = got, false
	at, pending := h.stepper.Step()
	if h.deadline = at; !pending {
		h.deadline = never
	}
}

// never is a time that does not come.
const never int64 = clock.Never

// Run lets time pass until every flow that has an end is done, and checks the bytes of all.
func (w *World) Run() error {
	for _, f := range w.flows {
		f.startAt = w.now + int64(f.cfg.Start)
	}
	if err := w.until(w.done); err != nil {
		return err
	}
	for _, f := range w.flows {
		f.stopped = true
	}
	// Late packets get the time to do harm before the bytes are checked.
	end := w.now + int64(lateness)
	if err := w.until(func() bool { return w.now >= end }); err != nil && !errors.Is(err, ErrStuck) {
		return err
	}
	for _, f := range w.flows {
		if err := f.checkAll(); err != nil {
			return err
		}
	}
	return nil
}

// lateness is how long a world runs after all flows are done.
const lateness = time.Millisecond

func (w *World) done() bool {
	for _, f := range w.flows {
		if !f.done() {
			return false
		}
	}
	return true
}

// until lets time pass until over says so.
func (w *World) until(over func() bool) error {
	for {
		if err := w.meet(); err != nil {
			return err
		}
		w.Link.Step()
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

// meet does what is due on the agenda.
func (w *World) meet() error {
	for w.agenda.Len() > 0 && w.agenda.Next() <= w.now {
		if err := w.agenda.Pop()(); err != nil {
			return err
		}
	}
	return nil
}

// advance moves time to when something is due.
func (w *World) advance() error {
	next := w.agenda.Next()
	if at, pending := w.Link.Next(); pending {
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
		return fmt.Errorf("%w at %v: %s", ErrStuck, time.Duration(w.now), w.outstanding())
	case next > w.limit:
		return fmt.Errorf("not done after %v: %s", time.Duration(w.now), w.outstanding())
	}
	w.now = max(w.now, next)
	return nil
}

// outstanding lists the flows that are not done.
func (w *World) outstanding() string {
	text := ""
	for i, f := range w.flows {
		if !f.done() {
			text += fmt.Sprintf("flow %d has moved %d of %d bytes; ", i, f.bytes, f.cfg.Bytes)
		}
	}
	return text
}

// Close closes everything. Call it also after an error.
func (w *World) Close() error {
	var errs []error
	for _, f := range w.flows {
		errs = append(errs, f.close())
	}
	for _, h := range w.hosts {
		if h.pd != nil {
			errs = append(errs, h.pd.Close())
		}
		if h.Context != nil {
			errs = append(errs, h.Context.Close())
		}
		errs = append(errs, h.NIC.Close())
	}
	for _, f := range w.flows {
		errs = append(errs, f.free())
	}
	return errors.Join(errs...)
}
